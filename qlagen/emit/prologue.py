"""What every thread of a CTA works out first: where its work lies."""

from __future__ import annotations

from qlagen.emit.constants import Entries
from qlagen.emit.context import Context
from qlagen.program.ir import Tensor


def prologue(context: Context) -> Entries:
    """Integers of the whole kernel, in the order in which they follow from one another."""
    if not context.carried:
        items = "chunk_count * value_heads"
        return (("iterations", f"T.truncdiv({items} - block + workers - 1, workers)"), ("cuts", "0"))
    tensors = [ring.load.tensor for ring in context.schedule.rings if ring.load is not None]
    return (*_place(tensors), *_neighbours(), *_chunks(tensors))


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
