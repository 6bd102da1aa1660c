"""Building a role's steps: register values, shared-memory operands, costs. Shared by all compute roles."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from qlagen.program.dims import refs
from qlagen.program.ir import Dims, ElementExpr, Gate, Gemm, Load, Operation, Ref, Store
from qlagen.schedule.analysis import Analysis, misplaced
from qlagen.schedule.model import DataType, Step, Value
from qlagen.schedule.target import Clocks

BYTES: dict[DataType, int] = {"data": 2, "float32": 4}


@dataclass(frozen=True)
class RingRead:
    """A role's use of a ring; `asynchronous` when wgmma reads it."""

    ring: str
    role: str
    asynchronous: bool = False


@dataclass(frozen=True)
class RingWrite:
    """A ring that a compute role fills."""

    ring: str
    value: str
    dims: Dims
    dtype: DataType
    role: str
    store: Store | None = None
    """Set when a store mover reads it too."""
    scratch: int = 0
    """Elements, when it is not a value of the program but a step's own."""
    copies: int = 1
    """Of a scratch: how many there are in a slot."""


@dataclass(frozen=True)
class RoleSteps:
    """One compute role before it has an order."""

    name: str
    threads: int
    steps: tuple[Step, ...]
    values: tuple[Value, ...]
    reads: tuple[RingRead, ...]
    writes: tuple[RingWrite, ...]

    @property
    def warps(self) -> int:
        return self.threads // 32


def gemm_clocks(clocks: Clocks, columns: int, inner: int) -> int:
    """One warpgroup's tensor-core clocks of a product with 64 rows."""
    return clocks.gemm_m64n64k16 * columns * inner // (64 * 16)


class StepBuilder:
    """Collects one role's steps. Register values are named after the program's values; ``_f`` marks one fetched from
    shared memory, ``_b`` its form as a 16-bit left operand, ``_out`` its form on the way to a ring."""

    def __init__(
        self,
        name: str,
        analysis: Analysis,
        clocks: Clocks,
        threads: int,
        transposed: bool,
        taken: Iterable[str] = (),
    ) -> None:
        self.name = name
        self.analysis = analysis
        self.clocks = clocks
        self.threads = threads
        self.transposed = transposed
        self.steps: list[Step] = []
        self.values: dict[str, Value] = {}
        self.reads: list[RingRead] = []
        self.writes: dict[str, RingWrite] = {}
        self.taken = {*analysis.dims, *taken}
        self.fetched: dict[tuple[str, bool], str] = {}

    def finish(self) -> RoleSteps:
        steps = _write_after_read(self.steps, self.values)
        return RoleSteps(
            self.name, self.threads, steps, tuple(self.values.values()), tuple(self.reads), tuple(self.writes.values())
        )

    def add_value(
        self,
        name: str,
        shape: tuple[int, int],
        dtype: DataType,
        *,
        group: str | None = None,
        transposed_view: bool = False,
        carried: bool = False,
    ) -> str:
        registers = shape[0] * shape[1] * BYTES[dtype] // 4 // self.threads
        self.values[name] = Value(name, group or name, shape, dtype, registers, transposed_view, carried)
        return name

    def read(self, ring: str, asynchronous: bool = False) -> str:
        self.reads.append(RingRead(ring, self.name, asynchronous))
        return ring

    def fetch(self, name: str, turned: bool | None = None) -> str:
        """A matrix from its ring into registers; `turned`: indexed the other way round, as the role holds its values
        unless said otherwise."""
        turned = self.transposed if turned is None else turned
        if (name, turned) not in self.fetched:
            value = self.fresh(f"{name}_f")
            self.fetched[name, turned] = value
            self.add_value(value, self.analysis.shape(name), self.ring_dtype(name), transposed_view=turned)
            cost = self.values[value].registers * self.clocks.fetch_register
            note = f"{name} from shared memory" + (", transposed" if turned else "")
            ring = self.read(name)
            self.steps.append(
                Step("fetch", value, rings=(ring,), writes=value, cost=cost, origin=self.origin(name), note=note)
            )
        return self.fetched[name, turned]

    def fresh(self, name: str) -> str:
        """A name for a register value that neither the program nor another role uses."""
        while name in self.taken:
            name = f"{name}_{self.name}" if not name.endswith(self.name) else f"{name}_"
        self.taken.add(name)
        return name

    def accumulator(self, gemm: Gemm) -> str | None:
        """The fp32 register value that a product accumulates onto, if any: its own operand when nothing reads that
        afterwards, else a copy."""
        name = gemm.add
        if name is None:
            return None
        if name not in self.values and not self.analysis.is_load(name):
            reason = f"accumulates onto {name}, which role {self.name} does not hold in fp32"
            raise misplaced(self.analysis, gemm.name, reason, "add it in an elementwise operation instead")
        source = name if name in self.values else self.fetch(name)
        if self.values[source].dtype == "float32" and not self._is_read_after(name, gemm):
            return source
        copy = self.add_value(self.fresh(f"{gemm.name}_sum"), self.analysis.shape(name, self.transposed), "float32")
        cost = self.values[copy].registers * self.clocks.element_half
        note = f"{name} to accumulate onto"
        self.steps.append(
            Step("map", copy, reads=(source,), writes=copy, expr=Ref(source), cost=cost, origin=gemm.origin, note=note)
        )
        return copy

    def _is_read_after(self, name: str, operation: Operation) -> bool:
        """Whether something behind an operation reads a value too; what is before it can be ordered before it."""
        names = list(self.analysis.operations)
        return any(names.index(u.name) > names.index(operation.name) for u in self.analysis.uses[name])

    def output_ring(self, store: Store) -> str:
        """The name of a ring that only a store mover reads: the tensor's, unless a value has that name."""
        name = store.tensor.name
        while name in self.analysis.dims:
            name += "_out"
        return name

    def ring_dtype(self, name: str) -> DataType:
        """What a value has when it is read from its ring."""
        operation = self.analysis.operations[name]
        return operation.tensor.dtype if isinstance(operation, Load) else "data"

    def origin(self, name: str) -> str:
        operation = self.analysis.operations.get(name)
        return "" if operation is None else operation.origin

    def cast(self, source: str, target: str, note: str) -> str:
        """A register value in 16 bits; `turn` when the source is indexed the other way round."""
        value = self.values[source]
        shape = value.shape[::-1] if value.transposed_view else value.shape
        self.add_value(target, shape, "data")
        cost = self.values[target].registers * self.clocks.cast_register
        self.steps.append(
            Step(
                "turn" if value.transposed_view else "cast",
                target,
                reads=(source,),
                writes=target,
                cost=cost,
                origin=self.origin(source),
                note=note,
            )
        )
        return target

    def operand_rings(self, expr: ElementExpr) -> tuple[tuple[str, ...], tuple[Gate, ...], tuple[tuple[str, str], ...]]:
        """Rings, gates and gate look-ups that an elementwise expression needs; its vectors are read from rings."""
        rings: list[str] = []
        gates: list[Gate] = []
        lookups: list[tuple[str, str]] = []
        for ref in refs(expr):
            operation = self.analysis.operations.get(ref.name)
            if isinstance(operation, Gate) and (ref.along == "all" or self.analysis.dims[ref.name] == ("C", "C")):
                gates.append(operation)
                if operation.source is not None:
                    ring = self.analysis.start_decay(operation) if operation.kind == "total" else operation.source
                    lookups.append((operation.name, ring))
                    rings.append(ring)
            elif ref.along in ("rows", "columns"):
                rings.append(ref.name)
        rings = list(dict.fromkeys(rings))
        for ring in rings:
            self.read(ring)
        return tuple(rings), tuple(dict.fromkeys(gates)), tuple(dict.fromkeys(lookups))


def _write_after_read(steps: Iterable[Step], values: dict[str, Value]) -> tuple[Step, ...]:
    """Values of one group share registers: each later one is written when all readers of the earlier ones are done."""
    ordered = list(steps)
    result = []
    for step in ordered:
        after = list(step.after)
        if step.writes is not None:
            earlier = _earlier_values(step.writes, ordered, values)
            after += [s.name for s in ordered if s.name != step.name and earlier.intersection(s.reads)]
        result.append(replace(step, after=tuple(dict.fromkeys(after))))
    return tuple(result)


def _earlier_values(name: str, steps: list[Step], values: dict[str, Value]) -> set[str]:
    """Values of the same group that exist before this one: the carried one, and those made by steps before."""
    group = values[name].group
    made = [step.writes for step in steps if step.writes is not None]
    before = {value for value in made[: made.index(name)] if values[value].group == group}
    return before | {v.name for v in values.values() if v.group == group and v.carried}
