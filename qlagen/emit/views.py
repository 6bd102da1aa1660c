"""What the kernel templates see: frozen records of finished text. The templates choose nothing.

A view of one line of a role's program names the macro that spells it (`macro`). Text fields are TileLang expressions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True)
class Comment:
    """Where an operation comes from: a stage of the spec (may be empty), and what it does (may be empty)."""

    stage: str
    text: str


@dataclass(frozen=True)
class Line:
    """One operation in a role's program."""

    macro: ClassVar[str]


@dataclass(frozen=True)
class Assign(Line):
    """Coordinates of the chunk at hand, as integers in registers."""

    macro = "assign"
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Gemm(Line):
    macro = "gemm"
    left: str
    right: str
    out: str
    transpose_left: bool
    transpose_right: bool
    clear: bool
    comment: Comment


@dataclass(frozen=True)
class GateVector:
    """A log gate's entries along one index of a map, in registers before the exponentials."""

    name: str
    index: str
    extent: str
    source: str


@dataclass(frozen=True)
class MapLoop:
    out: str
    value: tuple[str, ...]
    """In one or more lines."""


@dataclass(frozen=True)
class Decay:
    """A device function multiplies `matrix`, in accumulators, by the decay of the log gate `gate` and by `number`."""

    matrix: str
    gate: str
    number: str
    warp: str


@dataclass(frozen=True)
class Map(Line):
    """Elementwise loops over a [rows, columns] tile; `last` are numbers read once before them."""

    macro = "map"
    rows: str
    columns: str
    gates: tuple[GateVector, ...]
    last: tuple[tuple[str, str], ...]
    loops: tuple[MapLoop, ...]
    below: str | None
    """The warp's number when blocks above the diagonal are left out."""
    decay: Decay | None
    """Done before the loops."""
    comment: Comment


@dataclass(frozen=True)
class Copy(Line):
    """A tile between shared memory and registers, or a change of register type."""

    macro = "copy"
    source: str
    out: str
    comment: Comment


@dataclass(frozen=True)
class Matrices:
    """A tile in shared memory that one device function moves whole, 8 x 8 matrices at a time."""

    function: str
    address: str
    extent: str
    sizes: tuple[str, ...]
    """What the function must know of the tile: rows, columns."""
    warp: str


@dataclass(frozen=True)
class FetchMatrices(Line):
    """A tile from shared memory to accumulator registers."""

    macro = "fetch_matrices"
    out: str
    matrices: Matrices
    comment: Comment


@dataclass(frozen=True)
class Turn(Line):
    """A register tile indexed the other way round."""

    macro = "turn"
    rows: str
    columns: str
    source: str
    out: str
    comment: Comment


@dataclass(frozen=True)
class Put(Line):
    """A register tile to shared memory, `via` a register tile of the slot's type (`turned`: indexed the other way);
    `matrices` when a device function does it."""

    macro = "put"
    rows: str
    columns: str
    source: str
    via: str | None
    turned: bool
    out: str
    matrices: Matrices | None
    comment: Comment


@dataclass(frozen=True)
class Vector(Line):
    macro = "vector"
    out: str
    stage: str
    length: str
    last: tuple[tuple[str, str], ...]
    value: tuple[str, ...]
    comment: Comment


@dataclass(frozen=True)
class Scan(Line):
    """Inclusive cumulative sum of a [C] vector by the warp, or the warps, of a role for which `guard` holds."""

    macro = "scan"
    guard: str
    source: str
    source_stage: str
    out: str
    out_stage: str
    comment: Comment


@dataclass(frozen=True)
class Inverse(Line):
    """(I + L)^-1 of a strictly lower [C, C] matrix in accumulators, rounded once into an output slot, its columns times
    `scales`, a vector in shared memory or None."""

    macro = "inverse"
    warp: str
    matrix: str
    scales: str | None
    work: str
    work_extent: str
    out: str
    out_extent: str
    barrier: str
    threads: str
    comment: Comment


@dataclass(frozen=True)
class ClearSlots(Line):
    """Zeros in an inverse's scratch, if any, and all slots of its output: what lies above the diagonal is never
    written."""

    macro = "clear_slots"
    thread: str
    work: str | None
    work_extent: str
    out: str
    extent: str
    barrier: str
    threads: str


@dataclass(frozen=True)
class Share(Line):
    """A [C, C] matrix in accumulators to shared memory, in the form in which every head's inverse takes it."""

    macro = "share"
    warp: str
    matrix: str
    out: str
    extent: str
    comment: Comment


@dataclass(frozen=True)
class InverseHeads(Line):
    """(I + D L o G)^-1 of each value head by a warp of its own, into the head's output slot. D: `factors`, G: the decay
    of the cumulative log gate `gates`, `scales` of the result's columns, each a vector in shared memory or None.
    `whole`: the upper right quarter of the slot goes to global memory too."""

    macro = "inverse_heads"
    guard: str
    matrix: str
    extent: str
    factors: str | None
    gates: str | None
    whole: bool
    scales: str | None
    out: str
    out_extent: str
    comment: Comment


@dataclass(frozen=True)
class StateTile:
    """The carried value's tile in global memory: its first entry, and the strides of the register tile's indices."""

    first: str
    row_stride: str
    column_stride: str


@dataclass(frozen=True)
class StateSource:
    """Where the carried value starts from, when `condition` holds: memory, or an entry's `value`; `wait`: for the
    kernel that made it."""

    condition: str
    tile: StateTile | None
    value: str = ""
    wait: AwaitKernel | None = None


@dataclass(frozen=True)
class LoadState(Line):
    """The carried value from the first source whose condition holds, or zero; and its 16-bit form."""

    macro = "load_state"
    out: str
    rows: str
    columns: str
    sources: tuple[StateSource, ...]
    operand: str | None
    warp: str


@dataclass(frozen=True)
class StoreState(Line):
    macro = "store_state"
    source: str
    columns: str
    condition: str
    tile: StateTile
    warp: str


@dataclass(frozen=True)
class Join(Line):
    """Where it is kept whether a segment's map joins it to those before, and who says so, when."""

    macro = "join"
    first_thread: str
    condition: str
    out: str


@dataclass(frozen=True)
class Wait(Line):
    macro = "wait"
    barrier: str
    stages: str
    free: bool


@dataclass(frozen=True)
class Arrive(Line):
    macro = "arrive"
    barrier: str
    stages: str


@dataclass(frozen=True)
class WaitGroups(Line):
    macro = "wait_groups"
    groups: int


@dataclass(frozen=True)
class Fence(Line):
    macro = "fence"


@dataclass(frozen=True)
class AwaitKernel(Line):
    """Waits until the kernel before has ended; see `early`. `condition`: only if it holds. `trigger`: lets the next one
    start, then."""

    macro = "await_kernel"
    comment: Comment = Comment("", "")
    condition: str | None = None
    trigger: bool = False


@dataclass(frozen=True)
class Sync(Line):
    macro = "sync"
    barrier: str
    threads: str
