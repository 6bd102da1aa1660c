"""Runs the roles' barrier protocol with vector clocks: deadlocks, races, and parities that could be mistaken.

Barriers here have no data-dependent branch, so one run shows every deadlock, and happens-before (vector clocks) shows
races whatever the interleaving. A TMA load is an agent of its own: its mover does not know when the bytes have come;
only who waits for the barrier that expects them does.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from qlagen.errors import QlagenError
from qlagen.schedule.model import Barrier, Instruction, Ring, Role, Step

Clock = list[int]


@dataclass(frozen=True)
class Event:
    """One synchronisation-relevant action of an iteration: wait, arrive, read, write, or issue (of a TMA load)."""

    kind: str
    target: str
    producer_side: bool = False
    landings: tuple[str, ...] = ()
    """TMA-filled rings whose bytes this arrival's barrier expects."""


@dataclass
class _Phase:
    """One stage of one barrier."""

    completed: int = 0
    pending: int = 0
    gathering: Clock = field(default_factory=list)
    released: Clock = field(default_factory=list)
    waited: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Role to the iteration and its own time when it last passed a wait here."""


@dataclass
class _Slot:
    """One stage of one ring: which iteration filled it, who, when, and when each reader read it."""

    iteration: int
    writer: str
    time: int
    readers: dict[str, int] = field(default_factory=dict)


def trace_role(role: Role, rings: dict[str, Ring], barriers: dict[str, Barrier]) -> tuple[Event, ...]:
    """What one iteration of a role does to rings and barriers. A wgmma reads until its group is waited for."""
    events: list[Event] = []
    flight: list[Step] = []
    for instruction in role.body:
        if instruction.kind in ("wait", "arrive") and instruction.barrier is not None:
            events.append(_barrier_event(instruction, role, rings, barriers))
        elif instruction.kind in ("load", "store") and instruction.ring is not None:
            tile = len(rings[instruction.ring].shape) == 2
            kind = "read" if instruction.kind == "store" else "issue" if tile else "write"
            events.append(Event(kind, instruction.ring))
        elif instruction.kind == "wait_groups":
            retired, flight = _retire(flight, instruction.groups)
            events += [Event("read", ring) for step in retired for ring in step.rings]
        elif instruction.step is not None:
            step = instruction.step
            events += [Event("read", ring) for ring in step.rings]
            if step.ring_out is not None:
                events.append(Event("write", step.ring_out))
            if step.kind == "gemm":
                flight.append(step)
    return tuple(events)


def _retire(flight: list[Step], groups: int) -> tuple[list[Step], list[Step]]:
    count = max(0, len(flight) - groups)
    return flight[:count], flight[count:]


def _barrier_event(instruction: Instruction, role: Role, rings: dict[str, Ring], barriers: dict[str, Barrier]) -> Event:
    name = instruction.barrier or ""
    if instruction.kind == "wait":
        return Event("wait", name, instruction.side == "producer")
    barrier = barriers[name]
    own = (r for r in barrier.rings if rings[r].load is not None and rings[r].producer == role.name)
    landings = () if barrier.releases else tuple(r for r in own if len(rings[r].shape) == 2)
    return Event("arrive", name, landings=landings)


class Protocol:
    """All roles for the iterations of `items`, one item after another. `seed`: a random interleaving; None: each role
    runs as far as it can."""

    def __init__(
        self,
        roles: Sequence[Role],
        rings: Iterable[Ring],
        barriers: Iterable[Barrier],
        items: Sequence[int],
        seed: int | None = None,
    ) -> None:
        self.rings = {ring.name: ring for ring in rings}
        self.barriers = {barrier.name: barrier for barrier in barriers}
        self.warps = {role.name: role.warps for role in roles}
        self.traces = {role.name: trace_role(role, self.rings, self.barriers) for role in roles}
        self.numbers = iteration_numbers(items)
        self.iterations = len(self.numbers)
        self.random = None if seed is None else random.Random(seed)
        landing = [ring for ring in self.rings.values() if ring.load is not None and len(ring.shape) == 2]
        self.agents = [*self.traces, *(f"tma {ring.name}" for ring in landing)]
        self.index = {agent: number for number, agent in enumerate(self.agents)}
        self.clocks: dict[str, Clock] = {agent: [0] * len(self.agents) for agent in self.agents}
        self.phases: dict[tuple[str, int], _Phase] = {}
        self.slots: dict[tuple[str, int], _Slot] = {}
        self.position = dict.fromkeys(self.traces, 0)

    def run(self) -> None:
        """Raises E-DEADLOCK, E-RACE, E-PHASE and E-ARRIVALS."""
        running = [role for role in self.traces if self.traces[role]]
        length = {role: len(self.traces[role]) * self.iterations for role in running}
        while True:
            moved = False
            for role in self._turn(running):
                burst = self.random.randint(1, 4) if self.random else length[role]
                while burst and self.position[role] < length[role] and self._advance(role):
                    moved, burst = True, burst - 1
            if not moved:
                break
        stuck = [role for role in running if self.position[role] < length[role]]
        if stuck:
            raise self._deadlock(stuck)

    def _turn(self, running: list[str]) -> list[str]:
        return self.random.sample(running, len(running)) if self.random else running

    def _advance(self, role: str) -> bool:
        """One event of a role; False when it must wait."""
        trace = self.traces[role]
        turn, at = divmod(self.position[role], len(trace))
        event, iteration = trace[at], self.numbers[turn]
        if event.kind == "wait":
            if not self._wait(role, event, iteration):
                return False
        elif event.kind == "arrive":
            self._arrive(role, event, iteration)
        elif event.kind == "read":
            self._read(role, event.target, iteration)
        elif event.kind == "write":
            self._write(role, event.target, iteration)
        else:
            self._issue(role, event.target, iteration)
        self.clocks[role][self.index[role]] += 1
        self.position[role] += 1
        return True

    def _phase(self, barrier: Barrier, iteration: int) -> _Phase:
        key = barrier.name, iteration % barrier.stages
        phase = self.phases.get(key)
        if phase is None:
            zero = [0] * len(self.agents)
            phase = self.phases[key] = _Phase(gathering=list(zero), released=zero)
        return phase

    def _wait(self, role: str, event: Event, iteration: int) -> bool:
        barrier = self.barriers[event.target]
        phase = self._phase(barrier, iteration)
        expected = iteration // barrier.stages + (not event.producer_side)
        if phase.completed % 2 != expected % 2:
            return False
        if phase.completed != expected:
            raise self._mistaken(role, barrier, iteration)
        if phase.completed:
            self._join(role, phase.released)
        phase.waited[role] = iteration, self.clocks[role][self.index[role]] + 1
        return True

    def _arrive(self, role: str, event: Event, iteration: int) -> None:
        barrier = self.barriers[event.target]
        phase = self._phase(barrier, iteration)
        for agent in (role, *(f"tma {ring}" for ring in event.landings)):
            phase.gathering = [max(a, b) for a, b in zip(phase.gathering, self.clocks[agent], strict=True)]
        phase.pending += self.warps[role]
        if phase.pending > barrier.count:
            message = f"{barrier.name}: more than its count of {barrier.count} arrivals in one phase"
            raise QlagenError("E-ARRIVALS", message, notes=[self._place(role, iteration)])
        if phase.pending == barrier.count:
            self._complete(barrier, phase, iteration)

    def _complete(self, barrier: Barrier, phase: _Phase, iteration: int) -> None:
        """A phase may end only when everyone has seen the one before, else its parity could be mistaken."""
        for role, trace in self.traces.items():
            for event in trace:
                if event.kind == "wait" and event.target == barrier.name:
                    self._check_seen(barrier, phase, role, event.producer_side, iteration)
        phase.completed += 1
        phase.pending = 0
        phase.released = phase.gathering
        phase.gathering = [0] * len(self.agents)

    def _check_seen(self, barrier: Barrier, phase: _Phase, role: str, producer: bool, iteration: int) -> None:
        turn = phase.completed - (not producer)
        due = turn * barrier.stages + iteration % barrier.stages
        if turn < 0 or due >= self.iterations:
            return
        passed, time = phase.waited.get(role, (-1, 0))
        if passed != due or phase.gathering[self.index[role]] < time:
            raise self._mistaken(role, barrier, due)

    def _join(self, agent: str, other: Clock) -> None:
        self.clocks[agent] = [max(a, b) for a, b in zip(self.clocks[agent], other, strict=True)]

    def _knows(self, agent: str, other: str, time: int) -> bool:
        return agent == other or self.clocks[agent][self.index[other]] >= time

    def _read(self, role: str, ring: str, iteration: int) -> None:
        slot = self.slots.get((ring, iteration % self.rings[ring].stages))
        if slot is None or slot.iteration != iteration or not self._knows(role, slot.writer, slot.time):
            message = f"role {role} reads {ring} before it is filled"
            raise QlagenError("E-RACE", message, notes=[self._place(role, iteration)])
        slot.readers[role] = self.clocks[role][self.index[role]] + 1

    def _write(self, agent: str, ring: str, iteration: int) -> None:
        key = ring, iteration % self.rings[ring].stages
        slot = self.slots.get(key)
        if slot is not None:
            for other, time in ((slot.writer, slot.time), *slot.readers.items()):
                if not self._knows(agent, other, time):
                    message = f"{agent} overwrites {ring} before role {other} is done with it"
                    raise QlagenError("E-RACE", message, notes=[self._place(agent, iteration)])
        self.slots[key] = _Slot(iteration, agent, self.clocks[agent][self.index[agent]] + 1)

    def _issue(self, role: str, ring: str, iteration: int) -> None:
        agent = f"tma {ring}"
        self._join(agent, self.clocks[role])
        self._write(agent, ring, iteration)
        self.clocks[agent][self.index[agent]] += 1

    def _place(self, role: str, iteration: int) -> str:
        return f"iteration {iteration} of {self.iterations}, in {role}"

    def _mistaken(self, role: str, barrier: Barrier, iteration: int) -> QlagenError:
        message = f"role {role} may take another phase of {barrier.name} for the one it waits for"
        return QlagenError("E-PHASE", message, notes=[self._place(role, iteration)])

    def _deadlock(self, stuck: Iterable[str]) -> QlagenError:
        notes = []
        for role in stuck:
            turn, at = divmod(self.position[role], len(self.traces[role]))
            notes.append(f"{role} waits for {self.traces[role][at].target} in iteration {self.numbers[turn]}")
        return QlagenError("E-DEADLOCK", f"the roles wait for each other ({self.iterations} iterations)", notes=notes)


def iteration_numbers(items: Sequence[int]) -> tuple[int, ...]:
    """What the iterations of a CTA's items are counted by: slots and phases run on from one item to the next."""
    numbers: list[int] = []
    for iterations in items:
        numbers += range(len(numbers), len(numbers) + iterations)
    return tuple(numbers)


def iteration_counts(rings: Iterable[Ring]) -> tuple[int, ...]:
    """Counts of iterations that show all wrap-arounds: 0, 1, 2, and s, s + 1, 2 s + 1 for every number of stages s."""
    counts = {0, 1, 2}
    for ring in rings:
        counts |= {ring.stages, ring.stages + 1, 2 * ring.stages + 1}
    return tuple(sorted(counts))


def check_protocol(roles: Sequence[Role], rings: Sequence[Ring], barriers: Sequence[Barrier], seeds: int = 3) -> None:
    """Run the protocol for every count of iterations, and in `seeds` random interleavings. Raises as `Protocol.run`."""
    counts = iteration_counts(rings)
    for iterations in counts:
        Protocol(roles, rings, barriers, (iterations,)).run()
    for seed in range(seeds):
        Protocol(roles, rings, barriers, counts[-1:], seed).run()


def check_items(roles: Sequence[Role], rings: Sequence[Ring], barriers: Sequence[Barrier], seeds: int = 3) -> None:
    """The same for items of all these counts that one CTA walks, one after another."""
    counts = iteration_counts(rings)
    Protocol(roles, rings, barriers, (*counts, *counts)).run()
    for seed in range(seeds):
        Protocol(roles, rings, barriers, random.Random(seed).sample(counts, len(counts)), seed).run()
