"""Forward mode on expressions, for token recurrences: how a result changes along a direction.

It shares no rule with `qlagen.algebra.adjoint`, which makes the two a check of each other. Recurrences have no gate
functions and no inverses, so sums and products are all there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from qlagen.algebra.ir import (
    Node,
    add,
    column_sum,
    input_node,
    linear,
    matmul,
    multiply,
    row_sum,
    terms_of,
    topological,
    transpose,
    zero,
)


def direction_of(node: Node) -> Node:
    """The input that stands for the change of an input; its name is no identifier of a spec."""
    return input_node(f"{node.value}'", node.shape)


def tangents(roots: Iterable[Node]) -> tuple[Node, ...]:
    """The change of each root when every input X changes by `direction_of` X, to first order."""
    listed = tuple(roots)
    known: dict[Node, Node] = {}
    for node in topological(listed):
        known[node] = _tangent(node, known)
    return tuple(known[root] for root in listed)


def _tangent(node: Node, known: Mapping[Node, Node]) -> Node:
    if node.op == "input":
        return direction_of(node)
    if node.op in ("mask", "ones", "last_row"):
        return zero(node.shape)
    if node.op == "transpose":
        return transpose(known[node.args[0]])
    if node.op in ("row_sum", "column_sum"):
        return (row_sum if node.op == "row_sum" else column_sum)(known[node.args[0]])
    if node.op == "add":
        return linear((c, known[t]) for c, t in terms_of(node)) if node.args else node
    if node.op == "matmul":
        left, right = node.args
        return add(matmul(known[left], right), matmul(left, known[right]))
    if node.op == "multiply":
        factors = node.args
        return add(*(multiply(*factors[:i], known[f], *factors[i + 1 :]) for i, f in enumerate(factors)))
    raise ValueError(f"{node.op} in a token recurrence")
