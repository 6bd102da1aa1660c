"""Schedules with one fault each: synchronisation dropped, weakened or moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qlagen.schedule.model import Barrier, Instruction, Role, Schedule

WORK = ("step", "wait_groups", "load", "store")
DROPPED = ("wait", "wait_groups", "fence", "arrive", "sync")
DELAYED = ("wait", "wait_groups", "sync")


@dataclass(frozen=True)
class Mutant:
    """One changed schedule. `kind` names the change, `place` where it was made."""

    kind: str
    place: str
    schedule: Schedule


def mutants(schedule: Schedule) -> Iterator[Mutant]:
    """Every single fault of the kinds below, in a fixed order."""
    for role in schedule.roles:
        for position, instruction in enumerate(role.body):
            for kind, body in _changed_bodies(role, position, instruction):
                what = instruction.barrier or str(instruction.groups)
                place = f"{role.name} {position}: {instruction.kind} {what}"
                yield Mutant(kind, place, _with_body(schedule, role, body))
            if instruction.kind == "arrive":
                yield from _silent_roles(schedule, role, position, instruction)
    for barrier in schedule.barriers:
        for change in (1, -1):
            yield Mutant(f"count {change:+}", barrier.name, _with_count(schedule, barrier, barrier.count + change))
        more = replace(barrier, transaction_bytes=barrier.transaction_bytes + 16)
        yield Mutant("bytes +16", barrier.name, _with_barrier(schedule, more))


def _changed_bodies(
    role: Role, position: int, instruction: Instruction
) -> Iterator[tuple[str, tuple[Instruction, ...]]]:
    before, after = role.body[:position], role.body[position + 1 :]
    if instruction.kind in DROPPED:
        yield f"drop {instruction.kind}", (*before, *after)
    if instruction.kind in DELAYED:
        work = [
            index for index in range(position + 1, len(role.body)) if role.body[index].kind in ("step", "load", "store")
        ]
        step = role.body[work[0]].step if work else None
        # A step's own scratch needs one barrier in an iteration, before the step or behind it.
        scratch_only = instruction.kind == "sync" and step is not None and step.scratch is not None
        if work and not scratch_only:
            behind = _last_of_group(role.body, work[0]) - position
            yield "late " + instruction.kind, (*before, *after[:behind], instruction, *after[behind:])
    if instruction.kind == "fence":
        yield "late fence", (*before, *after[:1], instruction, *after[1:])
    if instruction.kind == "wait_groups":
        yield "one more group in flight", (*before, replace(instruction, groups=instruction.groups + 1), *after)
    if instruction.kind == "wait":
        other = "producer" if instruction.side == "consumer" else "consumer"
        yield "other phase", (*before, replace(instruction, side=other), *after)
    if instruction.kind == "arrive":
        work = [index for index in range(position) if role.body[index].kind in WORK]
        if work:
            yield "early arrival", (*before[: work[-1]], instruction, *before[work[-1] :], *after)


def _last_of_group(body: tuple[Instruction, ...], position: int) -> int:
    """The last of the loads or stores at `position`: some of what is moved together may be safe earlier."""
    while (
        body[position].kind in ("load", "store")
        and body[position + 1 : position + 2]
        and (body[position + 1].kind == body[position].kind)
    ):
        position += 1
    return position


def _silent_roles(schedule: Schedule, role: Role, position: int, arrival: Instruction) -> Iterator[Mutant]:
    """A role that no longer arrives, and a count that allows for it."""
    barrier = next(b for b in schedule.barriers if b.name == arrival.barrier)
    if barrier.count > role.warps:
        fewer = _with_count(schedule, barrier, barrier.count - role.warps)
        body = (*role.body[:position], *role.body[position + 1 :])
        yield Mutant("silent role", f"{role.name} {position}: {barrier.name}", _with_body(fewer, role, body))


def _with_body(schedule: Schedule, role: Role, body: tuple[Instruction, ...]) -> Schedule:
    roles = tuple(replace(r, body=body) if r.name == role.name else r for r in schedule.roles)
    return replace(schedule, roles=roles)


def _with_count(schedule: Schedule, barrier: Barrier, count: int) -> Schedule:
    return _with_barrier(schedule, replace(barrier, count=count))


def _with_barrier(schedule: Schedule, barrier: Barrier) -> Schedule:
    return replace(schedule, barriers=tuple(barrier if b.name == barrier.name else b for b in schedule.barriers))
