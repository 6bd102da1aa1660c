"""Typed, hash-consed matrix expressions: equal expressions are the same object, so sharing is free.

Normal form: transposes sit at leaves; `multiply` is an n-ary broadcasting Hadamard product (an outer product of two
vectors too); `add` is n-ary with integer coefficients; `matmul` is binary and has an inner dimension. There is no free
exponential: the decay atoms of a cumulative log gate ``G`` (`from_start`, `to_end`, `total`, `decay`, `gdot`) all have
exponents <= 0, so an unsafe exponent cannot be written. A gate has one value per row, or one per row and channel; it is
an input, its rows for each step of a token (`each`), or one of these before each row's own decay (`before`).

The constructors put expressions into normal form; only they make nodes. A misuse raises ValueError: spec text is
typed before it gets here, and rewrite rules keep types.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Literal

from qlagen.algebra.node import Kind as Kind
from qlagen.algebra.node import Node as Node
from qlagen.algebra.node import Op as Op
from qlagen.algebra.node import Term as Term
from qlagen.algebra.node import make_node as _node
from qlagen.spec.model import Shape

# Leaves


def input_node(name: str, shape: Shape) -> Node:
    """A named tensor: an input of the operator or the carried state."""
    return _node("input", (), shape, name)


def mask(which: Literal["lower", "strict"], shape: Shape = ("C", "C")) -> Node:
    """Ones where i >= j (``lower``) or i > j (``strict``), zeros elsewhere."""
    return _node("mask", (), shape, which)


def ones(shape: Shape) -> Node:
    return _node("ones", (), shape)


def zero(shape: Shape) -> Node:
    return _node("add", (), shape)


def before(gate: Node) -> Node:
    """The gate before each row's own decay: what the state has when a token reads it before it decays."""
    return _node("before", (_running(gate, "before"),), gate.shape)


def _running(gate: Node, use: str) -> Node:
    if gate.op == "before":
        raise ValueError(f"{use} of {gate!r}: it takes the gate itself")
    return gate


def from_start(gate: Node) -> Node:
    """exp(G): the decay from the chunk's start up to and including each token; of before(G) without the token's own."""
    return _node("from_start", (gate,), gate.shape)


def to_end(gate: Node) -> Node:
    """exp(G_last - G): the decay from after each token to the chunk's end."""
    return _node("to_end", (_running(gate, "to_end"),), gate.shape)


def total(gate: Node) -> Node:
    """exp(G_last): the decay over the whole chunk."""
    if gate.op == "each":
        return total(gate.args[0])
    return _node("total", (_running(gate, "total"),), ("1", gate.shape[1]))


def decay(gate: Node) -> Node:
    """[i >= j] exp(G_i - G_j) of a gate with one value per row; of before(G) it is [i > j] exp(G_(i-1) - G_j)."""
    if gate.shape[1] != "1":
        raise ValueError(f"decay of a {gate.shape} gate: it has one value per row")
    return _node("decay", (gate,), (gate.shape[0], gate.shape[0]))


def gdot(left: Node, right: Node, gate: Node) -> Node:
    """[i >= j] sum_c x_ic y_jc exp(G_ic - G_jc): a product of rows under a gate with a value for each channel.

    Of before(G) it is [i > j] sum_c x_ic y_jc exp(G_(i-1)c - G_jc).
    """
    if not left.shape == right.shape == gate.shape or gate.shape[1] == "1":
        raise ValueError(f"gdot of {left.shape}, {right.shape} and a {gate.shape} gate: they need a value per channel")
    shape = (gate.shape[0], gate.shape[0])
    (c, x), (d, y) = split_coefficient(left), split_coefficient(right)
    if any(z.op == "add" and not z.args for z in (x, y)):
        return zero(shape)
    return linear(((c * d, _node("gdot", (x, y, gate), shape)),))


def each(node: Node, rows: str) -> Node:
    """Every row for each step of its token, [C, n] -> [rows, n]; of a gate too."""
    c, rest = split_coefficient(node)
    shape = (rows, node.shape[1])
    return linear(((c, ones(shape) if rest.op == "ones" else _node("each", (_running(rest, "each"),), shape)),))


def last(node: Node) -> Node:
    """The row of each token's last step, [CM, n] -> [C, n]."""
    c, rest = split_coefficient(node)
    shape = ("C", node.shape[1])
    return linear(((c, rest.args[0] if rest.op == "each" else _node("last", (rest,), shape)),))


# Structure


@cache
def is_lower(node: Node) -> bool:
    """Zero where i < j, whatever the inputs."""
    if node.op in ("mask", "decay", "gdot", "inverse"):
        return True
    if node.op == "multiply":
        return any(is_lower(a) for a in node.args)
    return node.op in ("matmul", "add") and node.shape[0] == node.shape[1] and all(map(is_lower, node.args))


@cache
def is_strictly_lower(node: Node) -> bool:
    """Zero where i <= j, whatever the inputs."""
    if node.op == "mask":
        return node.value == "strict"
    if node.op in ("decay", "gdot"):
        return node.args[-1].op == "before"
    if node.op == "multiply":
        return any(is_strictly_lower(a) for a in node.args)
    if node.op == "matmul":
        return is_lower(node) and any(map(is_strictly_lower, node.args))
    return node.op == "add" and node.shape[0] == node.shape[1] and all(map(is_strictly_lower, node.args))


@cache
def is_unit_lower(node: Node) -> bool:
    """Lower with ones on the diagonal, whatever the inputs."""
    return node.op == "inverse" or (node.op == "matmul" and all(map(is_unit_lower, node.args)))


def kind(node: Node) -> Kind:
    """How it acts in a broadcast product: a ``column`` scales rows (diagonal from the left), a ``row`` columns."""
    if node.shape == ("1", "1"):
        return "scalar"
    if node.shape[1] == "1":
        return "column"
    return "row" if node.shape[0] == "1" else "matrix"


@cache
def depends_on(node: Node) -> frozenset[str]:
    """Names of the inputs (and the state) below it."""
    if node.op == "input":
        return frozenset((node.value,))
    return frozenset[str]().union(*(depends_on(a) for a in node.args))


def terms_of(node: Node) -> tuple[Term, ...]:
    """The node as a sum."""
    return tuple(zip(node.coefficients, node.args, strict=True)) if node.op == "add" else ((1, node),)


def factors_of(node: Node) -> tuple[Node, ...]:
    """The node as a broadcast product."""
    return node.args if node.op == "multiply" else (node,)


def split_coefficient(node: Node) -> Term:
    """Its integer factor and the rest."""
    return terms_of(node)[0] if node.op == "add" and len(node.args) == 1 else (1, node)


def broadcast_shape(shapes: Iterable[Shape]) -> Shape:
    """The shape to which all stretch; ValueError when two sides differ and neither is 1."""
    sides = ["1", "1"]
    for shape in shapes:
        for axis in (0, 1):
            if shape[axis] != "1" and sides[axis] not in ("1", shape[axis]):
                raise ValueError(f"cannot broadcast {shape} with {tuple(sides)}")
            sides[axis] = shape[axis] if shape[axis] != "1" else sides[axis]
    return (sides[0], sides[1])


# Sums and products

_RANK = {"scalar": 0, "column": 1, "row": 2, "matrix": 3}


def _factor_order(node: Node) -> tuple[int, bool, str]:
    return (_RANK[kind(node)], node.op in ("decay", "mask"), node.key)


def multiply(*factors: Node) -> Node:
    """Broadcasting Hadamard product, in normal form: flat, sorted, integer coefficients outside, no mask that another
    factor implies, ones only where they stretch the result."""
    shape = broadcast_shape(f.shape for f in factors)
    coefficient, flat = 1, list[Node]()
    for factor in factors:
        c, rest = split_coefficient(factor)
        coefficient *= c
        flat += factors_of(rest)
    if any(f.op == "add" and not f.args for f in flat):
        return zero(shape)
    flat = _drop_masks([f for f in flat if f.op != "ones"])
    real = broadcast_shape(f.shape for f in flat)
    if real != shape or not flat:
        flat.append(ones((_missing(real[0], shape[0]), _missing(real[1], shape[1]))))
    flat.sort(key=_factor_order)
    product = flat[0] if len(flat) == 1 else _node("multiply", tuple(flat), shape)
    return linear(((coefficient, product),))


def _missing(have: str, want: str) -> str:
    return "1" if have == want else want


def _drop_masks(factors: list[Node]) -> list[Node]:
    """Masks are idempotent, and one that the other factors imply goes: every kept factor is still lower."""
    masks = [f for f in factors if f.op == "mask"]
    others = [f for f in factors if f.op != "mask"]
    for m in sorted(masks, key=lambda m: m.value, reverse=True):  # strict before lower
        implied = is_strictly_lower if m.value == "strict" else is_lower
        if not any(map(implied, others)):
            others.append(m)
    return others


def _term_order(node: Node) -> tuple[bool, str]:
    return (node.op == "matmul", node.key)


def linear(terms: Iterable[Term]) -> Node:
    """Sum of terms of one shape or stretched to it; equal terms merge, cancelled ones go."""
    listed = tuple(terms)
    shape = broadcast_shape(t.shape for _, t in listed)
    merged: dict[Node, int] = {}
    for coefficient, term in listed:
        stretched = term if term.shape == shape else multiply(term, ones(shape))
        for inner, part in terms_of(stretched):
            merged[part] = merged.get(part, 0) + coefficient * inner
    kept = sorted(((n, c) for n, c in merged.items() if c), key=lambda p: _term_order(p[0]))
    if len(kept) == 1 and kept[0][1] == 1:
        return kept[0][0]
    return _node("add", tuple(n for n, _ in kept), shape, "", tuple(c for _, c in kept))


def add(*terms: Node) -> Node:
    return linear((1, t) for t in terms)


def subtract(left: Node, right: Node) -> Node:
    return linear(((1, left), (-1, right)))


def negate(node: Node) -> Node:
    return linear(((-1, node),))


def matmul(left: Node, right: Node) -> Node:
    """Matrix product. Over an inner dimension of 1 it is an outer product, that is a broadcast product."""
    if left.shape[1] != right.shape[0]:
        raise ValueError(f"cannot multiply {left.shape} with {right.shape}")
    shape = (left.shape[0], right.shape[1])
    if left.shape[1] == "1":
        return multiply(left, right)
    (c, a), (d, b) = split_coefficient(left), split_coefficient(right)
    if any(x.op == "add" and not x.args for x in (a, b)):
        return zero(shape)
    return linear(((c * d, _node("matmul", (a, b), shape)),))


@cache
def transpose(node: Node) -> Node:
    """Transpose, pushed to the leaves."""
    if node.shape == ("1", "1"):
        return node
    if node.op == "transpose":
        return node.args[0]
    if node.op == "multiply":
        return multiply(*map(transpose, node.args))
    if node.op == "add":
        return linear((c, transpose(t)) for c, t in terms_of(node)) if node.args else zero(_swapped(node))
    if node.op == "matmul":
        return matmul(transpose(node.args[1]), transpose(node.args[0]))
    if node.op in ("row_sum", "column_sum"):
        return (column_sum if node.op == "row_sum" else row_sum)(transpose(node.args[0]))
    if node.op == "ones":
        return ones(_swapped(node))
    return _node("transpose", (node,), _swapped(node))


def _swapped(node: Node) -> Shape:
    return (node.shape[1], node.shape[0])


def row_sum(node: Node) -> Node:
    """Sum over columns, [R, X] -> [R, 1]."""
    if node.shape[1] == "1":
        return node
    c, rest = split_coefficient(node)
    return linear(((c, _node("row_sum", (rest,), (node.shape[0], "1"))),))


def column_sum(node: Node) -> Node:
    """Sum over rows, [R, X] -> [1, X]."""
    if node.shape[0] == "1":
        return node
    c, rest = split_coefficient(node)
    return linear(((c, _node("column_sum", (rest,), ("1", node.shape[1]))),))


def inverse(node: Node) -> Node:
    """(I + L)^-1 of a strictly lower L; unit lower itself."""
    if not is_strictly_lower(node):
        raise ValueError(f"inverse of something that is not strictly lower: {node!r}")
    return _node("inverse", (node,), node.shape)


def topological(roots: Iterable[Node]) -> tuple[Node, ...]:
    """Every node below the roots, operands before users, in an order that depends on the roots alone."""
    order: dict[Node, None] = {}

    def visit(node: Node) -> None:
        if node not in order:
            for argument in node.args:
                visit(argument)
            order[node] = None

    for root in roots:
        visit(root)
    return tuple(order)
