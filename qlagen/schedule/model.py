"""A scheduled kernel: who does what, when, in which registers and which shared memory, and what synchronises them.

Everything here is derived from a `Program` and an `Options` record by rule; the emitter only spells it. A kernel is a
loop over iterations (the chunks of one segment, or of one after another, when the program carries a state, else work
items of a persistent grid). Every role runs the same number of iterations. Compute roles are whole warpgroups; mover
roles are single warps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qlagen.program.ir import Dims, ElementExpr, Gate, Load, Program, Store

DataType = Literal["data", "float32"]
"""``data`` is the build's 16-bit type (bf16 or fp16)."""


@dataclass(frozen=True)
class Options:
    """Structural choices of one schedule, from ``specs/schedules/<target>.toml``. They change speed, never results."""

    name: str
    """Variant name, for example ``v64``: part of the kernel's file name."""
    value_tile: int
    """Columns of V per CTA (carried programs); the state's rows when it is transposed."""
    stages: int
    """Ring stages of values loaded from global memory."""
    ahead: int
    """How many chunks the auxiliary role may run ahead; its rings have ``ahead + 1`` stages."""
    output_stages: int
    registers: tuple[tuple[str, int], ...]
    """Registers per thread and role (setmaxnreg); empty: no setmaxnreg is emitted."""
    ctas_per_sm: int = 1
    delays: tuple[tuple[str, int], ...] = ()
    """Pins: how many chain GEMMs an off-chain GEMM waits behind; empty lets the model choose. A key is the GEMM's
    name, or ``#1``, ``#2`` for the first, second off-chain GEMM in program order."""
    mover_warps: int = 4
    """At most so many warps move data; more groups of rings than that share warps."""
    form: int = 0
    """Number of the form of a segment's program, from 1; 0: the one that the model finds fastest."""
    heads: int = 1
    """Value heads that an iteration of a chunk-parallel kernel works on, a warp each; 1: one, by a warpgroup."""
    keys: int = 1
    """Key heads whose value heads these are, as many of each."""
    persistent: bool = False
    """Of a carried kernel: a CTA walks one item (segment, head and tile) after another, and its rings run on."""


@dataclass(frozen=True)
class Ring:
    """A shared-memory ring: one slot per stage. `shape` is one slot's. A step's own scratch has a shape and no dims."""

    name: str
    dims: Dims
    shape: tuple[int, ...]
    dtype: DataType
    producer: str
    """Name of the role that fills it."""
    consumers: tuple[str, ...]
    """Roles that read it; equal to (producer,) for a value that a role hands to itself across threads."""
    stages: int
    stage_class: Literal["load", "handover", "output", "inner"]
    load: Load | None = None
    store: Store | None = None
    async_read: bool = False
    """Read by wgmma or TMA: a proxy fence must stand between a generic write and that read."""
    fenced_by_reader: bool = False
    """Of the async proxy only TMA reads it: the one warp that stores it fences, instead of all threads that write."""
    swizzle_annotated: bool = False
    """No GEMM touches it, so its bank swizzle must be annotated."""
    bytes: int = 0
    """All stages."""
    heads: int = 1
    """Tiles of so many heads in a slot: value heads, or key heads in what they share."""

    @property
    def fenced_by_writer(self) -> bool:
        return self.async_read and not self.fenced_by_reader


@dataclass(frozen=True)
class Step:
    """One tile operation of a compute role. `reads`/`writes` are register values, `rings` shared-memory operands. An
    inverse (I + L)^-1 reads -L; one of `heads` reads what `share` made of the matrix that the heads have in common."""

    kind: Literal["gemm", "map", "fetch", "cast", "turn", "vector", "put", "scan", "inverse", "share", "inverse_heads"]
    name: str
    reads: tuple[str, ...] = ()
    rings: tuple[str, ...] = ()
    writes: str | None = None
    ring_out: str | None = None
    scratch: str | None = None
    """A ring that the step writes and reads inside, with barriers of its own in between."""
    after: tuple[str, ...] = ()
    """Steps that must be done first although no value flows (write after read)."""
    expr: ElementExpr | None = None
    gates: tuple[Gate, ...] = ()
    """Gates and masks that `expr` names."""
    lookups: tuple[tuple[str, str], ...] = ()
    """Gate name to ring: the cumulative log gate's, or for ``total`` the ``from_start`` vector that it ends."""
    below: bool = False
    """Of a [C, C] result only entries below the diagonal are read: it needs no mask, nor the blocks above."""
    left: str | None = None
    right: str | None = None
    left_home: Literal["registers", "shared"] = "registers"
    transpose_left: bool = False
    transpose_right: bool = False
    clear: bool = True
    key: int = 0
    """Of which key head of an iteration a shared matrix is."""
    matrix: str | None = None
    """The ring of what `share` made, in an inverse of heads."""
    factors: str | None = None
    """The ring of the factors of its rows, if any."""
    decay: str | None = None
    """The ring of the cumulative log gate of its decay, if any."""
    columns: str | None = None
    """The ring of the scale of an inverse's columns, if any."""
    scratch_registers: int = 0
    """Registers per thread that the step needs beside its operands."""
    cost: int = 0
    origin: str = ""
    """The spec stage it comes from."""
    note: str = ""


@dataclass(frozen=True)
class Value:
    """A register value. Values of one `group` share registers (they accumulate in place)."""

    name: str
    group: str
    shape: tuple[int, int]
    dtype: DataType
    registers: int
    transposed_view: bool = False
    """The fragment is indexed [column, row] of a wgmma accumulator: same registers, no movement."""
    carried: bool = False


@dataclass(frozen=True)
class Instruction:
    """One line of a role's loop body.

    ``step``; ``wait_groups`` (wgmma groups left in flight); ``wait``/``arrive`` on a barrier; ``fence`` (generic to
    async proxy); ``load``/``store`` of a ring by a mover; ``sync`` (a named barrier of the role's own threads).
    """

    kind: Literal["step", "wait_groups", "wait", "arrive", "fence", "load", "store", "sync"]
    step: Step | None = None
    groups: int = 0
    barrier: str | None = None
    ring: str | None = None
    side: Literal["consumer", "producer"] = "consumer"
    """Which phase a wait expects: consumers wait for the fill, producers for the release."""


@dataclass(frozen=True)
class Barrier:
    """An mbarrier per stage. `count` arrivals complete a phase (plus the bytes of its TMA loads)."""

    name: str
    stages: int
    stage_class: Literal["load", "handover", "output"]
    count: int
    rings: tuple[str, ...]
    producers: tuple[str, ...]
    """Roles that arrive."""
    consumers: tuple[str, ...]
    """Roles that wait."""
    transaction_bytes: int = 0
    releases: bool = False
    """True: announces that slots are free again; False: that they are filled."""


@dataclass(frozen=True)
class Fragment:
    name: str
    shape: tuple[int, int]
    dtype: DataType
    registers: int
    values: tuple[str, ...]
    transposed_view: bool
    carried: bool
    role: str


@dataclass(frozen=True)
class Role:
    name: str
    kind: Literal["compute", "mover"]
    warps: int
    first_thread: int
    registers: int | None
    """setmaxnreg of its warpgroup, or None."""
    estimate: int
    """Registers per thread that the model expects; 0 for movers."""
    body: tuple[Instruction, ...]


@dataclass(frozen=True)
class RankedOrder:
    """A legal issue order: the delays that give it (as `Options.delays` pins it) and what the model says of it."""

    delays: tuple[tuple[str, int], ...]
    clocks: int
    registers: int
    """Registers per thread of the role that carries the state, overhead included."""


@dataclass(frozen=True)
class Schedule:
    """One kernel, ready to be spelled."""

    program: Program
    options: Options
    dims: tuple[tuple[str, int], ...]
    """C, K, V in full."""
    transposed: bool
    """The carried value and what is chained to it are held transposed in registers."""
    roles: tuple[Role, ...]
    """Compute roles first, in thread order, then movers."""
    rings: tuple[Ring, ...]
    barriers: tuple[Barrier, ...]
    fragments: tuple[Fragment, ...]
    fragment_of: tuple[tuple[str, str], ...]
    """Register value to fragment name."""
    values: tuple[Value, ...]
    carried_operand: str | None
    """Register value holding the carried state as a 16-bit left operand, if any."""
    shared_bytes: int
    threads: int
    modelled_clocks: int
    """Of an iteration of the first compute role."""
    busiest_clocks: int
    """Of the compute role that takes longest, or of the tensor cores, which all roles share, when that is more."""
    delays: tuple[tuple[str, int], ...]
    candidates: int
    """Distinct legal issue orders that were ranked."""
    ranked: tuple[RankedOrder, ...] = ()
    """The candidates, best first; the first one was taken."""
    implied: tuple[str, ...] = ()
    """Waits and releases that were left out because the others imply them, for people."""
    overlapped: bool = False
    """What an item's carried value starts from is loaded before the last item's value is stored."""
