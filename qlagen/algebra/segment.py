"""The map of a segment: how the state after some tokens depends on the state before them.

Every operator of the language that is linear in its state from the left has ``S_out = M S_in + B`` with M, [K, K], and
B, [K, V], free of the state. Maps compose: after (M1, B1) and then (M2, B2) comes (M2 M1, M2 B1 + B2), which is
associative, so segments can be run in parallel and joined by a scan. M is kept as a diagonal and a rest, because only
the rest costs matrix products.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from qlagen.algebra.fields import Array
from qlagen.algebra.ir import (
    Node,
    add,
    depends_on,
    input_node,
    kind,
    linear,
    matmul,
    multiply,
    ones,
    terms_of,
    transpose,
    zero,
)
from qlagen.algebra.walk import substitute


@dataclass(frozen=True)
class SegmentMap:
    """M = diagonal * I + rest."""

    diagonal: Node
    """[1, 1], or [K, 1] with a value for each channel."""
    rest: Node
    """[K, K]; zero when M is diagonal."""
    write: Node
    """B, [K, V]."""

    @property
    def is_diagonal(self) -> bool:
        return _is_zero(self.rest)


def segment_map(state_out: Node, name: str) -> SegmentMap | None:
    """The map of an expression for the next state, over the state called `name`; None when the state is multiplied
    from the right or not linearly."""
    state = input_node(name, state_out.shape)
    (write,) = substitute((state_out,), {state: zero(state.shape), transpose(state): zero(transpose(state).shape)})
    found = _left_part(state_out, state)
    if found is None or name in depends_on(write):
        return None
    return SegmentMap(found.diagonal, found.rest, write)


@dataclass(frozen=True)
class _Left:
    """An expression's part that is linear in S: diagonal * S + rest @ S; only [K, V] ones have a diagonal."""

    diagonal: Node
    rest: Node


def _is_zero(node: Node) -> bool:
    return node.op == "add" and not node.args


def _left_part(node: Node, state: Node) -> _Left | None:
    rows = (node.shape[0], state.shape[0])
    none = zero(("1", "1"))
    if node is state:
        return _Left(ones(("1", "1")), zero(rows))
    if state.value not in depends_on(node):
        return _Left(none, zero(rows))
    if node.op == "add":
        return _sum_part(node, state)
    if node.op == "multiply":
        return _product_part(node, state)
    if node.op == "matmul" and state.value not in depends_on(node.args[0]):
        inner = _left_part(node.args[1], state)
        if inner is None:
            return None
        scaled = zero(rows) if _is_zero(inner.diagonal) else multiply(node.args[0], transpose(inner.diagonal))
        return _Left(none, add(matmul(node.args[0], inner.rest), scaled))
    return None


def _sum_part(node: Node, state: Node) -> _Left | None:
    parts = [(c, _left_part(term, state)) for c, term in terms_of(node)]
    found = [(c, part) for c, part in parts if part is not None]
    if len(found) < len(parts):
        return None
    return _Left(linear((c, p.diagonal) for c, p in found), linear((c, p.rest) for c, p in found))


def _product_part(node: Node, state: Node) -> _Left | None:
    carried = [f for f in node.args if state.value in depends_on(f)]
    scales = [f for f in node.args if state.value not in depends_on(f)]
    if len(carried) != 1 or any(kind(s) not in ("scalar", "column") for s in scales):
        return None
    inner = _left_part(carried[0], state)
    if inner is None:
        return None
    diagonal = inner.diagonal if _is_zero(inner.diagonal) else multiply(*scales, inner.diagonal)
    return _Left(diagonal, multiply(*scales, inner.rest))


def compose(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
    """The map of two segments, one after the other, each (M, B): [K, K] and [K, V]."""
    return second[0] @ first[0], second[0] @ first[1] + second[1]


def full_map(diagonal: Array, rest: Array) -> Array:
    """M, [K, K], from the values of `SegmentMap.diagonal` and `rest`."""
    return np.asarray(np.eye(len(rest)) * diagonal + rest)
