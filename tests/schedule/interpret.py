"""Runs a schedule on arrays in float64: roles side by side in a random interleaving, registers by fragment, shared
memory by ring slot, products when their group is waited for. What it computes must be what the program says."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from qlagen.program.ir import ElementExpr, Gate, Number, Ref
from qlagen.schedule.model import Instruction, Role, Schedule, Step

Array = npt.NDArray[np.float64]


class Machine:
    """One CTA. `memory` holds one mapping per iteration from tensors to the CTA's tiles of them."""

    def __init__(self, schedule: Schedule, memory: Sequence[dict[str, Array]], scalars: Mapping[str, float]) -> None:
        self.schedule = schedule
        self.memory = memory
        self.scalars = scalars
        self.fragment = dict(schedule.fragment_of)
        self.values = {value.name: value for value in schedule.values}
        self.rings = {ring.name: ring for ring in schedule.rings}
        self.barriers = {barrier.name: barrier for barrier in schedule.barriers}
        self.registers: dict[str, Array] = {}
        self.slots: dict[tuple[str, int], Array] = {}
        self.phases: dict[tuple[str, int], tuple[int, int]] = {}

    def run(self, state: Array | None, seed: int) -> Array | None:
        """The carried value after all iterations; stores go to `memory`."""
        carry = self.schedule.program.carry
        if carry is not None and state is not None:
            held = state.T if self.schedule.transposed else state
            for name in (carry.name, self.schedule.carried_operand):
                if name in self.fragment:
                    self.registers[self.fragment[name]] = held.copy()
        turns = random.Random(seed)
        running = [self._role(role) for role in self.schedule.roles]
        idle = 0
        while running:
            chosen = turns.choice(running)
            try:
                idle = 0 if next(chosen) else idle + 1
            except StopIteration:
                running.remove(chosen)
                idle = 0
            assert idle < 1000 * len(running) + 1000, "the roles wait for each other"
        if carry is None:
            return None
        held = self.registers[self.fragment[carry.name]]
        return held.T if self.schedule.transposed else held

    def _role(self, role: Role) -> Iterator[bool]:
        """Yields after each instruction: whether it was done, or waits."""
        for iteration in range(len(self.memory)):
            flight: list[Step] = []
            for instruction in role.body:
                while not self._passes(instruction, iteration):
                    yield False
                self._do(role, instruction, iteration, flight)
                yield True

    def _passes(self, instruction: Instruction, iteration: int) -> bool:
        if instruction.kind != "wait":
            return True
        barrier = self.barriers[instruction.barrier or ""]
        completed, _ = self.phases.get((barrier.name, iteration % barrier.stages), (0, 0))
        return completed >= iteration // barrier.stages + (instruction.side == "consumer")

    def _do(self, role: Role, instruction: Instruction, iteration: int, flight: list[Step]) -> None:
        if instruction.kind == "arrive":
            self._arrive(role, instruction.barrier or "", iteration)
        elif instruction.kind == "wait_groups":
            while len(flight) > instruction.groups:
                self._multiply(flight.pop(0), iteration)
        elif instruction.kind in ("load", "store"):
            ring = self.rings[instruction.ring or ""]
            if ring.load is not None:
                self._fill(ring.name, iteration, self.memory[iteration][ring.load.tensor.name].copy())
            elif ring.store is not None:
                self.memory[iteration][ring.store.tensor.name] = self._slot(ring.name, iteration).copy()
        elif instruction.step is not None and instruction.step.kind == "gemm":
            flight.append(instruction.step)
        elif instruction.step is not None:
            self._compute(role, instruction.step, iteration)

    def _arrive(self, role: Role, name: str, iteration: int) -> None:
        barrier = self.barriers[name]
        key = name, iteration % barrier.stages
        completed, arrived = self.phases.get(key, (0, 0))
        arrived += role.warps
        self.phases[key] = (completed + 1, 0) if arrived == barrier.count else (completed, arrived)

    def _slot(self, ring: str, iteration: int) -> Array:
        return self.slots[ring, iteration % self.rings[ring].stages]

    def _fill(self, ring: str, iteration: int, values: Array) -> None:
        self.slots[ring, iteration % self.rings[ring].stages] = values

    def _register(self, value: str) -> Array:
        """A register value the way round that its role computes."""
        held = self.registers[self.fragment[value]]
        return held.T if self.values[value].transposed_view else held

    def _multiply(self, step: Step, iteration: int) -> None:
        shared = step.left_home == "shared"
        left = self._slot(step.left or "", iteration) if shared else self._register(step.left or "")
        right = self._slot(step.right or "", iteration)
        result = (left.T if step.transpose_left else left) @ (right.T if step.transpose_right else right)
        fragment = self.fragment[step.writes or ""]
        self.registers[fragment] = result if step.clear else self.registers[fragment] + result

    def _compute(self, role: Role, step: Step, iteration: int) -> None:
        if step.kind == "fetch":
            result = self._slot(step.rings[0], iteration)
        elif step.kind in ("cast", "turn", "put", "share"):
            result = self._register(step.reads[0])
            assert (step.kind == "turn") == self.values[step.reads[0]].transposed_view
        elif step.kind == "scan":
            result = np.cumsum(self._slot(step.rings[0], iteration))
        elif step.kind == "inverse":
            source = self._register(step.reads[0])
            result = np.linalg.inv(np.eye(len(source)) - source) * self._columns(step, iteration)
        elif step.kind == "inverse_heads":
            result = self._inverse_heads(step, iteration)
        else:
            assert step.expr is not None
            turned = self.schedule.transposed and role.name == "state"
            result = np.asarray(_Expression(self, step, iteration, turned).evaluate(step.expr))
        self._keep(step, iteration, result)

    def _inverse_heads(self, step: Step, iteration: int) -> Array:
        matrix = self._slot(step.matrix or "", iteration)
        if step.factors is not None:
            matrix = self._slot(step.factors, iteration)[:, None] * matrix
        if step.decay is not None:
            gate = self._slot(step.decay, iteration)
            matrix = matrix * np.exp(np.minimum(gate[:, None] - gate[None, :], 0))
        return np.linalg.inv(np.eye(len(matrix)) + np.tril(matrix, -1)) * self._columns(step, iteration)

    def _columns(self, step: Step, iteration: int) -> Array:
        """The scale of an inverse's columns."""
        return np.ones(1) if step.columns is None else self._slot(step.columns, iteration)

    def _keep(self, step: Step, iteration: int, result: Array) -> None:
        if step.writes is not None:
            value = self.values[step.writes]
            kept = result.T if value.transposed_view and step.kind != "fetch" else result
            assert kept.shape == value.shape, (step.name, kept.shape, value.shape)
            self.registers[self.fragment[step.writes]] = kept.copy()
            result = kept
        if step.ring_out is not None:
            size = dict(self.schedule.dims) | {"V": self.schedule.options.value_tile}
            dims = self.rings[step.ring_out].dims
            assert step.kind == "share" or result.shape == tuple(size[dim] for dim in dims), step.name
            self._fill(step.ring_out, iteration, result.copy())


class _Expression:
    """An elementwise expression of one step; `turned` when its matrices are held transposed."""

    def __init__(self, machine: Machine, step: Step, iteration: int, turned: bool) -> None:
        self.machine = machine
        self.step = step
        self.iteration = iteration
        self.turned = turned
        self.gates = {gate.name: gate for gate in step.gates}
        self.lookups = dict(step.lookups)

    def evaluate(self, expr: ElementExpr) -> Array | float:
        if isinstance(expr, Number):
            return float(expr.value)
        if isinstance(expr, Ref):
            return self._leaf(expr)
        left, right = self.evaluate(expr.left), self.evaluate(expr.right)
        return left * right if expr.operator == "mul" else left + right if expr.operator == "add" else left - right

    def _leaf(self, ref: Ref) -> Array | float:
        if ref.name in self.gates:
            return self._gate(self.gates[ref.name])
        if ref.name in self.step.reads:
            return self.machine._register(ref.name)
        if ref.name in self.step.rings:
            vector = self.machine._slot(ref.name, self.iteration)
            if ref.along is None:
                return vector
            return vector[:, None] if (ref.along == "rows") != self.turned else vector[None, :]
        assert ref.along == "all"
        return self.machine.scalars[ref.name]

    def _gate(self, gate: Gate) -> Array | float:
        if gate.source is None:
            return np.tril(np.ones((64, 64)), -1 if gate.kind == "strict" else 0)
        vector = self.machine._slot(self.lookups[gate.name], self.iteration)
        if gate.kind == "total":
            return float(vector[-1])
        if gate.kind == "decay":
            return np.tril(np.exp(np.minimum(vector[:, None] - vector[None, :], 0)))
        return np.exp(vector if gate.kind == "from_start" else vector[-1] - vector)


def run_schedule(
    schedule: Schedule,
    memory: Sequence[Mapping[str, Array]],
    scalars: Mapping[str, float],
    state: Array | None,
    seed: int = 0,
) -> tuple[list[dict[str, Array]], Array | None]:
    """All V tiles of a kernel, one after another: what each iteration stored, and the final carried value."""
    tile = schedule.options.value_tile
    width = dict(schedule.dims)["V"]
    stored: list[dict[str, list[Array]]] = [{} for _ in memory]
    states = []
    for first in range(0, width, tile):
        part = slice(first, first + tile)
        tiles = [{n: a[:, part] if _has_V(schedule, n) else a for n, a in slot.items()} for slot in memory]
        machine = Machine(schedule, tiles, scalars)
        states.append(machine.run(None if state is None else state[:, part], seed))
        for number, slot in enumerate(machine.memory):
            for store in schedule.program.stores:
                stored[number].setdefault(store.tensor.name, []).append(slot[store.tensor.name])
    outputs = [
        {n: np.concatenate(parts, axis=1) if _has_V(schedule, n) else parts[0] for n, parts in slot.items()}
        for slot in stored
    ]
    kept = [s for s in states if s is not None]
    return outputs, np.concatenate(kept, axis=1) if kept else None


def _has_V(schedule: Schedule, tensor: str) -> bool:
    """Whether a tensor's tile is narrowed to the CTA's columns of V."""
    loads = (ring.load.tensor for ring in schedule.rings if ring.load is not None)
    stores = (store.tensor for store in schedule.program.stores)
    return any(t.name == tensor and t.dims[-1] == "V" and len(t.dims) == 2 for t in (*loads, *stores))
