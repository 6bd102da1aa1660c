"""When a kernel waits for the one before it (programmatic dependent launch).

A kernel of a call may start while the one before it still runs. What the caller gave is there by then: the first kernel
of a call starts when everything before has ended. What kernels of the call hand to one another is waited for: chunks'
tensors in a workspace, and what segments leave. (Tables are a kernel's too. The next one waits before it lets any other
start, so that kernels after that one find them.) A kernel whose chunks' place depends on what was handed over waits
before it works that out. One that reads nothing of the kind but comes behind the tables finds its chunks without them
where sequences are few (see `places`): one of its warps waits aside, and lets the next kernel start.

One of the threads of every CTA waits in any case. A kernel has therefore ended only when all those before it have.
"""

from __future__ import annotations

from collections.abc import Iterable

from qlagen.emit import views
from qlagen.emit.context import Context, loaded_rings
from qlagen.emit.places import FEW, TABLED, finds_places
from qlagen.schedule.model import Ring, Role

Lines = tuple[views.Line, ...]
WALKED = "warm_up"
"""The integer that says how much of a segment is walked: from the decay of its chunks."""


def waits_late(context: Context) -> bool:
    """Whether roles wait where they meet what was handed over, not all threads at the start."""
    return context.carried and context.segment is None and bool(_handed_over(context.schedule.rings))


def waits_before(context: Context, prologue: list[str]) -> str | None:
    """The first integer of the prologue that needs what was handed over; None where roles wait."""
    if waits_late(context):
        return None
    known = (name for name in (WALKED, TABLED) if name in prologue)
    return next(known, prologue[0])


def prologue_wait(context: Context) -> views.AwaitKernel:
    """How all threads wait there: where one warp waits for all, only if they need the tables."""
    if waits_aside(context):
        return views.AwaitKernel(views.Comment("", "the tables, which the kernel before makes"), f"{FEW} == 0")
    return _wait_and_trigger()


def waits_aside(context: Context) -> bool:
    """Whether one warp waits for all."""
    return _waiter(context) is not None


def _wait_and_trigger() -> views.AwaitKernel:
    return views.AwaitKernel(views.Comment("", "the kernel before has ended; the next one may start"), trigger=True)


def _waiter(context: Context) -> Role | None:
    """Who waits for all: a mover that only stores. It has time, nothing is stored before all loads of an iteration."""
    if not finds_places(context):
        return None
    storing = (role for role in context.schedule.roles if role.kind == "mover" and not loaded_rings(context, role))
    return next(storing, None)


def mover_waits(context: Context, role: Role) -> tuple[Lines, Lines]:
    """Of a mover: what it does before its first item, and after its last one. One that loads callers' tensors as well
    waits behind those (see `waits_between`)."""
    if waits_aside(context):
        return ((_wait_and_trigger(),), ()) if role == _waiter(context) else ((), ())
    if not waits_late(context) or not _handed_over(loaded_rings(context, role)):
        return (), ()
    # A CTA without items, or whose items have no chunks, waits too.
    return ((), (views.AwaitKernel(),)) if waits_between(context, role) else ((views.AwaitKernel(),), ())


def waits_between(context: Context, role: Role) -> bool:
    """Whether a mover loads callers' tensors of a chunk first, then waits, then loads the others. Vectors are read
    ahead of tiles."""
    loaded = loaded_rings(context, role)
    handed = _handed_over(loaded)
    tiles = bool(handed) and all(len(ring.shape) == 2 for ring in handed)
    return waits_late(context) and tiles and len(handed) < len(loaded)


def _handed_over(rings: Iterable[Ring]) -> list[Ring]:
    """Those whose tensors kernels before made: callers' tensors are by token."""
    return [ring for ring in rings if ring.load is not None and ring.load.tensor.layout == "chunk"]
