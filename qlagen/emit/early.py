"""When a kernel waits for the one before it (programmatic dependent launch).

A kernel of a call may start while the one before it still runs. What the caller gave is there by then: the first kernel
of a call starts when everything before has ended. What kernels of the call hand to one another is waited for: chunks'
tensors in a workspace, and what segments leave. (Tables are a kernel's too. The next one waits before it lets any other
start, so that kernels after that one find them.) A kernel whose chunks' place depends on what was handed over waits
before it works that out; one that reads nothing of the kind, or comes behind the tables, at its very start.

One of the threads of every CTA waits in any case. A kernel has therefore ended only when all those before it have.
"""

from __future__ import annotations

from collections.abc import Iterable

from qlagen.emit import views
from qlagen.emit.context import Context, loaded_rings
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
    return WALKED if WALKED in prologue else prologue[0]


def mover_waits(context: Context, role: Role) -> tuple[Lines, Lines]:
    """Of a mover: what it does before its first item, and after its last one. One that loads callers' tensors as well
    waits behind those (see `waits_between`)."""
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
