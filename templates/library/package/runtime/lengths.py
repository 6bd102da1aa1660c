"""What the host knows of packed sequences: the chunks of each, where the caller gives the offsets on the CPU as well.

The numbers choose a plan, and nothing else: tables are made on the device from ``cu_seqlens``, and whatever is in there
by the time the kernels run, their results are right.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor

from qla_ops.runtime.arguments import check_offset_values
from qla_ops.runtime.model import Groups, segment_count
from qla_ops.runtime.plan import AUTOMATIC, NEVER, Cutting

_FINE_BITS = 4
"""Lengths that agree in so many leading bits get one plan, so that few plans are made while sequences grow."""


@dataclass(frozen=True)
class Lengths:
    chunks: tuple[int, ...]
    """Of each sequence."""
    groups: Groups
    """The same, rounded up and counted: what a plan is chosen for."""


def known_lengths(function: str, offsets: Tensor, tokens: int, chunk: int) -> Lengths:
    """Of `offsets` [N + 1] on the CPU. Raises ValueError when they are no offsets of `tokens` tokens.

    A model's layers give the same tensor one after another: the last one's are remembered.
    """
    global _LAST
    # A tensor made in inference mode counts no changes.
    version = -1 if offsets.is_inference() else offsets._version
    key = (version, tokens, chunk)
    last = _LAST
    if version >= 0 and last is not None and last[0]() is offsets and last[1] == key:
        return last[2]
    values = offsets.tolist()
    check_offset_values(function, "cu_seqlens_cpu", values, tokens)
    chunks = tuple([-(-(end - start) // chunk) for start, end in pairwise(values)])
    found = Lengths(chunks, group(chunks))
    _LAST = (weakref.ref(offsets), key, found)
    return found


def group(chunks: Sequence[int]) -> Groups:
    """(how many, chunks of each), the longest first."""
    return tuple((count, length) for length, count in sorted(Counter(map(_rounded, chunks)).items(), reverse=True))


def _rounded(length: int) -> int:
    step = 1 << max(length.bit_length() - _FINE_BITS, 0)
    return -(-length // step) * step


def fit(cutting: Cutting, lengths: Lengths) -> Cutting:
    """With room for as many segments as these lengths need."""
    if cutting.parts == NEVER:
        return cutting
    if cutting.parts == AUTOMATIC:
        return cutting._replace(segments=segment_count(lengths.chunks, cutting.length))
    return cutting._replace(segments=sum(max(1, min(cutting.parts, chunks)) for chunks in lengths.chunks))


_LAST: tuple[weakref.ref[Tensor], tuple[int, int, int], Lengths] | None = None
