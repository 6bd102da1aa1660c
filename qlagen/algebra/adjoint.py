"""Reverse mode on expressions: from cotangents of results to cotangents of everything below them.

The cotangent of a node X is the matrix dX for which the change of the scalar that is differentiated is <dX, change of
X>, the sum of the entries' products. Each operation passes its own on to its operands by the transpose of its
derivative; those of the inverse are Giles, "Collected Matrix Derivative Results for Forward and Reverse Mode
Algorithmic Differentiation", 2008, section 2.2.3. All stay in the language, so that decays keep exponents <= 0.

Where an operand is known to be zero, its cotangent is arbitrary: what consumes it masks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from qlagen.algebra.ir import (
    Node,
    Op,
    add,
    column_sum,
    linear,
    matmul,
    multiply,
    negate,
    ones,
    row_sum,
    subtract,
    terms_of,
    topological,
    transpose,
)
from qlagen.algebra.ir_adjoint import (
    at_last,
    following,
    gapply,
    gapply_transposed,
    last_row,
    row_minus_column,
    step_sum,
)
from qlagen.spec.model import Shape

Contribution = tuple[Node, Node]
"""An operand and what its cotangent gains."""


def adjoints(seeds: Iterable[Contribution]) -> dict[Node, Node]:
    """Cotangents of every node below the seeds that has one, by node; a seed is a result and its cotangent.

    The shapes are those of the nodes. An operation without a rule raises ValueError.
    """
    known: dict[Node, Node] = {}

    def gain(node: Node, cotangent: Node) -> None:
        if cotangent.op != "add" or cotangent.args:
            reduced = reduce_to(cotangent, node.shape)
            known[node] = add(known[node], reduced) if node in known else reduced

    listed = tuple(seeds)
    for node, cotangent in listed:
        gain(node, cotangent)
    for node in reversed(topological(node for node, _ in listed)):
        if node in known:
            for operand, contribution in contributions(node, known[node]):
                gain(operand, contribution)
    return known


def reduce_to(cotangent: Node, shape: Shape) -> Node:
    """The cotangent of something that was stretched from `shape`: sums over the stretched dimensions."""
    reduced = row_sum(cotangent) if shape[1] == "1" else cotangent
    return column_sum(reduced) if shape[0] == "1" else reduced


def contributions(node: Node, cotangent: Node) -> Iterator[Contribution]:
    """What a node's cotangent adds to those of its operands; an operand may come several times."""
    if node.op not in _RULES:
        raise ValueError(f"{node.op} has no derivative")
    yield from _RULES[node.op](node, cotangent)


def _none(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield from ()


def _transpose(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], transpose(cotangent)


def _matmul(node: Node, cotangent: Node) -> Iterator[Contribution]:
    left, right = node.args
    yield left, matmul(cotangent, transpose(right))
    yield right, matmul(transpose(left), cotangent)


def _multiply(node: Node, cotangent: Node) -> Iterator[Contribution]:
    for place, factor in enumerate(node.args):
        if factor.op not in ("ones", "mask"):
            others = (*node.args[:place], *node.args[place + 1 :])
            yield factor, multiply(cotangent, *others)


def _add(node: Node, cotangent: Node) -> Iterator[Contribution]:
    for coefficient, term in terms_of(node):
        yield term, linear(((coefficient, cotangent),))


def _sum(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], multiply(cotangent, ones(node.args[0].shape))


def _inverse(node: Node, cotangent: Node) -> Iterator[Contribution]:
    """A = (I + L)^-1 changes by -A dL A."""
    turned = transpose(node)
    yield node.args[0], negate(matmul(matmul(turned, cotangent), turned))


def _gdot(node: Node, cotangent: Node) -> Iterator[Contribution]:
    left, right, gate = node.args
    rows, columns = gapply(cotangent, right, gate), gapply_transposed(cotangent, left, gate)
    yield left, rows
    yield right, columns
    yield from _between(gate, multiply(left, rows), multiply(right, columns))


def _from_start(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], multiply(cotangent, node)


def _to_end(node: Node, cotangent: Node) -> Iterator[Contribution]:
    """exp(G_last - G_i): every row pulls at the last one."""
    pull = multiply(cotangent, node)
    yield node.args[0], subtract(multiply(last_row(node.shape[0]), column_sum(pull)), pull)


def _total(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], multiply(last_row(node.args[0].shape[0]), cotangent, node)


def _decay(node: Node, cotangent: Node) -> Iterator[Contribution]:
    """exp(G_i - G_j): rows gain what columns lose."""
    pull, gate = multiply(cotangent, node), node.args[0]
    if gate.op == "before":
        yield from _between(gate, row_sum(pull), transpose(column_sum(pull)))
    else:
        yield gate, row_minus_column(pull)


def _between(gate: Node, rows: Node, columns: Node) -> Iterator[Contribution]:
    """Of exponents G_i - G_j; where the rows have the gate before their own decay the columns still have the gate."""
    if gate.op == "before":
        yield gate, rows
        yield gate.args[0], negate(columns)
    else:
        yield gate, subtract(rows, columns)


def _before(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], following(cotangent)


def _each(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], step_sum(cotangent)


def _last(node: Node, cotangent: Node) -> Iterator[Contribution]:
    yield node.args[0], at_last(cotangent, node.args[0].shape[0])


_RULES: dict[Op, Callable[[Node, Node], Iterator[Contribution]]] = {
    "input": _none,
    "mask": _none,
    "ones": _none,
    "last_row": _none,
    "transpose": _transpose,
    "matmul": _matmul,
    "multiply": _multiply,
    "add": _add,
    "row_sum": _sum,
    "column_sum": _sum,
    "inverse": _inverse,
    "from_start": _from_start,
    "to_end": _to_end,
    "total": _total,
    "decay": _decay,
    "gdot": _gdot,
    "before": _before,
    "each": _each,
    "last": _last,
}
