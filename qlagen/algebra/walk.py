"""Walks over expressions: orders, rebuilding and replacing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from qlagen.algebra.ir import (
    Node,
    Op,
    before,
    column_sum,
    decay,
    each,
    from_start,
    gdot,
    inverse,
    last,
    linear,
    matmul,
    multiply,
    row_sum,
    to_end,
    topological,
    total,
    transpose,
)
from qlagen.algebra.ir_adjoint import (
    at_last,
    following,
    gapply,
    gapply_transposed,
    head_sum,
    row_minus_column,
    step_sum,
    suffix_sum,
)

__all__ = ["compute_nodes", "substitute", "topological", "with_args"]


def with_args(node: Node, args: tuple[Node, ...]) -> Node:
    """The same operation on other operands, in normal form."""
    if node.op == "add":
        return linear(zip(node.coefficients, args, strict=True)) if args else node
    if node.op in _UNARY:
        return _UNARY[node.op](args[0])
    if node.op in ("multiply", "matmul"):
        return (multiply if node.op == "multiply" else matmul)(*args)
    if node.op in _TERNARY:
        return _TERNARY[node.op](*args)
    if node.op in ("each", "at_last"):
        return (each if node.op == "each" else at_last)(args[0], node.shape[0])
    return node


_UNARY: dict[Op, Callable[[Node], Node]] = {
    "transpose": transpose,
    "row_sum": row_sum,
    "column_sum": column_sum,
    "row_minus_column": row_minus_column,
    "suffix_sum": suffix_sum,
    "following": following,
    "step_sum": step_sum,
    "head_sum": head_sum,
    "inverse": inverse,
    "from_start": from_start,
    "to_end": to_end,
    "total": total,
    "decay": decay,
    "before": before,
    "last": last,
}
_TERNARY: dict[Op, Callable[[Node, Node, Node], Node]] = {
    "gdot": gdot,
    "gapply": gapply,
    "gapply_transposed": gapply_transposed,
}


def substitute(roots: Iterable[Node], replacements: Mapping[Node, Node]) -> tuple[Node, ...]:
    """The roots with every replaced node exchanged, once, wherever it occurs; give transposes as well if they count."""
    done: dict[Node, Node] = dict(replacements)

    def rebuild(node: Node) -> Node:
        found = done.get(node)
        if found is None:
            args = tuple(map(rebuild, node.args))
            unchanged = all(a is b for a, b in zip(args, node.args, strict=True))
            found = done[node] = node if unchanged else with_args(node, args)
        return found

    return tuple(map(rebuild, roots))


def compute_nodes(roots: Iterable[Node]) -> Iterator[Node]:
    """What is really computed below the roots, operands first: no inputs, constants or transposes, and of an
    expression and its transpose only the first."""
    seen: set[Node] = set()
    for node in topological(roots):
        if node.op not in ("input", "mask", "ones", "last_row", "transpose") and node not in seen:
            seen.update((node, transpose(node)))
            yield node
