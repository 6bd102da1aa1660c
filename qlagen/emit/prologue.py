"""What every thread of a CTA works out first: where its work lies."""

from __future__ import annotations

from qlagen.emit.constants import Entries
from qlagen.emit.context import HEAD, HEADS, Context
from qlagen.program.ir import Segment, Tensor

_USED = ("used", "T.if_then_else(has_spare_chunks != 0, segment_chunks[segment_bounds - 1], chunk_count)")
"""Slots with a chunk: those without are the last ones. Where the host knows that there are none, nothing is read."""
WARM_UP = "warm_up_chunks"
"""The device function that counts chunks back from a segment's end, see `segment.cuh.jinja`."""


def prologue(context: Context) -> Entries:
    """Integers of the whole kernel, in the order in which they follow from one another."""
    tensors = [ring.load.tensor for ring in context.schedule.rings if ring.load is not None]
    if not context.carried:
        shared = any(tensor.head == "key" for tensor in tensors)
        items = f"used * {'value_heads' if context.heads == 1 else 'units'}"
        loop = (_USED, ("iterations", f"T.truncdiv({items} - block + workers - 1, workers)"), ("cuts", "0"))
        if context.heads == 1:
            return loop
        ratio = ("ratio", "T.truncdiv(value_heads, key_heads)" if shared else "value_heads")
        each = "HEADS" if context.keys == 1 else "HEADS_PER_KEY"
        groups = ("groups", f"T.truncdiv(ratio + {each} - 1, {each})")
        keys = "key_heads" if context.keys == 1 else "T.truncdiv(key_heads + KEYS - 1, KEYS)"
        return (ratio, groups, ("units", f"{keys} * groups" if shared else "groups"), *loop)
    own = _chunks(tensors) if context.segment is None else _warm_up(context.segment)
    return (*_place(tensors), *_neighbours(), *own)


def _place(tensors: list[Tensor]) -> Entries:
    """The CTA's segment, heads and columns."""
    values = [
        ("segment", "T.truncdiv(block, TILES * value_heads)"),
        ("value_head", "T.truncmod(T.truncdiv(block, TILES), value_heads)"),
    ]
    if any(tensor.head == "key" for tensor in tensors):
        values += [("key_head", "T.truncdiv(value_head, T.truncdiv(value_heads, key_heads))")]
    return (*values, ("value_column", "T.truncmod(block, TILES) * VALUE_TILE"))


def _neighbours() -> Entries:
    """The segment's sequence, -1 if it has none, and whether it is the sequence's first, a later one, the last."""
    first = "T.Or(segment == 0, sequence_before != sequence)"
    last = "T.Or(segment == segments - 1, sequence_after != sequence)"
    return (
        ("sequence", "segment_sequence[segment]"),
        ("sequence_before", "segment_sequence[T.max(segment - 1, 0)]"),
        ("sequence_after", "segment_sequence[T.min(segment + 1, segments - 1)]"),
        ("opens", f"T.if_then_else(T.And(sequence >= 0, {first}), 1, 0)"),
        ("follows", "T.if_then_else(sequence >= 0, 1 - opens, 0)"),
        ("closes", f"T.if_then_else(T.And(sequence >= 0, {last}), 1, 0)"),
    )


def _chunks(tensors: list[Tensor]) -> Entries:
    """The segment's tokens and chunks."""
    values = [("first", "segment_offsets[segment]"), ("end", "segment_offsets[segment + 1]")]
    if any(tensor.layout == "chunk" for tensor in tensors):
        values += [("first_slot", "segment_chunks[segment]")]
    return (
        *values,
        ("whole", "T.truncdiv(end - first, CHUNK)"),
        ("iterations", "T.truncdiv(end - first + CHUNK - 1, CHUNK)"),
    )


def _warm_up(segment: Segment) -> Entries:
    """The chunks that a segment's map or state needs: all of them, or so many of its last ones that what comes before
    is forgotten (`warm_up`; then there is no map). The last segment of a sequence has nothing to tell."""
    active = "T.And(closes == 0, T.Or(value_column < VALUE_DIM, joined != 0))"
    return (
        ("first", "segment_offsets[segment]"),
        ("chunks", "T.if_then_else(closes == 0, T.truncdiv(segment_offsets[segment + 1] - first, CHUNK), 0)"),
        ("first_slot", "segment_chunks[segment]"),
        ("warm_up", "0" if segment.bound is None else _count(segment.bound)),
        ("joined", "T.if_then_else(warm_up == 0, follows, 0)"),
        ("active", f"T.if_then_else({active}, T.if_then_else(sequence >= 0, 1, 0), 0)"),
        ("iterations", "active * T.if_then_else(warm_up > 0, warm_up, chunks)"),
        ("first", "first + (chunks - iterations) * CHUNK"),
        ("first_slot", "first_slot + chunks - iterations"),
    )


def _count(bound: Tensor) -> str:
    """The device function's call: from the total of the segment's first chunk on."""
    arguments = (
        *('"int32"', f'"{WARM_UP}"', f"T.address_of({bound.name}[first_slot, {HEAD[bound.head]}, CHUNK - 1])"),
        *(f"{HEADS[bound.head]} * CHUNK", "chunks", "skip_threshold"),
    )
    return "\n    ".join(("T.call_extern(", *(f"{argument}," for argument in arguments))) + "\n)"
