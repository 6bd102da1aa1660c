"""Rewrites of matrix products, broadcast products and sums. Each yields what a node may become.

Names: a, b, c, x, y are matrices; s is a scale: a number, a column vector that scales rows (a diagonal from the left)
or a row vector that scales columns. They hold over any commutative ring and have no prerequisites.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qlagen.algebra.ir import (
    Node,
    Term,
    broadcast_shape,
    factors_of,
    kind,
    linear,
    matmul,
    multiply,
    terms_of,
    transpose,
)


def without(items: Sequence[Node], *removed: Node) -> list[Node]:
    """The items less one occurrence of each removed one."""
    rest = list(items)
    for item in removed:
        rest.remove(item)
    return rest


def unique(items: Sequence[Node]) -> tuple[Node, ...]:
    return tuple(dict.fromkeys(items))


def associate(node: Node) -> Iterator[Node]:
    """(a @ b) @ c -> a @ (b @ c), and back"""
    if node.op == "matmul":
        left, right = node.args
        if left.op == "matmul":
            yield matmul(left.args[0], matmul(left.args[1], right))
        if right.op == "matmul":
            yield matmul(matmul(left, right.args[0]), right.args[1])


def _scales(node: Node) -> Iterator[tuple[Node, Node]]:
    """Every way to see a broadcast product as a scale and a rest of the same shape."""
    if node.op == "multiply":
        for factor in unique(node.args):
            rest = without(node.args, factor)
            if kind(factor) != "matrix" and broadcast_shape(f.shape for f in rest) == node.shape:
                yield factor, multiply(*rest)


def hoist_scale(node: Node) -> Iterator[Node]:
    """(s * x) @ y -> s * (x @ y); x @ (y * s) -> (x @ y) * s"""
    if node.op == "matmul":
        left, right = node.args
        for scale, rest in _scales(left):
            if kind(scale) in ("scalar", "column"):
                yield multiply(scale, matmul(rest, right))
        for scale, rest in _scales(right):
            if kind(scale) in ("scalar", "row"):
                yield multiply(scale, matmul(left, rest))


def push_scale(node: Node) -> Iterator[Node]:
    """s * (x @ y) -> (s * x) @ y; (x @ y) * s -> x @ (y * s)"""
    if node.op == "multiply":
        for product in (f for f in unique(node.args) if f.op == "matmul"):
            others = without(node.args, product)
            for scale in unique(others):
                rest = without(others, scale)
                left, right = product.args
                if kind(scale) in ("scalar", "column") and left.shape[0] == node.shape[0]:
                    yield multiply(*rest, matmul(multiply(scale, left), right))
                if kind(scale) in ("scalar", "row") and right.shape[1] == node.shape[1]:
                    yield multiply(*rest, matmul(left, multiply(scale, right)))


def slide_scale(node: Node) -> Iterator[Node]:
    """(x * s) @ y -> x @ (s^T * y), and back"""
    if node.op == "matmul":
        left, right = node.args
        for scale, rest in _scales(left):
            if kind(scale) == "row":
                yield matmul(rest, multiply(transpose(scale), right))
        for scale, rest in _scales(right):
            if kind(scale) == "column":
                yield matmul(multiply(left, transpose(scale)), rest)


def distribute(node: Node) -> Iterator[Node]:
    """x @ (a + b) -> x @ a + x @ b; (a + b) @ y -> a @ y + b @ y; x * (a + b) -> x * a + x * b"""
    if node.op == "matmul":
        left, right = node.args
        if len(terms_of(left)) > 1:
            yield linear((c, matmul(t, right)) for c, t in terms_of(left))
        if len(terms_of(right)) > 1:
            yield linear((c, matmul(left, t)) for c, t in terms_of(right))
    if node.op == "multiply":
        for factor in unique(node.args):
            if len(terms_of(factor)) > 1:
                rest = without(node.args, factor)
                yield linear((c, multiply(*rest, t)) for c, t in terms_of(factor))


def _pairs(node: Node) -> Iterator[tuple[Term, Term, list[Term]]]:
    """Two terms of a sum and the others."""
    terms = terms_of(node)
    for i, first in enumerate(terms):
        for j in range(i + 1, len(terms)):
            yield first, terms[j], [t for k, t in enumerate(terms) if k not in (i, j)]


def factor_left(node: Node) -> Iterator[Node]:
    """x @ a + x @ b -> x @ (a + b)"""
    for (c, first), (d, second), others in _pairs(node):
        if first.op == second.op == "matmul" and first.args[0] is second.args[0]:
            inner = linear(((c, first.args[1]), (d, second.args[1])))
            yield linear([*others, (1, matmul(first.args[0], inner))])


def factor_right(node: Node) -> Iterator[Node]:
    """a @ y + b @ y -> (a + b) @ y"""
    for (c, first), (d, second), others in _pairs(node):
        if first.op == second.op == "matmul" and first.args[1] is second.args[1]:
            inner = linear(((c, first.args[0]), (d, second.args[0])))
            yield linear([*others, (1, matmul(inner, first.args[1]))])


def factor_scale(node: Node) -> Iterator[Node]:
    """s * a + s * b -> s * (a + b)"""
    for (c, first), (d, second), others in _pairs(node):
        for shared in unique(factors_of(first)):
            if shared not in factors_of(second) or first is shared or second is shared:
                continue
            parts = [multiply(*without(factors_of(t), shared)) for t in (first, second)]
            if all(p.shape == node.shape for p in parts):
                yield linear([*others, (1, multiply(shared, linear(((c, parts[0]), (d, parts[1])))))])
