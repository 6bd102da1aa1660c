"""Asynchronous list scheduling of one role: which step is issued next, and where a wgmma group is waited for.

One warpgroup issues in order. Products run beside it in one queue and retire in order. The most urgent step comes
first: on the chain from the carried value to its successor, then by the longest path behind it. A less urgent step
is issued only in the shadow of what a more urgent one waits for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qlagen.errors import QlagenError
from qlagen.schedule.model import Step
from qlagen.schedule.steps import RoleSteps


@dataclass(frozen=True)
class Line:
    """A step, or a wait that leaves `groups` wgmma groups in flight."""

    step: Step | None
    groups: int = 0


@dataclass(frozen=True)
class Graph:
    """Which steps come before which, and which are on the chain to the carry's successor (all, without a carry)."""

    steps: Mapping[str, Step]
    before: Mapping[str, frozenset[str]]
    chain: frozenset[str]
    group: Mapping[str, str]
    """Register value to the group whose registers it takes."""
    height: Mapping[str, int]
    """Clocks of the longest path from a step to the end."""

    def off_chain_gemms(self) -> tuple[str, ...]:
        return tuple(s.name for s in self.steps.values() if s.kind == "gemm" and s.name not in self.chain)

    def chain_gemms(self) -> int:
        return sum(s.kind == "gemm" and s.name in self.chain for s in self.steps.values())


def build_graph(role: RoleSteps, goal: str | None) -> Graph:
    """The dependences of a role's steps; `goal` is the carry's next value. Raises E-ORDER for a cycle."""
    steps = {step.name: step for step in role.steps}
    carried = {value.name for value in role.values if value.carried}
    made = {s.writes: s.name for s in role.steps if s.writes is not None and s.writes not in carried}
    filled = {s.ring_out: s.name for s in role.steps if s.ring_out is not None}
    before = {}
    for step in role.steps:
        sources = [made.get(read) for read in step.reads] + [filled.get(ring) for ring in step.rings]
        names = {name for name in (*sources, *step.after) if name is not None}
        before[step.name] = frozenset(names - {step.name})
    height = _heights(role, steps, before)
    chain = _chain(role.steps, before, goal)
    return Graph(steps, before, chain or frozenset(steps), {v.name: v.group for v in role.values}, height)


def _heights(role: RoleSteps, steps: Mapping[str, Step], before: Mapping[str, frozenset[str]]) -> dict[str, int]:
    behind: dict[str, list[str]] = {name: [] for name in steps}
    for name, sources in before.items():
        for source in sources:
            behind[source].append(name)
    height: dict[str, int] = {}
    while len(height) < len(steps):
        known = [n for n in steps if n not in height and all(m in height for m in behind[n])]
        if not known:
            cycle = ", ".join(n for n in steps if n not in height)
            message = f"role {role.name}: these steps wait for each other: {cycle}"
            hint = "a value that is accumulated onto cannot be read afterwards: compute it twice in the program"
            raise QlagenError("E-ORDER", message, hints=[hint])
        for name in known:
            height[name] = steps[name].cost + max((height[m] for m in behind[name]), default=0)
    return height


def _chain(steps: Iterable[Step], before: Mapping[str, frozenset[str]], goal: str | None) -> frozenset[str]:
    """Steps that lead to the carry's next value, and the cast of it that the next iteration needs."""
    found: set[str] = set()
    pending = [step.name for step in steps if goal is not None and step.writes == goal]
    while pending:
        name = pending.pop()
        if name not in found:
            found.add(name)
            pending += before[name]
    following = (step.name for step in steps if found and step.kind == "cast" and goal in step.reads)
    return frozenset(found | set(following))


@dataclass
class ListScheduler:
    """Orders the steps of one role. `delays`: how many chain products must be issued before an off-chain one.
    `as_written`: keep to the program's order, which holds the fewest results at a time."""

    graph: Graph
    delays: Mapping[str, int]
    as_written: bool = False
    lines: list[Line] = field(default_factory=list)
    clock: int = 0
    _tensor_free: int = 0
    _chain_issued: int = 0
    _flight: list[tuple[str, int]] = field(default_factory=list)
    _done: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Fill `lines` and `clock`."""
        while len(self._done) < len(self.graph.steps):
            ready = self._ready()
            free = [n for n in ready if not self._blockers(n)]
            blocked = [n for n in ready if n not in free]
            pick = self._pick(free, blocked)
            if pick is None:
                self._wait_for(blocked)
            else:
                self._issue(pick)
        if self._flight:
            self.clock = max(self.clock, self._flight[-1][1])
            self.lines.append(Line(None, 0))

    def _ready(self) -> list[str]:
        """Steps whose operands exist (possibly in flight), most urgent first."""
        steps = self.graph.steps
        names = [n for n in steps if n not in self._done and self.graph.before[n] <= self._done and self._may_issue(n)]
        if self.as_written:
            return names[:1]
        # A stable sort, so that equally urgent steps keep the program's order.
        return sorted(names, key=self._urgency, reverse=True)

    def _may_issue(self, name: str) -> bool:
        delayed = self.graph.steps[name].kind == "gemm" and name not in self.graph.chain
        return not delayed or self._chain_issued >= self.delays.get(name, 0)

    def _blockers(self, name: str) -> list[tuple[str, int]]:
        """Groups in flight that must retire first: results that the step reads, registers that it overwrites."""
        step, group = self.graph.steps[name], self.graph.group
        written = None if step.writes is None else group[step.writes]
        found = []
        for running, end in self._flight:
            gemm = self.graph.steps[running]
            assert gemm.writes is not None
            result = group[gemm.writes]
            overwrites = written is not None and written in {result, *(group[read] for read in gemm.reads)}
            if overwrites or any(group[read] == result for read in step.reads):
                found.append((running, end))
        return found

    def _pick(self, free: Sequence[str], blocked: Sequence[str]) -> str | None:
        gemms = [n for n in free if self.graph.steps[n].kind == "gemm"]
        others = [n for n in free if self.graph.steps[n].kind != "gemm"]
        if gemms:
            return gemms[0]
        if others and blocked and self._more_urgent(blocked[0], others[0]):
            until = self._retires(blocked[0])
            return next((n for n in others if self.clock + self.graph.steps[n].cost <= until), None)
        return others[0] if others else None

    def _more_urgent(self, first: str, second: str) -> bool:
        return self._urgency(first) > self._urgency(second)

    def _urgency(self, name: str) -> tuple[bool, int]:
        return name in self.graph.chain, self.graph.height[name]

    def _retires(self, name: str) -> int:
        return max(end for _, end in self._blockers(name))

    def _wait_for(self, blocked: Sequence[str]) -> None:
        """Wait for the most urgent step's operands, or for an earlier group that frees a step which fits before."""
        target, until = blocked[0], self._retires(blocked[0])
        for name in blocked:
            step, end = self.graph.steps[name], self._retires(name)
            issue = 0 if step.kind == "gemm" else step.cost
            if end < until and max(self.clock, end) + issue <= until:
                target = name
                break
        needed = self._blockers(target)
        last = max(index for index, running in enumerate(self._flight) if running in needed)
        self.clock = max(self.clock, self._flight[last][1])
        del self._flight[: last + 1]
        self.lines.append(Line(None, len(self._flight)))

    def _issue(self, name: str) -> None:
        step = self.graph.steps[name]
        self._done.add(name)
        self.lines.append(Line(step))
        if step.kind == "gemm":
            self._tensor_free = max(self.clock, self._tensor_free) + step.cost
            self._flight.append((name, self._tensor_free))
            self._chain_issued += name in self.graph.chain
        else:
            self.clock += step.cost
