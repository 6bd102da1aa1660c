"""Errors of an implementation's outputs, per sequence and head.

The error is the relative L2 distance of one head's values in one sequence from the oracle's: a tolerance over a
whole tensor would hide one wrong head or one wrong short sequence.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qlagen.verify.rounding import SMALLEST_NORMAL, StorageType

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    """Where an output is worst. `chunk` counts from the start of the sequence; None for a state.

    `sequence` None means the rows that belong to no sequence, which must be zero.
    """

    sequence: int | None
    head: int
    chunk: int | None = None

    def __str__(self) -> str:
        where = "past the end" if self.sequence is None else f"sequence {self.sequence}"
        return f"{where}, head {self.head}" + ("" if self.chunk is None else f", chunk {self.chunk}")


def sequence_spans(batch: int, tokens: int, cu_seqlens: npt.NDArray[np.int64] | None) -> list[tuple[int, int]]:
    """First and end row of every sequence in the flattened [B * T] token axis."""
    offsets = np.arange(batch + 1) * tokens if cu_seqlens is None else cu_seqlens
    return [(int(first), int(end)) for first, end in itertools.pairwise(offsets)]


def relative_errors(got: Array, expected: Array, storage: StorageType) -> Array:
    """Relative L2 error of each head, of arrays [heads, values].

    Infinite where the output is not finite, zero where the oracle is not (a spoiled sequence). A reference smaller than
    the smallest normal number of the output's type counts as that large; against a zero one any error is enormous.
    """
    size = expected.shape[1]
    floor = SMALLEST_NORMAL[storage] * np.sqrt(size)
    with np.errstate(invalid="ignore", over="ignore"):
        distance = np.linalg.norm(got - expected, axis=1)
    errors = distance / np.maximum(np.linalg.norm(expected, axis=1), floor) if size else np.zeros(len(expected))
    errors = np.where(np.isfinite(errors), errors, np.inf)
    return np.where(np.all(np.isfinite(expected), axis=1), errors, 0.0)


def output_errors(got: Array, expected: Array, spans: list[tuple[int, int]], storage: StorageType) -> Array:
    """[N, Hv] errors of the per-token output [B, T, Hv, V]; 0 for sequences without tokens."""
    got, expected = _by_head(got), _by_head(expected)
    heads = len(expected)
    rows = [
        relative_errors(got[:, a:b].reshape(heads, -1), expected[:, a:b].reshape(heads, -1), storage) for a, b in spans
    ]
    return np.array(rows).reshape(len(spans), heads)


def state_errors(got: Array, expected: Array) -> Array:
    """[N, Hv] errors of the final state [N, Hv, K, V]."""
    count, heads = expected.shape[:2]
    size = expected.shape[2] * expected.shape[3]
    got, expected = got.reshape(count * heads, size), expected.reshape(count * heads, size)
    return relative_errors(got, expected, "float32").reshape(count, heads)


def nonzero_past_end(got: Array, spans: list[tuple[int, int]]) -> int | None:
    """The first head of o [B, T, Hv, V] that has something else than zero after the last sequence, if any."""
    tail = _by_head(got)[:, spans[-1][1] if spans else 0 :]
    wrong = np.flatnonzero(np.any(tail != 0, axis=(1, 2)))
    return int(wrong[0]) if len(wrong) else None


def worst_chunk(got: Array, expected: Array, span: tuple[int, int], head: int, chunk: int) -> int | None:
    """The chunk of one head and sequence that adds most to the error of o; the first one that is not finite."""
    rows = slice(*span)
    with np.errstate(invalid="ignore", over="ignore"):
        squares = np.sum((_by_head(got)[head, rows] - _by_head(expected)[head, rows]) ** 2, axis=1)
    if not len(squares):
        return None
    sums = np.add.reduceat(squares, np.arange(0, len(squares), chunk))
    return int(np.argmax(np.where(np.isfinite(sums), sums, np.inf)))


def _by_head(output: Array) -> Array:
    """[B, T, Hv, V] as [Hv, B * T, V]."""
    batch, tokens, heads, size = output.shape
    return np.swapaxes(output.reshape(batch * tokens, heads, size), 0, 1)
