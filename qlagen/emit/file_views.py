"""What the skeleton of a kernel file sees: roles, allocations, parameters, constants. See `qlagen.emit.views`."""

from __future__ import annotations

from dataclasses import dataclass

from qlagen.emit.views import AwaitKernel, Line


@dataclass(frozen=True)
class LoopView:
    """`for i in first..last`."""

    first: str
    last: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class RoleView:
    """One branch of the kernel: threads below `end` that no earlier branch took."""

    name: str
    end: str
    registers: str | None
    increase: bool
    once: tuple[Line, ...]
    """What comes first, whatever the items."""
    items: str | None
    """The end of the items where a role walks several: what follows is then done for each."""
    item: tuple[tuple[str, str], ...]
    """Integers of an item."""
    before: tuple[Line, ...]
    loops: tuple[LoopView, ...]
    after: tuple[Line, ...]
    last: tuple[Line, ...]
    """What comes after all items."""


@dataclass(frozen=True)
class TensorView:
    name: str
    shape: str
    dtype: str


@dataclass(frozen=True)
class SharedView:
    name: str
    shape: str
    dtype: str
    static: bool
    note: str


@dataclass(frozen=True)
class BarrierView:
    name: str
    stages: str
    count: str
    producers: str
    note: str


@dataclass(frozen=True)
class RegisterView:
    """A register tile (`fragment`) or a thread's own array."""

    name: str
    allocate: str
    shape: str
    dtype: str
    note: str


@dataclass(frozen=True)
class PaddedTensor:
    """An output by token: who clears what is past the last sequence, the first element there, rows, elements per token,
    64-column parts."""

    name: str
    where: str
    first: str
    rows: str
    stride: str
    parts: str


@dataclass(frozen=True)
class RoleRow:
    """A line of the docstring's table of roles."""

    name: str
    threads: str
    registers: str


@dataclass(frozen=True)
class Banner:
    """Everything a reader needs to know where the file comes from; no time, host, path or user."""

    version: str
    spec_digest: str
    template_digest: str
    target: str
    options: tuple[str, ...]


@dataclass(frozen=True)
class KernelView:
    name: str
    summary: str
    banner: Banner
    role_rows: tuple[RoleRow, ...]
    constants: tuple[tuple[str, str], ...]
    exports: tuple[tuple[str, str], ...]
    turned: bool
    accumulated: bool
    helpers: tuple[str, ...]
    parameters: tuple[TensorView, ...]
    scalars: tuple[tuple[str, str], ...]
    dynamic: tuple[str, ...]
    grid: str
    shared: tuple[SharedView, ...]
    barriers: tuple[BarrierView, ...]
    registers: tuple[RegisterView, ...]
    integers: tuple[str, ...]
    prologue: tuple[tuple[str, str], ...]
    waits_before: str | None
    """Before this integer of the prologue all threads wait for the kernel before; None: roles do. See `early`."""
    wait: AwaitKernel
    """How they wait there."""
    layouts: tuple[tuple[str, str], ...]
    padding: tuple[PaddedTensor, ...]
    compute: tuple[RoleView, ...]
    movers: tuple[RoleView, ...]
    mover_registers: str | None
    mover_increase: bool
    ctas_per_sm: str | None
