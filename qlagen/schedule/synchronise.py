"""Loop bodies with barriers. Every ring first has a ready and a free barrier of its own; barriers are then merged and
waits and arrivals dropped wherever the protocol check still passes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from qlagen.errors import QlagenError
from qlagen.schedule.issue import Line
from qlagen.schedule.model import Barrier, Instruction, Ring, Role, Step
from qlagen.schedule.movers import MoverWarp
from qlagen.schedule.protocol import check_protocol


@dataclass(frozen=True)
class Skeleton:
    """Roles (their bodies still empty), what each compute role issues, what each mover moves, and the rings."""

    roles: tuple[Role, ...]
    orders: Mapping[str, Sequence[Line]]
    movers: Mapping[str, MoverWarp]
    rings: tuple[Ring, ...]

    def ring(self, name: str) -> Ring:
        return next(ring for ring in self.rings if ring.name == name)

    def is_crossing(self, ring: Ring) -> bool:
        """Whether another role than its producer reads it."""
        return any(consumer != ring.producer for consumer in ring.consumers)


@dataclass(frozen=True)
class Assignment:
    """Which barrier announces that a ring's slot is filled, and which that it is free again."""

    ready: Mapping[str, str]
    free: Mapping[str, str]


@dataclass(frozen=True)
class Synchronised:
    roles: tuple[Role, ...]
    barriers: tuple[Barrier, ...]
    implied: tuple[str, ...] = ()
    """Waits and releases left out, because the others imply them."""


def synchronise(skeleton: Skeleton) -> Synchronised:
    """Bodies and barriers: derived ring by ring, then merged. Raises the codes of the protocol check."""
    assignment = _naive(skeleton)
    result = _spell(skeleton, assignment)
    check_protocol(result.roles, skeleton.rings, result.barriers)
    for group, name, kind in _merges(skeleton):
        trial = _merged(assignment, group, name, kind)
        candidate = _spell(skeleton, trial)
        if _holds(candidate, skeleton.rings):
            assignment, result = trial, candidate
    return result


def _holds(candidate: Synchronised, rings: tuple[Ring, ...]) -> bool:
    try:
        check_protocol(candidate.roles, rings, candidate.barriers, seeds=0)
    except QlagenError:
        return False
    return True


# ---- which barrier


def _naive(skeleton: Skeleton) -> Assignment:
    crossing = [ring.name for ring in skeleton.rings if skeleton.is_crossing(ring)]
    return Assignment({r: f"{r}_ready" for r in crossing}, {r: f"{r}_free" for r in crossing})


def _merged(assignment: Assignment, rings: Iterable[str], name: str, kind: str) -> Assignment:
    if kind == "ready":
        return replace(assignment, ready={**assignment.ready, **dict.fromkeys(rings, name)})
    return replace(assignment, free={**assignment.free, **dict.fromkeys(rings, name)})


def _merges(skeleton: Skeleton) -> list[tuple[tuple[str, ...], str, str]]:
    """Barriers worth sharing: filled together for the same readers; freed by compute roles at the same number of
    stages, if not all then at least those of one producer. Rings that are stored stay alone: nothing that computes
    should wait for an unrelated store. What is loaded to a single stage is freed as soon as it has been read, for
    there is no other slot to fill meanwhile; rings that are filled together are freed together."""
    freed = _released(skeleton)
    crossing = [ring for ring in skeleton.rings if skeleton.is_crossing(ring)]
    ready: dict[object, list[Ring]] = {}
    slots: dict[tuple[int, object], list[Ring]] = {}
    by_producer: dict[object, list[Ring]] = {}
    for warp in skeleton.movers.values():
        for group in warp.groups:
            for name in group.rings if group.direction == "load" else ():
                ready.setdefault((warp.name, group), []).append(skeleton.ring(name))
    for ring in crossing:
        if any(consumer in skeleton.movers for consumer in ring.consumers):
            continue
        if ring.producer not in skeleton.movers:
            ready.setdefault((ring.producer, ring.consumers, ring.stages), []).append(ring)
        when = (ring.stages, freed.get(ring.name))
        slots.setdefault(when, []).append(ring)
        by_producer.setdefault((ring.producer, when), []).append(ring)
    found = [(group, _lead_name(group) + "_ready", "ready") for group in ready.values()]
    found += [(group, _lead_name(group) + "_free", "free") for group in by_producer.values()]
    names = {when: _lead_name(group) if when[1] is not None else _slot_name(group) for when, group in slots.items()}
    found += [(group, f"{names[when]}_free", "free") for when, group in slots.items()]
    return [(tuple(ring.name for ring in group), name, kind) for group, name, kind in found if len(group) > 1]


def _released(skeleton: Skeleton) -> dict[str, tuple[tuple[str, int], ...]]:
    """Where compute roles are done with what is loaded to a single stage, by ring: last lines of the roles that read
    it, or read what is loaded with it."""
    naive = _naive(skeleton)
    lines = {role: _ComputeBody(skeleton, naive, role).released for role in skeleton.orders}
    found: dict[str, tuple[tuple[str, int], ...]] = {}
    for warp in skeleton.movers.values():
        for group in warp.groups:
            if group.direction != "load" or any(skeleton.ring(name).stages > 1 for name in group.rings):
                continue
            barriers = [naive.free[name] for name in group.rings]
            last = {role: max((at[b] for b in barriers if b in at), default=-1) for role, at in lines.items()}
            found.update(dict.fromkeys(group.rings, tuple(last.items())))
    return found


def _lead_name(rings: Sequence[Ring]) -> str:
    """Named after the matrices among them, if any."""
    return "_".join(ring.name for ring in ([r for r in rings if len(r.shape) == 2] or rings))


def _slot_name(rings: Sequence[Ring]) -> str:
    return "stage" if any(ring.load is not None for ring in rings) else _lead_name(rings)


# ---- bodies


def _spell(skeleton: Skeleton, assignment: Assignment) -> Synchronised:
    roles = []
    for role in skeleton.roles:
        if role.name in skeleton.movers:
            body = _mover_body(skeleton, skeleton.movers[role.name], assignment)
        else:
            body = _ComputeBody(skeleton, assignment, role.name).build()
        roles.append(replace(role, body=body))
    return Synchronised(tuple(roles), _barriers(roles, skeleton.rings, assignment))


def _mover_body(skeleton: Skeleton, warp: MoverWarp, assignment: Assignment) -> tuple[Instruction, ...]:
    body: list[Instruction] = []
    for group in warp.groups:
        loading = group.direction == "load"
        before = [(assignment.free if loading else assignment.ready)[ring] for ring in group.rings]
        after = [(assignment.ready if loading else assignment.free)[ring] for ring in group.rings]
        for name in dict.fromkeys(before):
            wait = Instruction("wait", barrier=name, side="producer" if loading else "consumer")
            if wait not in body:
                body.append(wait)
        if any(skeleton.ring(ring).fenced_by_reader for ring in group.rings):
            body.append(Instruction("fence"))
        body += [Instruction("load" if loading else "store", ring=ring) for ring in group.rings]
        body += [Instruction("arrive", barrier=name) for name in dict.fromkeys(after)]
    return tuple(body)


class _ComputeBody:
    """One compute role: waits before first use, fences and announcements after last writes, releases after last use."""

    def __init__(self, skeleton: Skeleton, assignment: Assignment, role: str) -> None:
        self.skeleton = skeleton
        self.assignment = assignment
        self.role = role
        self.lines = skeleton.orders[role]
        self.waited: set[str] = set()
        self.unfenced: set[str] = set()
        self.announced = self._last_writes()
        self.released = self._last_uses()

    def build(self) -> tuple[Instruction, ...]:
        body: list[Instruction] = []
        for position, line in enumerate(self.lines):
            if line.step is None:
                body.append(Instruction("wait_groups", groups=line.groups))
            else:
                _insert_waits(body, self._waits(line.step))
                body.append(Instruction("step", step=line.step))
                body += self._announcements(line.step, position)
            body += [Instruction("arrive", barrier=b) for b, last in self.released.items() if last == position]
        return tuple(body)

    def _foreign(self, step: Step) -> list[str]:
        return [ring for ring in step.rings if self.skeleton.ring(ring).producer != self.role]

    def _last_writes(self) -> dict[str, int]:
        last: dict[str, int] = {}
        for position, line in enumerate(self.lines):
            if line.step is not None and line.step.ring_out in self.assignment.ready:
                last[self.assignment.ready[line.step.ring_out or ""]] = position
        return last

    def _last_uses(self) -> dict[str, int]:
        """Free barrier to the line after which none of its rings is read; wgmma reads until its group is waited for."""
        last: dict[str, int] = {}
        flight: list[Step] = []
        for position, line in enumerate(self.lines):
            if line.step is None:
                retired, flight = flight[: len(flight) - line.groups], flight[len(flight) - line.groups :]
            else:
                retired = [line.step]
                flight += [line.step] if line.step.kind == "gemm" else []
            for step in retired:
                last.update({self.assignment.free[ring]: position for ring in self._foreign(step)})
        return last

    def _waits(self, step: Step) -> list[Instruction]:
        waits = [(self.assignment.ready[ring], False) for ring in self._foreign(step)]
        if step.ring_out in self.assignment.free:
            waits.append((self.assignment.free[step.ring_out or ""], True))
        new = [(name, producer) for name, producer in dict.fromkeys(waits) if name not in self.waited]
        self.waited.update(name for name, _ in new)
        return [Instruction("wait", barrier=b, side="producer" if p else "consumer") for b, p in new]

    def _announcements(self, step: Step, position: int) -> list[Instruction]:
        if step.ring_out is None or step.ring_out not in self.assignment.ready:
            return []
        name = self.assignment.ready[step.ring_out]
        if self.skeleton.ring(step.ring_out).fenced_by_writer:
            self.unfenced.add(name)
        if self.announced[name] != position:
            return []
        fence = [Instruction("fence")] if name in self.unfenced else []
        return [*fence, Instruction("arrive", barrier=name)]


def _insert_waits(body: list[Instruction], waits: Sequence[Instruction]) -> None:
    """Append waits; those for a fill before the wait for products right in front, if any: both are due, and products
    take longer. A wait for a release stays behind, where the role has released all that it is done with."""
    place = len(body)
    while place and body[place - 1].kind == "wait_groups":
        place -= 1
    body[place:place] = [wait for wait in waits if wait.side == "consumer"]
    body += [wait for wait in waits if wait.side == "producer"]


# ---- barriers


def _barriers(roles: Sequence[Role], rings: Sequence[Ring], assignment: Assignment) -> tuple[Barrier, ...]:
    """Barriers in the order of their first ring, ready before free; counts are the arrivals that the bodies make."""
    found = []
    for side in (assignment.ready, assignment.free):
        for name in dict.fromkeys(side[ring.name] for ring in rings if ring.name in side):
            members = [ring for ring in rings if side.get(ring.name) == name]
            found.append(_barrier(name, members, roles, releases=side is assignment.free))
    return tuple(found)


def _barrier(name: str, rings: Sequence[Ring], roles: Sequence[Role], releases: bool) -> Barrier:
    classes = {ring.stage_class for ring in rings}
    arriving = [role for role in roles for i in role.body if i.kind == "arrive" and i.barrier == name]
    waiting = [role for role in roles for i in role.body if i.kind == "wait" and i.barrier == name]
    landing = [ring for ring in rings if ring.load is not None and len(ring.shape) == 2 and not releases]
    return Barrier(
        name,
        rings[0].stages,
        "load" if "load" in classes else "handover" if "handover" in classes else "output",
        sum(role.warps for role in arriving),
        tuple(ring.name for ring in rings),
        tuple(dict.fromkeys(role.name for role in arriving)),
        tuple(dict.fromkeys(role.name for role in waiting)),
        sum(ring.bytes // ring.stages for ring in landing),
        releases,
    )


# ---- pruning


def prune(whole: Synchronised, rings: tuple[Ring, ...]) -> Synchronised:
    """Drop, one at a time, waits and releases that the others imply; each drop is kept only if the check passes."""
    for kind, producer in (("wait", True), ("arrive", True), ("wait", False)):
        for index in range(len(whole.roles)):
            position = 0
            while position < len(whole.roles[index].body):
                instruction = whole.roles[index].body[position]
                candidate = _drop(whole, index, position) if _prunable(whole, instruction, kind, producer) else None
                if candidate is not None and _holds(candidate, rings):
                    whole = candidate
                else:
                    position += 1
    return whole


def _prunable(whole: Synchronised, instruction: Instruction, kind: str, producer: bool) -> bool:
    if instruction.kind != kind:
        return False
    if kind == "wait":
        return (instruction.side == "producer") == producer
    return next(b for b in whole.barriers if b.name == instruction.barrier).releases


def _drop(whole: Synchronised, index: int, position: int) -> Synchronised | None:
    """Without one instruction; a barrier that nobody waits for any more goes too. None if nobody would arrive."""
    dropped = whole.roles[index].body[position]
    name = dropped.barrier
    what = "wait for" if dropped.kind == "wait" else "arrive at"
    implied = (*whole.implied, f"{whole.roles[index].name}: {what} {name}")
    body = (*whole.roles[index].body[:position], *whole.roles[index].body[position + 1 :])
    roles = [replace(role, body=body) if number == index else role for number, role in enumerate(whole.roles)]
    useless = not any(i.kind == "wait" and i.barrier == name for role in roles for i in role.body)
    old = next(barrier for barrier in whole.barriers if barrier.name == name)
    if useless and old.transaction_bytes == 0:
        kept = [replace(role, body=tuple(i for i in role.body if i.barrier != name)) for role in roles]
        return Synchronised(tuple(kept), tuple(b for b in whole.barriers if b.name != name), implied)
    arriving = [role for role in roles for i in role.body if i.kind == "arrive" and i.barrier == name]
    waiting = [role for role in roles for i in role.body if i.kind == "wait" and i.barrier == name]
    if not arriving or not waiting:
        return None
    new = replace(
        old,
        count=sum(role.warps for role in arriving),
        producers=tuple(dict.fromkeys(role.name for role in arriving)),
        consumers=tuple(dict.fromkeys(role.name for role in waiting)),
    )
    return Synchronised(tuple(roles), tuple(new if b.name == name else b for b in whole.barriers), implied)
