"""Views of the warps that move tiles between global and shared memory, and of the chunk's coordinates."""

from __future__ import annotations

from dataclasses import replace

from qlagen.emit import file_views, mover_views, views
from qlagen.emit.context import (
    DONE,
    FULL,
    HEAD,
    HEADS,
    PACKED,
    SWIZZLE_COLUMNS,
    TILE,
    Context,
    chunk_item,
    columns_of,
    loaded_rings,
    ring_name,
    slot,
    slot_extent,
    stage,
    stage_head,
)
from qlagen.emit.early import waits_between
from qlagen.emit.lines import barrier_line, has_head, head_counts
from qlagen.emit.places import chunk_place, finds_places
from qlagen.errors import QlagenError
from qlagen.program.ir import Tensor
from qlagen.program.triangle import Strip, strips
from qlagen.schedule.model import Instruction, Ring, Role

LANE_ENTRIES = "LANE_ENTRIES"


def mover_loops(context: Context, role: Role) -> tuple[file_views.LoopView, ...]:
    """The loops of one mover warp.

    A mover of a carried kernel that stores whole chunks by TMA runs a second loop, of at most one iteration, for the
    chunk that the sequence's end cuts: the row-wise store would take registers from the main loop.
    """
    first, last = loop_bounds(context)
    if not _stores_rows(context, role):
        return (file_views.LoopView(first, last, _body(context, role, tail=False)),)
    cut = f"{first} + whole" if context.persistent else "whole"
    return (
        file_views.LoopView(first, cut, _body(context, role, tail=False)),
        file_views.LoopView(cut, last, _body(context, role, tail=True)),
    )


def loop_bounds(context: Context) -> tuple[str, str]:
    """A role's first iteration and the end; on a persistent grid those of the items before are counted."""
    return (DONE, f"{DONE} + iterations") if context.persistent else ("0", "iterations")


def _stores_rows(context: Context, role: Role) -> bool:
    stored = (context.rings[i.ring].store for i in role.body if i.kind == "store" and i.ring)
    return any(store is not None and store.tensor.layout == "token" for store in stored)


def _body(context: Context, role: Role, tail: bool) -> tuple[views.Line, ...]:
    moved = [context.rings[i.ring] for i in role.body if i.kind in ("load", "store") and i.ring]
    lines: list[views.Line] = [coordinates(context, [tensor_of(ring) for ring in moved])]
    for instruction in role.body:
        if instruction.kind == "load" and instruction.ring and len(context.rings[instruction.ring].shape) == 1:
            lines.append(_fetch_vector(context, context.rings[instruction.ring]))
    tiles: list[Ring] = []
    for instruction in role.body:
        if _is_tile_load(context, instruction):
            tiles.append(context.rings[str(instruction.ring)])
            continue
        if tiles:
            lines += _load_tiles(context, role, tiles)
            tiles = []
        if instruction.kind == "fence" and tail:  # rows are stored by ordinary code
            continue
        # The cut chunk is the last of its sequence: only a CTA that walks several waits for its release.
        if instruction.kind != "arrive" or not tail or context.persistent:
            lines.append(_line(context, role, instruction, tail))
    return tuple(lines)


def _is_tile_load(context: Context, instruction: Instruction) -> bool:
    return instruction.kind == "load" and len(context.rings[str(instruction.ring)].shape) == 2


def tensor_of(ring: Ring) -> Tensor:
    if ring.load is not None:
        return ring.load.tensor
    if ring.store is not None:
        return ring.store.tensor
    raise QlagenError("E-EMIT", f"ring {ring.name} belongs to no tensor, but a mover works on it")


def coordinates(context: Context, tensors: list[Tensor]) -> views.Assign:
    """Integers that place iteration i in `tensors`: first token, valid rows, chunk slot, heads."""
    tokens = any(tensor.layout == "token" for tensor in tensors)
    chunks = any(tensor.layout == "chunk" for tensor in tensors)
    values: list[tuple[str, str]] = []
    if context.carried:
        if tokens:
            values += [("start", "first + step * CHUNK")]
            values += [] if context.segment else [("rows", "end - start")]
        if chunks:
            values += [("slot", "first_slot + step")]
        return views.Assign(tuple(values))
    values += [chunk_item(context), *_head_coordinates(context, any(tensor.head == "key" for tensor in tensors))]
    if tokens:
        tables = (("start", "chunk_first[slot]"), ("rows", "chunk_rows[slot]"))
        values += chunk_place() if finds_places(context) else tables
    return views.Assign(tuple(values))


def _head_coordinates(context: Context, key_head: bool) -> list[tuple[str, str]]:
    """Slot and heads of an item: value heads fastest. Where it has several value heads, the first of them."""
    if context.heads == 1:
        values = [("slot", "T.truncdiv(item, value_heads)"), ("value_head", "T.truncmod(item, value_heads)")]
        return values + [("key_head", "T.truncdiv(value_head, T.truncdiv(value_heads, key_heads))")] * key_head
    return [
        ("slot", "T.truncdiv(item, units)"),
        *([] if context.keys > 1 else [("key_head", "T.truncdiv(T.truncmod(item, units), groups)")]),
        *head_counts(context),
        ("value_head", f"key_head * ratio + group * {'HEADS' if context.keys == 1 else 'HEADS_PER_KEY'}"),
    ]


def _line(context: Context, role: Role, instruction: Instruction, tail: bool) -> views.Line:
    if instruction.kind in ("wait", "arrive"):
        return barrier_line(context, instruction)
    if instruction.kind == "fence":
        return views.Fence()
    if instruction.kind not in ("load", "store") or instruction.ring is None:
        raise QlagenError("E-EMIT", f"mover {role.name} cannot do {instruction.kind!r}")
    ring = context.rings[instruction.ring]
    if len(ring.shape) == 1:
        return _load_vector(ring) if instruction.kind == "load" else _store_vector(context, ring)
    return _store_rows(context, ring) if tail and tensor_of(ring).layout == "token" else _store_tile(context, ring)


def is_cut(context: Context, tensor: Tensor) -> bool:
    """Whether a sequence's end may cut the tensor's last chunk."""
    return tensor.layout == "token" and context.segment is None


def _tile_in_tensor(context: Context, ring: Ring) -> str:
    """The chunk's tile in global memory."""
    tensor = tensor_of(ring)
    head, columns = _head(context, ring), columns_of(tensor.dims, context.carried)
    if tensor.layout == "token":
        return f"{tensor.name}[start:start + CHUNK, {head}, {columns}]"
    return f"{tensor.name}[slot, {head}, :, {columns}]"


def _boxes(context: Context, ring: Ring) -> tuple[mover_views.Box, ...]:
    """The copies that move a tile: one, or one for each strip of a lower triangular one. Their boxes in shared memory
    are whole rows; what lies outside of the strip is outside of the tensor that it is taken from."""
    tensor = tensor_of(ring)
    if not tensor.lower:
        return (mover_views.Box(tensor.name, slot(ring), _tile_in_tensor(context, ring)),)
    return tuple(_strip_box(context, ring, strip) for strip in strips(context.size("C")))


def _strip_box(context: Context, ring: Ring, strip: Strip) -> mover_views.Box:
    name, rows = tensor_of(ring).name, f"{strip.first}:{strip.first + strip.rows}"
    shape = f"chunk_count, {HEADS[tensor_of(ring).head]}, {PACKED} // {strip.columns}, {strip.columns}"
    lines = f"{strip.line}:{strip.line + strip.rows}"
    return mover_views.Box(
        f"{name}, rows {rows}, with {strip.columns} columns",
        f"{ring_name(ring)}[{stage_head(ring, 'head')}, {rows}, :]",
        f"T.view({name}, ({shape}))[slot, {_head(context, ring)}, {lines}, 0:CHUNK]",
    )


def _head(context: Context, ring: Ring) -> str:
    """The head of a tensor that an iteration, or a turn of its loop over heads, moves."""
    first = HEAD[tensor_of(ring).head]
    if ring.load is not None and ring.load.key > 0:
        return f"T.min({first} + {ring.load.key}, key_heads - 1)"  # a tile that is not there is never used
    if ring.heads == 1:
        return first
    return f"{first} + " + ("head" if context.keys == 1 else "head // HEADS_PER_KEY * ratio + head % HEADS_PER_KEY")


def _guard(context: Context, ring: Ring) -> str | None:
    """Whether a turn of a loop over heads has something to move; None: there is no such loop."""
    return has_head(context, "head") if ring.heads > 1 else None


def _parts(ring: Ring) -> str:
    return f"{TILE[ring.dims[1]]} // SWIZZLE_COLUMNS"


def _check_width(ring: Ring) -> None:
    if ring.shape[1] % SWIZZLE_COLUMNS or ring.dtype != "data":
        message = f"ring {ring.name} has {ring.shape[1]} columns of {ring.dtype}"
        note = f"rows of token tensors move as 16-bit tiles whose columns are a multiple of {SWIZZLE_COLUMNS}"
        raise QlagenError("E-EMIT", message, notes=(note,))


def landed_barrier(role: Role) -> str:
    """A mover's own barrier for tiles that it must change before it announces them."""
    return f"{role.name}_landed"


def needs_landed(context: Context, role: Role) -> bool:
    return any(len(ring.shape) == 2 and is_cut(context, tensor_of(ring)) for ring in loaded_rings(context, role))


def _load_tiles(context: Context, role: Role, rings: list[Ring]) -> tuple[views.Line, ...]:
    """One line, or two with a wait between callers' tensors and others."""
    padded = [ring for ring in rings if not is_cut(context, tensor_of(ring))]
    cut = [ring for ring in rings if is_cut(context, tensor_of(ring))]
    for ring in rings:
        if tensor_of(ring).layout == "token":
            _check_width(ring)
    once = context.carried and not context.persistent
    tiles = mover_views.LoadTiles(
        padded=tuple(tile for ring in padded for tile in _tiles(context, ring)),
        cut=tuple(tile for ring in cut for tile in _tiles(context, ring)),
        landed=landed_barrier(role),
        phase="0" if once else "cuts % 2",
        counter=None if once else "cuts",
    )
    if not waits_between(context, role):
        return (tiles,)
    wait = views.AwaitKernel(views.Comment("", "what the kernel before made"))
    return replace(tiles, padded=()), wait, replace(tiles, cut=())


def _tiles(context: Context, ring: Ring) -> tuple[mover_views.TileView, ...]:
    return tuple(
        mover_views.TileView(
            box=box,
            address=f"{ring_name(ring)}[{stage(ring)}, 0, 0]",
            extent=slot_extent(ring),
            parts=_parts(ring),
            barrier=f"{context.ready_barrier(ring.name)}[{stage(ring)}]",
        )
        for box in _boxes(context, ring)
    )


def _store_tile(context: Context, ring: Ring) -> mover_views.StoreTile:
    return mover_views.StoreTile(_boxes(context, ring), _guard(context, ring))


def _store_rows(context: Context, ring: Ring) -> mover_views.StoreRows:
    tensor = tensor_of(ring)
    _check_width(ring)
    return mover_views.StoreRows(
        out=first_element(tensor, "start", context.carried),
        address=f"{ring_name(ring)}[{stage(ring)}, 0, 0]",
        extent=slot_extent(ring),
        stride=token_stride(tensor),
        parts=_parts(ring),
        comment=views.Comment("", f"{tensor.name}, rows of the cut chunk"),
    )


def first_element(tensor: Tensor, token: str, carried: bool) -> str:
    """The first element of a token's row that a CTA works on."""
    column = "value_column" if carried and tensor.dims[1] == "V" else "0"
    return f"{tensor.name}[{token}, {HEAD[tensor.head]}, {column}]"


def token_stride(tensor: Tensor) -> str:
    return f"{HEADS[tensor.head]} * {FULL[tensor.dims[1]]}"


def vector_registers(ring: Ring) -> str:
    return f"{ring.name}_next"


def _vector_in_tensor(context: Context, ring: Ring, index: str) -> str:
    tensor = tensor_of(ring)
    if tensor.layout == "token":
        return f"{tensor.name}[start + {index}, {_head(context, ring)}]"
    return f"{tensor.name}[slot, {_head(context, ring)}, {index}]"


def _fetch_vector(context: Context, ring: Ring) -> views.Line:
    tensor = tensor_of(ring)
    comment = views.Comment("", f"{tensor.name}, read before its slot is free")
    if ring.heads > 1:
        if tensor.layout != "token":
            raise QlagenError("E-EMIT", f"tensor {tensor.name}: only vectors by token are loaded for several heads")
        counts = ("heads", "keys", "ratio", "HEADS_PER_KEY") if context.keys > 1 else ("heads", "1", "0", "HEADS")
        return mover_views.FetchHeads(vector_registers(ring), f"{tensor.name}[start, value_head]", *counts, comment)
    source = _vector_in_tensor(context, ring, "lane + entry * WARP")
    return mover_views.FetchVector(vector_registers(ring), source, is_cut(context, tensor), comment)


def _load_vector(ring: Ring) -> mover_views.LoadVector:
    return mover_views.LoadVector(
        vector_registers(ring),
        ring_name(ring),
        stage_head(ring, "head"),
        ring.heads > 1,
        views.Comment("", tensor_of(ring).name),
    )


def _store_vector(context: Context, ring: Ring) -> mover_views.StoreVector:
    tensor = tensor_of(ring)
    if tensor.layout != "chunk":
        message = f"tensor {tensor.name}: a vector can be stored to a tensor padded to whole chunks only"
        raise QlagenError("E-EMIT", message)
    out = _vector_in_tensor(context, ring, "lane + entry * WARP")
    comment = views.Comment("", tensor.name)
    return mover_views.StoreVector(ring_name(ring), stage_head(ring, "head"), out, _guard(context, ring), comment)
