"""Rewrites of decay atoms and of unit-lower inverses. Each yields what a node may become.

Γ is decay(G), L is strictly lower, s a column vector. The identities of the atoms are those of `qlagen.algebra.gates`;
atoms of before(G) obey none of them.
"""

from __future__ import annotations

from collections.abc import Iterator

from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import (
    Node,
    broadcast_shape,
    decay,
    from_start,
    inverse,
    is_lower,
    kind,
    linear,
    mask,
    matmul,
    multiply,
    ones,
    split_coefficient,
    to_end,
    total,
    transpose,
)
from qlagen.algebra.rewrite_products import unique, without


def _decays(node: Node) -> Iterator[tuple[Node, list[Node]]]:
    """A Γ among the factors, its gate's node, and the other factors."""
    if node.op == "multiply":
        for factor in unique(node.args):
            if factor.op == "decay" and factor.args[0].op != "before":
                yield factor.args[0], without(node.args, factor)


def absorb_to_end(node: Node) -> Iterator[Node]:
    """Γ * to_end(G) -> tril(to_end(G)^T), and back under any lower factor"""
    for gate, others in _decays(node):
        if to_end(gate) in others:
            yield multiply(*without(others, to_end(gate)), transpose(to_end(gate)), mask("lower", node.shape))
    if node.op == "multiply" and is_lower(node):
        for factor in unique(node.args):
            others = without(node.args, factor)
            if factor.op == "transpose" and factor.args[0].op == "to_end" and _keeps_lower(others):
                gate = factor.args[0].args[0]
                if kind(gate) == "column":
                    yield multiply(*others, to_end(gate), decay(gate))


def absorb_from_start(node: Node) -> Iterator[Node]:
    """Γ * from_start(G)^T -> tril(from_start(G)), and back under any lower factor"""
    for gate, others in _decays(node):
        if transpose(from_start(gate)) in others:
            rest = without(others, transpose(from_start(gate)))
            yield multiply(*rest, from_start(gate), mask("lower", node.shape))
    if node.op == "multiply" and is_lower(node):
        for factor in unique(node.args):
            others = without(node.args, factor)
            scales = factor.op == "from_start" and factor.args[0].op != "before" and kind(factor) == "column"
            if scales and _keeps_lower(others):
                gate = factor.args[0]
                yield multiply(*others, transpose(from_start(gate)), decay(gate))


def _keeps_lower(factors: list[Node]) -> bool:
    return any(map(is_lower, factors))


def merge_gates(node: Node) -> Iterator[Node]:
    """from_start(G) * to_end(G) -> total(G)"""
    if node.op == "multiply":
        for factor in unique(node.args):
            own = factor.op == "from_start" and factor.args[0].op != "before"
            if own and to_end(factor.args[0]) in node.args:
                rest = without(node.args, factor, to_end(factor.args[0]))
                yield multiply(*rest, total(factor.args[0]), ones(node.shape))


def split_decay(node: Node) -> Iterator[Node]:
    """Γ * (a @ b) -> (Γ * a) @ (Γ * b) for lower a and b"""
    for gate, others in _decays(node):
        for product in unique(others):
            if product.op == "matmul" and all(map(is_lower, product.args)):
                inner = [multiply(decay(gate), a) for a in product.args]
                yield multiply(*without(others, product), matmul(inner[0], inner[1]))


def gate_inverse(node: Node) -> Iterator[Node]:
    """Γ * inv_unit_lower(L) -> inv_unit_lower(Γ * L)"""
    for gate, others in _decays(node):
        for factor in unique(others):
            if factor.op == "inverse":
                yield multiply(*without(others, factor), inverse(multiply(decay(gate), factor.args[0])))


def _gated_inverses(node: Node) -> Iterator[tuple[Node, Node]]:
    """The gate and the ungated argument of an inverse."""
    if node.op == "inverse":
        coefficient, product = split_coefficient(node.args[0])
        for gate, others in _decays(product):
            if broadcast_shape(f.shape for f in others) == node.shape:
                yield gate, linear(((coefficient, multiply(*others)),))


def ungate_inverse(node: Node, facts: Facts) -> Iterator[Node]:
    """inv_unit_lower(Γ * L) -> Γ * inv_unit_lower(L) where (I + L)^-1 is known not to grow"""
    for gate, ungated in _gated_inverses(node):
        if facts.unbounded_growth(ungated) is None:
            yield multiply(decay(gate), inverse(ungated))


def refuse_ungate_inverse(node: Node, facts: Facts) -> Iterator[str]:
    """Why `ungate_inverse` does not apply where it would otherwise."""
    for _, ungated in _gated_inverses(node):
        reason = facts.unbounded_growth(ungated)
        if reason is not None:
            yield reason


def push_through(node: Node) -> Iterator[Node]:
    """inv_unit_lower(s * L) * s^T -> s * inv_unit_lower(L * s^T), and back"""
    if node.op != "multiply":
        return
    for factor in unique(node.args):
        if factor.op != "inverse":
            continue
        outer = without(node.args, factor)
        inner = list(factor.args[0].args) if factor.args[0].op == "multiply" else []
        for scale in unique(inner):
            turned = transpose(scale)
            if kind(scale) in ("column", "row") and turned in outer:
                argument = multiply(*without(inner, scale), turned)
                if argument.shape == factor.shape:
                    yield multiply(*without(outer, turned), scale, inverse(argument))
