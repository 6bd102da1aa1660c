"""Turns: the warpgroups of one role issue their products one after another.

They do the same work. Left alone they issue products together, then all do elementwise work while the tensor cores
idle. Where one warpgroup at a time issues the longest burst of an iteration, the others do elementwise work meanwhile.
A turn goes round in the order of the warpgroups, so that it follows the order of (iteration, warpgroup).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from qlagen.errors import QlagenError
from qlagen.schedule.model import Barrier, Instruction, Role
from qlagen.schedule.protocol import Protocol

WARPGROUP = 4
"""Warps."""


def insert_turns(role: Role) -> Role:
    """The role with its longest burst of products inside a turn; as it is when it has one warpgroup or no product."""
    burst = longest_burst(role.body)
    if role.kind != "compute" or role.warps <= WARPGROUP or burst is None:
        return role
    first, last = burst
    inside = (Instruction("take_turn"), *role.body[first : last + 1], Instruction("pass_turn"))
    return replace(role, body=(*role.body[:first], *inside, *role.body[last + 1 :]))


def longest_burst(body: Sequence[Instruction]) -> tuple[int, int] | None:
    """The first and the last product of the burst with the most clocks: in a burst the queue of products does not run
    empty, in other words no wait leaves none in flight."""
    best: tuple[int, int, int] | None = None
    first, clocks = None, 0
    for position, instruction in enumerate(body):
        if instruction.kind == "wait_groups" and instruction.groups == 0:
            first, clocks = None, 0
        elif instruction.step is not None and instruction.step.kind == "gemm":
            first = position if first is None else first
            clocks += instruction.step.cost
            if best is None or clocks > best[0]:
                best = clocks, first, position
    return None if best is None else best[1:]


def check_turns(roles: Sequence[Role], barriers: Sequence[Barrier], counts: Sequence[int]) -> None:
    """Run the barriers with every warpgroup for itself and turns between them, for each of `counts` iterations.

    Raises E-SYNC for turns that are not taken and passed once, and E-DEADLOCK, E-PHASE and E-ARRIVALS.
    """
    if not any(_turns(role) for role in roles):
        return
    agents: list[Role] = []
    tokens: list[Barrier] = []
    for role in roles:
        if _turns(role):
            _check_order(role)
            agents += _warpgroups(role)
            tokens += [Barrier(_token(role, w), 1, "handover", WARPGROUP, (), (), ()) for w in range(_size(role))]
        else:
            agents.append(replace(role, body=_barriers_only(role)))
    plain = [replace(barrier, rings=()) for barrier in barriers]
    for iterations in counts:
        Protocol(agents, (), (*plain, *tokens), iterations).run()


def _turns(role: Role) -> tuple[Instruction, ...]:
    return tuple(i for i in role.body if i.kind in ("take_turn", "pass_turn"))


def _check_order(role: Role) -> None:
    kinds = [instruction.kind for instruction in _turns(role)]
    if kinds != ["take_turn", "pass_turn"] or role.warps % WARPGROUP:
        message = f"role {role.name}: an iteration must take its turn once and pass it once, got {', '.join(kinds)}"
        raise QlagenError("E-SYNC", message, hints=["put all of a turn in one iteration"])


def _size(role: Role) -> int:
    return role.warps // WARPGROUP


def _token(role: Role, warpgroup: int) -> str:
    return f"turn of {role.name} {warpgroup}"


def _warpgroups(role: Role) -> list[Role]:
    """A role per warpgroup. A turn is a barrier that the warpgroup before arrives at; the first finds it open."""
    found = []
    for warpgroup in range(_size(role)):
        take = Instruction("wait", barrier=_token(role, warpgroup), side="consumer" if warpgroup else "producer")
        passed = Instruction("arrive", barrier=_token(role, (warpgroup + 1) % _size(role)))
        spelled = {"take_turn": take, "pass_turn": passed}
        body = tuple(spelled.get(i.kind, i) for i in role.body if i.kind in spelled or i.barrier is not None)
        found.append(replace(role, name=f"{role.name} {warpgroup}", warps=WARPGROUP, body=body))
    return found


def _barriers_only(role: Role) -> tuple[Instruction, ...]:
    return tuple(instruction for instruction in role.body if instruction.barrier is not None)
