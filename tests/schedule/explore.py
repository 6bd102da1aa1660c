"""Every interleaving of a small schedule's roles, on barriers as the hardware has them: parity bits, arrivals, bytes.

It shares nothing with the vector-clock check but the schedule record: it knows only what a read finds, no order.
A slot holds the iteration that filled it, or nothing while a TMA load is on its way.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from qlagen.schedule.model import Barrier, Instruction, Ring, Role, Schedule

Event = tuple[str, str, bool]
"""(what, ring or barrier, producer side): wait, arrive, read, write, issue."""


@dataclass(frozen=True)
class State:
    """Where every role is, loads on their way (ring, iteration), barriers (parity, arrivals, bytes), slots."""

    positions: tuple[int, ...]
    flying: frozenset[tuple[str, int]]
    barriers: tuple[tuple[int, int, int], ...]
    slots: tuple[int | None, ...]


class Explorer:
    """Searches all states for one in which a read finds the wrong iteration or nothing can move."""

    def __init__(self, schedule: Schedule, iterations: int) -> None:
        self.iterations = iterations
        self.roles = [role for role in schedule.roles if role.body]
        self.rings = {ring.name: ring for ring in schedule.rings}
        self.traces = [tuple(self._events(role)) for role in self.roles]
        self.barriers = {barrier.name: barrier for barrier in schedule.barriers}
        self.barrier_at = self._index([(b.name, b.stages) for b in schedule.barriers])
        self.slot_at = self._index([(r.name, r.stages) for r in schedule.rings])
        self.expects = {ring: b.name for b in schedule.barriers if not b.releases for ring in b.rings}

    @staticmethod
    def _index(sizes: list[tuple[str, int]]) -> dict[tuple[str, int], int]:
        return {key: number for number, key in enumerate((name, stage) for name, n in sizes for stage in range(n))}

    def _events(self, role: Role) -> Iterator[Event]:
        flight: list[tuple[str, ...]] = []
        for instruction in role.body:
            if instruction.kind == "wait_groups":
                while len(flight) > instruction.groups:
                    yield from (("read", ring, False) for ring in flight.pop(0))
            else:
                yield from self._simple_events(instruction)
            if instruction.step is not None and instruction.step.kind == "gemm":
                flight.append(instruction.step.rings)

    def _simple_events(self, instruction: Instruction) -> Iterator[Event]:
        if instruction.kind in ("wait", "arrive"):
            yield instruction.kind, instruction.barrier or "", instruction.side == "producer"
        elif instruction.kind == "store":
            yield "read", instruction.ring or "", False
        elif instruction.kind == "load":
            yield (
                "issue" if self._is_tma(self.rings[instruction.ring or ""]) else "write",
                instruction.ring or "",
                False,
            )
        elif instruction.step is not None:
            yield from (("read", ring, False) for ring in instruction.step.rings)
            if instruction.step.ring_out is not None:
                yield "write", instruction.step.ring_out, False

    @staticmethod
    def _is_tma(ring: Ring) -> bool:
        return ring.load is not None and len(ring.shape) == 2

    def fault(self) -> str | None:
        """The first fault found, or None when no interleaving has one."""
        start = State(
            (0,) * len(self.roles), frozenset(), ((0, 0, 0),) * len(self.barrier_at), (None,) * len(self.slot_at)
        )
        seen, pending = {start}, [start]
        while pending:
            state = pending.pop()
            moves = list(self._moves(state))
            if not moves and not self._is_done(state):
                return "deadlock"
            for move in moves:
                if isinstance(move, str):
                    return move
                if move not in seen:
                    seen.add(move)
                    pending.append(move)
        return None

    def _is_done(self, state: State) -> bool:
        ends = (len(trace) * self.iterations for trace in self.traces)
        return not state.flying and all(at == end for at, end in zip(state.positions, ends, strict=True))

    def _moves(self, state: State) -> Iterator[State | str]:
        for ring, iteration in sorted(state.flying):
            yield self._land(state, ring, iteration)
        for number, trace in enumerate(self.traces):
            iteration, at = divmod(state.positions[number], len(trace))
            if iteration < self.iterations:
                moved = self._step(state, number, trace[at], iteration)
                if isinstance(moved, State):
                    ahead = list(moved.positions)
                    ahead[number] += 1
                    yield replace(moved, positions=tuple(ahead))
                elif moved is not None:
                    yield moved

    def _step(self, state: State, number: int, event: Event, iteration: int) -> State | str | None:
        kind, target, producer = event
        if kind == "wait":
            barrier = self.barriers[target]
            parity = (iteration // barrier.stages + producer) % 2
            here = state.barriers[self.barrier_at[target, iteration % barrier.stages]]
            return state if here[0] != parity else None
        if kind == "arrive":
            barrier = self.barriers[target]
            return self._count(state, barrier, iteration, arrivals=self.roles[number].warps)
        at = self.slot_at[target, iteration % self.rings[target].stages]
        if kind == "read":
            return state if state.slots[at] == iteration else f"{self.roles[number].name} reads {target} wrongly"
        slots = list(state.slots)
        slots[at] = iteration if kind == "write" else None
        state = replace(state, slots=tuple(slots))
        if kind == "issue":
            state = replace(state, flying=state.flying | {(target, iteration)})
            return self._count(state, self.barriers[self.expects[target]], iteration, loads=1)
        return state

    def _land(self, state: State, ring: str, iteration: int) -> State | str:
        at = self.slot_at[ring, iteration % self.rings[ring].stages]
        slots = list(state.slots)
        slots[at] = iteration
        state = replace(state, flying=state.flying - {(ring, iteration)}, slots=tuple(slots))
        return self._count(state, self.barriers[self.expects[ring]], iteration, loads=-1)

    def _count(self, state: State, barrier: Barrier, iteration: int, arrivals: int = 0, loads: int = 0) -> State | str:
        at = self.barrier_at[barrier.name, iteration % barrier.stages]
        parity, arrived, expected = state.barriers[at]
        arrived, expected = arrived + arrivals, expected + loads
        if arrived > barrier.count:
            return f"too many arrivals at {barrier.name}"
        if arrived == barrier.count and expected == 0:
            parity, arrived = 1 - parity, 0
        barriers = list(state.barriers)
        barriers[at] = parity, arrived, expected
        return replace(state, barriers=tuple(barriers))
