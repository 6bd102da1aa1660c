"""Tables that tell the kernels where sequences, chunks and segments are. They are made on the device; the host reads
nothing.

| table | shape | meaning |
|---|---|---|
| ``cu_seqlens`` | [N + 1] | token offsets of the sequences |
| ``chunk_offsets`` | [N + 1] | running sum of the chunks of each sequence |
| ``chunk_first`` | [chunks] | first token of the chunk in each slot; 0 for an unused slot |
| ``chunk_rows`` | [chunks] | its tokens, fewer than C in a ragged tail; 0 for an unused slot |
| ``segment_offsets`` | [S + 1] | token offsets of the segments |
| ``segment_chunks`` | [S + 1] | slot of each segment's first chunk |
| ``segment_sequence`` | [S] | its sequence; -1 for an unused segment, which is empty and at the end |
| ``chains`` | [chains + 1, 2] | of each sequence of three segments or more: first row, rows; unused: 0, 0 |

All are int32. Packed sequences get ``T // C + N`` slots: enough whatever their lengths, and known to the host. Wrong
offsets are put right (start at 0, never decrease, end at T at most), so that no kernel leaves a tensor.

A sequence of c chunks has n segments in order, cut at whole chunks: the first c // n ones, and so on, as equally as can
be; an empty sequence has one. A segment that is not the last of its sequence has a row in what segments hand on: row
``s - segment_sequence[s]``, so that there are S - N rows and those of a sequence follow one another.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qla_ops.runtime import loader
from qla_ops.runtime.model import choose_length, segment_count
from qla_ops.runtime.plan import AUTOMATIC, CUT_NOTHING, Cutting

_CACHE_ENTRIES = 64


@dataclass(frozen=True)
class Tables:
    cu_seqlens: Tensor
    chunk_offsets: Tensor
    chunk_first: Tensor
    chunk_rows: Tensor
    chunk_count: int
    segment_offsets: Tensor
    segment_chunks: Tensor
    segment_sequence: Tensor
    chains: Tensor
    segments: int
    joints: int
    """Rows of what segments hand on: segments at most, less sequences."""
    chain_count: int


def equal_length_tables(batch: int, length: int, chunk: int, device: torch.device, parts: int = 1) -> Tables:
    """Tables of B sequences of T tokens each, cut into `parts` segments where their chunks allow.

    They depend on integers only, so they are kept: the last ones used, and for good those that are not of one stream
    alone: a CUDA graph holds addresses only, and another stream may read them later than this one frees them.
    """
    key = (batch, length, chunk, parts, device)
    stream, capturing = _stream(device), _capturing(device)
    with _LOCK:
        kept = _FOR_GOOD.get(key) or _CACHE.get(key)
        if kept is not None and kept.serves(stream, capturing):
            if capturing or stream != kept.stream:
                _FOR_GOOD[key] = kept
            elif key in _CACHE:
                _CACHE.move_to_end(key)
            return kept.tables
    tables = _equal_length_tables(batch, length, chunk, device, parts)
    # What is made while a CUDA graph is captured exists only when the graph is replayed.
    if kept is None and not capturing:
        with _LOCK:
            _CACHE[key] = _Kept(tables, stream, _mark(device))
            while len(_CACHE) > _CACHE_ENTRIES:
                _CACHE.popitem(last=False)
    return tables


def packed_tables(cu_seqlens: Tensor, tokens: int, chunk: int, cutting: Cutting = CUT_NOTHING) -> Tables:
    """Tables of packed sequences, made anew for each call: the offsets may have been overwritten in place."""
    sequences = cu_seqlens.shape[0] - 1
    count, segments = tokens // chunk + sequences, max(cutting.segments, sequences)
    chain_count = min(sequences, (segments - sequences) // 2)
    if cu_seqlens.device.type != "cuda":
        return _packed_tables(cu_seqlens, tokens, chunk, count, cutting)
    given = cu_seqlens.contiguous()
    # The last one is empty often; a tensor without memory has no address.
    sizes = (
        (sequences + 1,) * 2 + (count,) * 2 + (sequences + 1,) + (segments + 1,) * 2 + (segments, 2 * chain_count + 2)
    )
    made = [torch.empty(n, dtype=torch.int32, device=given.device) for n in sizes]
    numbers = (int(given.dtype == torch.int64), sequences, tokens, chunk, count, segments, chain_count)
    how = (cutting.parts, cutting.length, *cutting.weights)
    loader.function(loader.TABLES, "int32")(given, *made, *numbers, *how, loader.NOT_EARLY)
    offsets, chunk_offsets, first, rows, _, *cut = made
    return Tables(offsets, chunk_offsets, first, rows, count, *cut, segments, segments - sequences, chain_count)


def _packed_tables(cu_seqlens: Tensor, tokens: int, chunk: int, count: int, cutting: Cutting) -> Tables:
    """What the kernel `tables.cu` does, as torch operations."""
    inner = cu_seqlens[1:].clamp(0, tokens)
    offsets = torch.cat([torch.zeros_like(cu_seqlens[:1]), inner]).cummax(0).values.to(torch.int32)
    chunk_offsets = torch.zeros_like(offsets)
    lengths = offsets[1:] - offsets[:-1]
    chunks = (lengths + (chunk - 1)).div_(chunk, rounding_mode="floor")
    torch.cumsum(chunks, 0, out=chunk_offsets[1:])
    slots = torch.arange(count, dtype=torch.int32, device=offsets.device)
    sequence = torch.searchsorted(chunk_offsets[1:], slots, right=True)
    # Unused slots get sequence N: `first` is then past every token, and the end of "sequence N" is offsets[0], 0.
    first = (offsets - chunk_offsets * chunk)[sequence] + slots * chunk
    rows = (torch.roll(offsets, -1)[sequence] - first).clamp_(0, chunk)
    if cutting.parts == AUTOMATIC:
        lengths, length = chunks.tolist(), cutting.length
        # What the host took for the lengths may have changed since.
        if length == 0 or segment_count(lengths, length) > cutting.segments:
            length = choose_length(lengths, cutting.segments, cutting.weights)
        parts = (chunks + (length - 1)).div_(length, rounding_mode="floor").clamp_(min=1)
    else:
        parts = chunks.clamp(1, cutting.parts)
    sequences = len(chunks)
    segments = max(cutting.segments, sequences)
    chain_count = min(sequences, (segments - sequences) // 2)
    cut = _segment_tables(offsets, chunk_offsets, chunk, parts, segments)
    chains = torch.zeros(2 * chain_count + 2, dtype=torch.int32, device=offsets.device)
    chained = (parts > 2).nonzero().flatten()
    starts = parts.cumsum(0) - parts
    chains[: 2 * len(chained)] = torch.stack([starts[chained] - chained, parts[chained] - 1], 1).flatten()
    first.masked_fill_(rows == 0, 0)
    joints = segments - sequences
    return Tables(offsets, chunk_offsets, first, rows, count, *cut, chains, segments, joints, chain_count)


def _segment_tables(
    offsets: Tensor, chunk_offsets: Tensor, chunk: int, parts: Tensor, segments: int
) -> tuple[Tensor, Tensor, Tensor]:
    """segment_offsets, segment_chunks and segment_sequence of sequences that are cut into `parts` segments each."""
    sequences = parts.shape[0]
    if sequences == 0:
        nothing = torch.zeros(segments + 1, dtype=torch.int32, device=parts.device)
        return nothing, nothing, nothing[:segments]
    ends = parts.cumsum(0)
    segment = torch.arange(segments + 1, dtype=torch.int64, device=parts.device)
    sequence = torch.searchsorted(ends, segment, right=True)
    owner = sequence.masked_fill(sequence == sequences, -1)[:segments]
    # An unused segment lies behind the last sequence.
    sequence.clamp_(max=sequences - 1)
    chunks, within = chunk_offsets.diff()[sequence], segment - (ends - parts)[sequence]
    before = (within * chunks).div(parts[sequence], rounding_mode="floor").minimum(chunks)
    start = (offsets[sequence] + before * chunk).minimum(offsets[sequence + 1])
    return start.to(torch.int32), (chunk_offsets[sequence] + before).to(torch.int32), owner.to(torch.int32)


def _equal_length_tables(batch: int, length: int, chunk: int, device: torch.device, parts: int) -> Tables:
    per_sequence = -(-length // chunk)
    parts = max(1, min(parts, per_sequence))
    sequences = torch.arange(batch + 1, dtype=torch.int32, device=device)
    slots = torch.arange(batch * per_sequence, dtype=torch.int32, device=device)
    within = slots % max(per_sequence, 1) * chunk
    offsets, chunk_offsets = sequences * length, sequences * per_sequence
    many = torch.full((batch,), parts, dtype=torch.int32, device=device)
    cut = _segment_tables(offsets, chunk_offsets, chunk, many, batch * parts)
    return Tables(
        cu_seqlens=offsets,
        chunk_offsets=chunk_offsets,
        chunk_first=slots.div(max(per_sequence, 1), rounding_mode="floor") * length + within,
        chunk_rows=(length - within).clamp_(max=chunk),
        chunk_count=batch * per_sequence,
        segment_offsets=cut[0],
        segment_chunks=cut[1],
        segment_sequence=cut[2],
        chains=torch.stack([sequences * (parts - 1), torch.full_like(sequences, parts - 1)], 1).flatten(),
        segments=batch * parts,
        joints=batch * (parts - 1),
        chain_count=batch if parts > 2 else 0,
    )


@dataclass
class _Kept:
    """Tables, the stream that they were made on, and whether they are there for other streams too."""

    tables: Tables
    stream: int
    made: Any
    """An event behind the kernels that made them; None once they have run."""

    def serves(self, stream: int, capturing: bool) -> bool:
        # A capture forbids questions about events.
        if self.made is not None and not capturing and self.made.query():
            self.made = None
        return stream == self.stream or self.made is None


def _mark(device: torch.device) -> Any:
    return torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None


def _stream(device: torch.device) -> int:
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


_LOCK = threading.Lock()
_Key = tuple[int, int, int, int, torch.device]
_CACHE: OrderedDict[_Key, _Kept] = OrderedDict()
_FOR_GOOD: dict[_Key, _Kept] = {}
