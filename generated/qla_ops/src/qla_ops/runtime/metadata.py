"""Tables that tell the kernels where sequences and chunks are. They are made on the device; the host reads nothing.

| table | shape | meaning |
|---|---|---|
| ``cu_seqlens`` | [N + 1] | token offsets of the sequences |
| ``chunk_offsets`` | [N + 1] | running sum of the chunks of each sequence |
| ``chunk_first`` | [chunks] | first token of the chunk in each slot; 0 for an unused slot |
| ``chunk_rows`` | [chunks] | its tokens, fewer than C in a ragged tail; 0 for an unused slot |

All are int32. Packed sequences get ``T // C + N`` slots: enough whatever their lengths, and known to the host. Wrong
offsets are put right (start at 0, never decrease, end at T at most), so that no kernel leaves a tensor.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor

from qla_ops.runtime import loader

_CACHE_ENTRIES = 64


@dataclass(frozen=True)
class Tables:
    cu_seqlens: Tensor
    chunk_offsets: Tensor
    chunk_first: Tensor
    chunk_rows: Tensor
    chunk_count: int


def equal_length_tables(batch: int, length: int, chunk: int, device: torch.device) -> Tables:
    """Tables of B sequences of T tokens each. They depend on integers only, so they are kept."""
    key = (batch, length, chunk, device, _stream(device))
    with _LOCK:
        if key in _CACHE:
            _CACHE.move_to_end(key)
            return _CACHE[key]
    tables = _equal_length_tables(batch, length, chunk, device)
    # What is made while a CUDA graph is captured exists only when the graph is replayed.
    if not _capturing(device):
        with _LOCK:
            _CACHE[key] = tables
            while len(_CACHE) > _CACHE_ENTRIES:
                _CACHE.popitem(last=False)
    return tables


def packed_tables(cu_seqlens: Tensor, tokens: int, chunk: int) -> Tables:
    """Tables of packed sequences, made anew for each call: the offsets may have been overwritten in place."""
    sequences = cu_seqlens.shape[0] - 1
    count = tokens // chunk + sequences
    if cu_seqlens.device.type != "cuda":
        return _packed_tables(cu_seqlens, tokens, chunk, count)
    given = cu_seqlens.contiguous()
    sizes = (sequences + 1, sequences + 1, count, count)
    offsets, chunk_offsets, first, rows = (torch.empty(n, dtype=torch.int32, device=given.device) for n in sizes)
    launch, wide = loader.function(loader.TABLES, "int32"), int(given.dtype == torch.int64)
    launch(given, offsets, chunk_offsets, first, rows, wide, sequences, tokens, chunk, count)
    return Tables(offsets, chunk_offsets, first, rows, count)


def _packed_tables(cu_seqlens: Tensor, tokens: int, chunk: int, count: int) -> Tables:
    """What the kernel `tables.cu` does, as torch operations."""
    inner = cu_seqlens[1:].clamp(0, tokens)
    offsets = torch.cat([torch.zeros_like(cu_seqlens[:1]), inner]).cummax(0).values.to(torch.int32)
    chunk_offsets = torch.zeros_like(offsets)
    lengths = offsets[1:] - offsets[:-1]
    torch.cumsum((lengths + (chunk - 1)).div_(chunk, rounding_mode="floor"), 0, out=chunk_offsets[1:])
    slots = torch.arange(count, dtype=torch.int32, device=offsets.device)
    sequence = torch.searchsorted(chunk_offsets[1:], slots, right=True)
    # Unused slots get sequence N: `first` is then past every token, and the end of "sequence N" is offsets[0], 0.
    first = (offsets - chunk_offsets * chunk)[sequence] + slots * chunk
    rows = (torch.roll(offsets, -1)[sequence] - first).clamp_(0, chunk)
    return Tables(offsets, chunk_offsets, first.masked_fill(rows == 0, 0), rows, count)


def _equal_length_tables(batch: int, length: int, chunk: int, device: torch.device) -> Tables:
    per_sequence = -(-length // chunk)
    sequences = torch.arange(batch + 1, dtype=torch.int32, device=device)
    slots = torch.arange(batch * per_sequence, dtype=torch.int32, device=device)
    within = slots % max(per_sequence, 1) * chunk
    first = slots.div(max(per_sequence, 1), rounding_mode="floor") * length + within
    return Tables(
        cu_seqlens=sequences * length,
        chunk_offsets=sequences * per_sequence,
        chunk_first=first,
        chunk_rows=(length - within).clamp_(max=chunk),
        chunk_count=batch * per_sequence,
    )


def _stream(device: torch.device) -> int:
    """Tables made on one stream are not yet there for another."""
    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0


def _capturing(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


_LOCK = threading.Lock()
_CACHE: OrderedDict[tuple[int, int, int, torch.device, int], Tables] = OrderedDict()
