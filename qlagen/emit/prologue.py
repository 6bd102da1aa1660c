"""What every thread of a CTA works out first, and of every item: where its work lies."""

from __future__ import annotations

from qlagen.emit.constants import Entries
from qlagen.emit.context import DONE, HEAD, HEADS, Context, chunk_items
from qlagen.emit.places import FEW, TABLED, counted_chunks, finds_places
from qlagen.program.ir import Segment, Tensor

_SLOTS = "segment_chunks[segment_bounds - 1]"
"""Slots with a chunk: those without are the last ones."""
WARM_UP = "warm_up_chunks"
"""The device function that counts chunks back from a segment's end, see `segment.cuh.jinja`."""
JOINT_SEGMENT = "joint_segment"
"""The device function that finds the segment of a joint."""
_ALL = "TILES * value_heads * segments"
"""The items of a carried kernel: segments, heads and columns."""


def prologue(context: Context) -> Entries:
    """Integers of the whole kernel, in the order in which they follow from one another."""
    if context.persistent:
        return (("item", "block"), ("done", "0"), *(() if context.segment else (("cuts", "0"),)))
    if not context.carried:
        shared = any(tensor.head == "key" for tensor in _loaded(context))
        loop = (*_used(context), ("iterations", _share(chunk_items(context))), ("cuts", "0"))
        if context.heads == 1:
            return loop
        ratio = ("ratio", "T.truncdiv(value_heads, key_heads)" if shared else "value_heads")
        each = "HEADS" if context.keys == 1 else "HEADS_PER_KEY"
        groups = ("groups", f"T.truncdiv(ratio + {each} - 1, {each})")
        keys = "key_heads" if context.keys == 1 else "T.truncdiv(key_heads + KEYS - 1, KEYS)"
        return (ratio, groups, ("units", f"{keys} * groups" if shared else "groups"), *loop)
    return _item(context, "block")


def _used(context: Context) -> Entries:
    """Integers up to the number of chunks. Where the host knows that every slot has one, no table is read."""
    few = counted_chunks() if finds_places(context) else ()
    counted = f"T.if_then_else({FEW} != 0, {TABLED}, {_SLOTS})" if few else _SLOTS
    return (*few, ("used", f"T.if_then_else(has_spare_chunks != 0, {counted}, chunk_count)"))


def grid(context: Context) -> str:
    """The CTAs of a launch."""
    if not context.carried or context.persistent:
        return "workers"
    return "(TILES + (turns - 1) * STATE_TILES) * value_heads * segments" if context.in_turns else _ALL


def item_count(context: Context) -> str:
    """The items of a persistent grid of a carried kernel: of a segment's, what another segment follows."""
    return _ALL if context.segment is None else "TILES * value_heads * joints"


def item_prologue(context: Context) -> Entries:
    """Integers of an item of a persistent grid; `first` and `first_slot` are where the rings' first iteration lies."""
    if not context.persistent:
        return ()
    entries = _item(context, "item")
    shifts = {"first": f"first - {DONE} * CHUNK", "first_slot": f"first_slot - {DONE}"}
    known = [name for name, _ in entries]
    return (*entries, *((name, text) for name, text in shifts.items() if name in known))


def next_item(context: Context) -> Entries:
    return (("done", f"{DONE} + iterations"), ("item", "item + workers")) if context.persistent else ()


def strips(context: Context) -> str:
    """How many columns of heads a CTA of a persistent grid clears behind the last sequence."""
    return _share("TILES * value_heads")


def _share(items: str) -> str:
    """How many of the items are a CTA's."""
    return f"T.truncdiv({items} - block + workers - 1, workers)"


def _item(context: Context, item: str) -> Entries:
    """Where a CTA's work lies: `item` numbers segments, heads and columns."""
    tensors = _loaded(context)
    place = _joint_place(item) if context.persistent and context.segment is not None else _place(item, context)
    if any(tensor.head == "key" for tensor in tensors):
        place.insert(-1, ("key_head", "T.truncdiv(value_head, T.truncdiv(value_heads, key_heads))"))
    own = _chunks(tensors) if context.segment is None else _warm_up(context, context.segment)
    return (*place, *_neighbours(), *own)


def _loaded(context: Context) -> list[Tensor]:
    return [ring.load.tensor for ring in context.schedule.rings if ring.load is not None]


def _place(item: str, context: Context) -> list[tuple[str, str]]:
    """Segment, head and columns: tiles of a head side by side, then heads, then segments. The second turn has no maps,
    so that it has fewer tiles."""
    turn: list[tuple[str, str]] = []
    tiles = "TILES"
    if context.in_turns:
        turn = [
            ("late", f"T.if_then_else({item} < {_ALL}, 0, 1)"),
            ("tiles", "T.if_then_else(late == 0, TILES, STATE_TILES)"),
            ("place", f"{item} - late * {_ALL}"),
        ]
        tiles, item = "tiles", "place"
    return [
        *turn,
        ("segment", f"T.truncdiv({item}, {tiles} * value_heads)"),
        ("value_head", f"T.truncmod(T.truncdiv({item}, {tiles}), value_heads)"),
        ("value_column", f"T.truncmod({item}, {tiles}) * VALUE_TILE"),
    ]


def _joint_place(item: str) -> list[tuple[str, str]]:
    """The same of a segment that another one follows. Tiles come last: those of maps are often left out, and every CTA
    shall have its part of the others."""
    find = _call("int32", JOINT_SEGMENT, "T.address_of(segment_sequence[0])", "segments", "joint")
    return [
        ("joint", f"T.truncmod(T.truncdiv({item}, value_heads), joints)"),
        ("segment", find),
        ("value_head", f"T.truncmod({item}, value_heads)"),
        ("value_column", f"T.truncdiv({item}, value_heads * joints) * VALUE_TILE"),
    ]


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


def _warm_up(context: Context, segment: Segment) -> Entries:
    """The chunks that a segment's map or state needs: all of them, or so many of its last ones that what comes before
    is forgotten (`warm_up`; then there is no map). The last segment of a sequence has nothing to tell."""
    active = "T.And(closes == 0, T.Or(value_column < VALUE_DIM, joined != 0))"
    if context.in_turns:
        active = f"T.And({active}, T.Or(turns == 1, late == T.if_then_else(warm_up > 0, 1, 0)))"
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
    totals = f"T.address_of({bound.name}[first_slot, {HEAD[bound.head]}, CHUNK - 1])"
    return _call("int32", WARM_UP, totals, f"{HEADS[bound.head]} * CHUNK", "chunks", "skip_threshold")


def _call(result: str, function: str, *arguments: str) -> str:
    """A device function's call, one argument a line."""
    given = (f'"{result}"', f'"{function}"', *arguments)
    return "\n    ".join(("T.call_extern(", *(f"{argument}," for argument in given))) + "\n)"
