"""Rewrites of sums over rows or columns. Each yields what a node may become; they hold over any commutative ring.

In a cotangent of a gate most of what is summed cancels: rows against columns of a matrix with a row and a column for
each token (`row_minus_column`). Such a matrix is summed as it was computed: as an operand of a matrix product it would
be rounded first, which costs a third more error, and several times more if only one half of what cancels were.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from qlagen.algebra.ir import (
    Node,
    broadcast_shape,
    column_sum,
    kind,
    linear,
    matmul,
    multiply,
    row_sum,
    terms_of,
    transpose,
)
from qlagen.algebra.ir_adjoint import row_minus_column
from qlagen.algebra.rewrite_products import unique, without

_SUMS: dict[str, Callable[[Node], Node]] = {
    "row_sum": row_sum,
    "column_sum": column_sum,
    "row_minus_column": row_minus_column,
}


def swap_trace(node: Node) -> Iterator[Node]:
    """row_sum(x * (a @ b)) -> row_sum(a * (x @ b^T)), column_sum(x * (a @ b)) -> column_sum(b * (a^T @ x))"""
    if node.op in ("row_sum", "column_sum"):
        for weight, left, right in _products(node.args[0]):
            if any(x.shape[0] == x.shape[1] for x in (weight, left, right)):
                continue
            if node.op == "row_sum":
                yield row_sum(multiply(left, matmul(weight, transpose(right))))
            else:
                yield column_sum(multiply(right, matmul(transpose(left), weight)))


def _products(node: Node) -> Iterator[tuple[Node, Node, Node]]:
    """Every way to see a broadcast product as x * (a @ b): x, a and b."""
    factors = node.args if node.op == "multiply" else ()
    for product in unique(factors):
        others = without(factors, product)
        if product.op == "matmul" and broadcast_shape(f.shape for f in others) == product.shape:
            left, right = product.args
            yield multiply(*others), left, right


def hoist_from_sum(node: Node) -> Iterator[Node]:
    """row_sum(s * x) -> s * row_sum(x); column_sum(x * s) -> column_sum(x) * s"""
    if node.op in ("row_sum", "column_sum") and node.args[0].op == "multiply":
        factors = node.args[0].args
        kept = ("scalar", "column") if node.op == "row_sum" else ("scalar", "row")
        for scale in unique(factors):
            rest = without(factors, scale)
            if kind(scale) in kept and broadcast_shape(f.shape for f in rest) == node.args[0].shape:
                yield multiply(scale, _SUMS[node.op](multiply(*rest)))


def push_into_sum(node: Node) -> Iterator[Node]:
    """s * row_sum(x) -> row_sum(s * x); column_sum(x) * s -> column_sum(x * s)"""
    if node.op == "multiply":
        for total in unique(node.args):
            others = without(node.args, total)
            fits = broadcast_shape(f.shape for f in others) in (total.shape, ("1", "1"))
            if total.op in ("row_sum", "column_sum") and fits and total.shape == node.shape:
                yield _SUMS[total.op](multiply(*others, total.args[0]))


def distribute_sum(node: Node) -> Iterator[Node]:
    """row_sum(a + b) -> row_sum(a) + row_sum(b)"""
    if node.op in _SUMS and len(terms_of(node.args[0])) > 1:
        yield linear((c, _SUMS[node.op](term)) for c, term in terms_of(node.args[0]))


def merge_sums(node: Node) -> Iterator[Node]:
    """row_sum(a) + row_sum(b) -> row_sum(a + b)"""
    terms = terms_of(node)
    for i, (c, first) in enumerate(terms):
        for j in range(i + 1, len(terms)):
            d, second = terms[j]
            if first.op == second.op and first.op in _SUMS and first.args[0].shape == second.args[0].shape:
                inner = linear(((c, first.args[0]), (d, second.args[0])))
                yield linear([*(t for k, t in enumerate(terms) if k not in (i, j)), (1, _SUMS[first.op](inner))])
