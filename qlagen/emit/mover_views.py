"""What the templates see of a mover's program: tiles and vectors between global and shared memory (see `views`)."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.emit.views import Comment, Line


@dataclass(frozen=True)
class Box:
    """What one copy moves between a ring's slot and a tensor."""

    name: str
    slot: str
    tensor: str


@dataclass(frozen=True)
class TileView:
    """A tile on its way to shared memory, or a part of it; `address` and `extent` of the whole for code that goes
    through a pointer, `parts` of 64 columns each."""

    box: Box
    address: str
    extent: str
    parts: str
    barrier: str


@dataclass(frozen=True)
class LoadTiles(Line):
    """TMA of tiles. `padded` tensors have whole chunks only. Rows of `cut` ones past the sequence's end are zeroed:
    those tiles land on a barrier of the mover's own first, `phase` its phase and `counter` what counts its uses."""

    macro = "load_tiles"
    padded: tuple[TileView, ...]
    cut: tuple[TileView, ...]
    landed: str
    phase: str
    counter: str | None


@dataclass(frozen=True)
class FetchVector(Line):
    """Global to registers, one warp: a [C] vector's entries, issued before the slot is free."""

    macro = "fetch_vector"
    out: str
    source: str
    masked: bool
    comment: Comment


@dataclass(frozen=True)
class FetchHeads(Line):
    """The same of a tensor by token for up to four value heads from `first` on: `heads` of each of `keys` key heads,
    which have `ratio` value heads each; in the registers there is room for `room` of each."""

    macro = "fetch_heads"
    out: str
    first: str
    heads: str
    keys: str
    ratio: str
    room: str
    comment: Comment


@dataclass(frozen=True)
class LoadVector(Line):
    """Registers to the slot, one warp; `heads`: those of several value heads."""

    macro = "load_vector"
    source: str
    ring: str
    stage: str
    heads: bool
    comment: Comment


@dataclass(frozen=True)
class StoreTile(Line):
    """TMA of a whole tile, in one box or several, or of one for each value head for which `guard` holds, to global
    memory, waiting until the slot has been read."""

    macro = "store_tile"
    boxes: tuple[Box, ...]
    guard: str | None


@dataclass(frozen=True)
class StoreRows(Line):
    """The valid rows of a chunk that the sequence's end cuts, by plain stores."""

    macro = "store_rows"
    out: str
    address: str
    extent: str
    stride: str
    parts: str
    comment: Comment


@dataclass(frozen=True)
class StoreVector(Line):
    macro = "store_vector"
    ring: str
    stage: str
    out: str
    guard: str | None
    comment: Comment
