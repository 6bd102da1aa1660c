"""When a kernel waits for the one before it (programmatic dependent launch).

A kernel of a call may start while the one before it still runs. What the caller gave is there by then: the first kernel
of a call starts when everything before has ended. What kernels of the call hand to one another is waited for: chunks'
tensors in a workspace, and what segments leave. (Tables are a kernel's too. The next one waits before it lets any other
start, so that kernels after that one find them.) A kernel whose chunks' place depends on what was handed over waits
before it works that out; one that reads nothing of the kind, or comes behind the tables, at its very start.

One of the threads of every CTA waits in any case. A kernel has therefore ended only when all those before it have.
"""

from __future__ import annotations

from qlagen.emit import views
from qlagen.emit.context import Context
from qlagen.program.ir import Tensor
from qlagen.schedule.model import Role

Lines = tuple[views.Line, ...]
WARM_UP = "warm_up"
"""The integer that says how much of a segment is walked, from the decay of its chunks."""


def is_handed_over(tensor: Tensor) -> bool:
    """Whether kernels before made it: callers' tensors are by token."""
    return tensor.layout == "chunk"


def waits_late(context: Context) -> bool:
    """Whether roles wait where they meet what was handed over, not all threads at the start."""
    return context.carried and context.segment is None and any(_kinds(context, role)[1] for role in _movers(context))


def waits_before(context: Context, prologue: list[str]) -> str | None:
    """The first integer of the prologue that needs what was handed over; None where roles wait."""
    if waits_late(context):
        return None
    return WARM_UP if WARM_UP in prologue else prologue[0]


def mover_waits(context: Context, role: Role) -> tuple[Lines, Lines]:
    """Of a mover: what it does before its first item, and after its last one. One that loads callers' tensors as well
    waits behind those (see `waits_between`)."""
    given, handed = _kinds(context, role)
    if not waits_late(context) or not handed:
        return (), ()
    # A CTA without items, or whose items have no chunks, waits too.
    return ((), (views.AwaitKernel(),)) if given else ((views.AwaitKernel(),), ())


def waits_between(context: Context, role: Role) -> bool:
    """Whether a mover loads callers' tensors of a chunk first, then waits, then loads the others."""
    return waits_late(context) and all(_kinds(context, role))


def _movers(context: Context) -> list[Role]:
    return [role for role in context.schedule.roles if role.kind == "mover"]


def _kinds(context: Context, role: Role) -> tuple[bool, bool]:
    """Whether a role loads callers' tensors, and ones that were handed over."""
    loads = (context.rings[i.ring].load for i in role.body if i.kind == "load" and i.ring)
    handed = {is_handed_over(load.tensor) for load in loads if load is not None}
    return False in handed, True in handed
