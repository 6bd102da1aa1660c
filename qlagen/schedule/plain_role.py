"""Roles without the carried value: the auxiliary role of a carried kernel, the tile role of a chunk-parallel one.

Their matrices lie in registers the way the program writes them. A value that another thread needs, in this role or
another, goes through a ring.
"""

from __future__ import annotations

from collections.abc import Iterable

from qlagen.program.dims import refs
from qlagen.program.ir import Apply, Elementwise, Gate, Gemm, Inverse, Load, Number, Operation, Ref, Scan, Store
from qlagen.schedule.analysis import Analysis, gemm_text, inverse_text, misplaced, rename
from qlagen.schedule.model import DataType, Step
from qlagen.schedule.steps import RingWrite, RoleSteps, StepBuilder, gemm_clocks
from qlagen.schedule.target import Clocks

THREADS = 128
"""One warpgroup: a 64-row tile of accumulators."""
INVERSE_SCRATCH = 7 * 256
"""32-bit words of an inverse's own: four diagonal 16 x 16 blocks and three products, in two 16-bit parts."""


def lower_plain(
    name: str,
    analysis: Analysis,
    clocks: Clocks,
    operations: Iterable[Operation],
    handed_over: Iterable[str] = (),
    taken: Iterable[str] = (),
) -> RoleSteps:
    """Steps of a role that makes `operations`. `handed_over`: values that another compute role reads from rings;
    `taken`: names of that role's register values.

    Raises E-PLACE for operations that it cannot do.
    """
    return PlainRole(name, analysis, clocks, tuple(operations), tuple(handed_over), tuple(taken)).lower()


class PlainRole(StepBuilder):
    def __init__(
        self,
        name: str,
        analysis: Analysis,
        clocks: Clocks,
        own: tuple[Operation, ...],
        handed_over: tuple[str, ...],
        taken: tuple[str, ...],
    ) -> None:
        super().__init__(name, analysis, clocks, THREADS, transposed=False, taken=taken)
        self.narrow_forms: dict[str, str] = {}
        self.negative: set[str] = set()
        self.own = {operation.name: operation for operation in own}
        self.handed_over = handed_over
        self.stores = tuple(store for store in analysis.program.stores if store.value in self.own)

    def lower(self) -> RoleSteps:
        for operation in self.own.values():
            self._lower(operation)
            self._publish(operation.name)
        return self.finish()

    def _publish(self, name: str) -> None:
        """A value's way to other roles and to global memory, as soon as it is there."""
        if name in self.handed_over and name not in self.writes:
            self._to_ring(name, name, "data", None)
        for store in self._stores_of(name):
            if not any(write.store == store for write in self.writes.values()):
                self._to_ring(name, self.output_ring(store), store.tensor.dtype, store)

    def _lower(self, operation: Operation) -> None:
        dims = self.analysis.dims[operation.name]
        if isinstance(operation, Load) or dims == () or (isinstance(operation, Gate) and len(dims) == 2):
            return
        if isinstance(operation, Gate | Elementwise) and len(dims) == 1:
            if self._needs_ring(operation):
                self._vector(operation)
        elif isinstance(operation, Scan):
            self._scan(operation)
        elif isinstance(operation, Gemm):
            self._gemm(operation)
        elif isinstance(operation, Inverse):
            self._inverse(operation)
        elif isinstance(operation, Elementwise):
            self._map(operation)

    # ---- vectors

    def _needs_ring(self, operation: Operation) -> bool:
        """A vector that only other vectors' expressions mention is computed inside them."""
        users = self.analysis.uses[operation.name]
        inside = all(isinstance(u, Elementwise) and len(self.analysis.dims[u.name]) == 1 for u in users)
        total = isinstance(operation, Gate) and operation.kind == "from_start" and self._total_is_read(operation)
        kept = bool(self._stores_of(operation.name)) or operation.name in self.handed_over
        return kept or total or not inside

    def _total_is_read(self, vector: Gate) -> bool:
        gates = (o for o in self.own.values() if isinstance(o, Elementwise))
        names = {ref.name for o in gates for ref in refs(o.expr)}
        totals = (o for o in self.analysis.operations.values() if isinstance(o, Gate) and o.kind == "total")
        return any(total.name in names and total.source == vector.source for total in totals)

    def _stores_of(self, name: str) -> tuple[Store, ...]:
        return tuple(store for store in self.stores if store.value == name)

    def _vector_ring(self, name: str) -> str:
        """The ring that a vector result goes to: one ring, whoever reads it."""
        stores = self._stores_of(name)
        read = bool(self.analysis.uses[name]) or name in self.handed_over
        ring = name if read or not stores else self.output_ring(stores[0])
        dims = self.analysis.dims[name]
        self.writes[ring] = RingWrite(ring, name, dims, "float32", self.name, stores[0] if stores else None)
        return ring

    def _vector(self, operation: Gate | Elementwise) -> None:
        expr = Ref(operation.name) if isinstance(operation, Gate) else operation.expr
        gates: list[Gate] = []
        lookups: list[tuple[str, str]] = []
        rings: list[str] = []
        for ref in refs(expr):
            leaf = self.analysis.operations.get(ref.name)
            if isinstance(leaf, Gate) and leaf.source is not None:
                ring = self.analysis.start_decay(leaf) if leaf.kind == "total" else leaf.source
                gates.append(leaf)
                lookups.append((leaf.name, ring))
                rings.append(ring)
            elif ref.along is None:
                rings.append(ref.name)
        step = Step(
            "vector",
            operation.name,
            rings=tuple(self.read(ring) for ring in dict.fromkeys(rings)),
            ring_out=self._vector_ring(operation.name),
            expr=expr,
            gates=tuple(dict.fromkeys(gates)),
            lookups=tuple(dict.fromkeys(lookups)),
            cost=self.clocks.vector,
            origin=operation.origin,
            note=operation.name + (f" = {operation.kind}({operation.source})" if isinstance(operation, Gate) else ""),
        )
        self.steps.append(step)

    def _scan(self, scan: Scan) -> None:
        self.steps.append(
            Step(
                "scan",
                scan.name,
                rings=(self.read(scan.source),),
                ring_out=self._vector_ring(scan.name),
                cost=self.clocks.scan,
                origin=scan.origin,
                note=f"{scan.name} = cumulative sum of {scan.source}",
            )
        )

    # ---- matrices

    def _in_ring(self, name: str, dtype: DataType, asynchronous: bool = False) -> str:
        """A matrix where all threads of the role can read it."""
        if name in self.own and not self.analysis.is_load(name):
            write = self.writes.get(name)
            if write is None:
                self._to_ring(name, name, dtype, None)
            elif write.dtype != dtype:
                reason = f"is needed in shared memory as {write.dtype} and as {dtype}"
                raise misplaced(self.analysis, name, reason, "use it in one precision")
        elif self.ring_dtype(name) != dtype:
            reason = f"is {self.ring_dtype(name)} in shared memory, where {dtype} is needed"
            raise misplaced(self.analysis, name, reason, "products take operands in the data type")
        return self.read(name, asynchronous)

    def _to_ring(self, name: str, ring: str, dtype: DataType, store: Store | None) -> None:
        source = name if name in self.values else self.fetch(name)
        if dtype == "data" and self.values[source].dtype == "float32":
            source = self._left_form(name)
        self.writes[ring] = RingWrite(ring, name, self.analysis.dims[name], dtype, self.name, store)
        cost = self.values[source].registers * self.clocks.put_register
        note = f"{name} to shared memory"
        self.steps.append(
            Step("put", f"put_{ring}", (source,), ring_out=ring, cost=cost, origin=self.origin(name), note=note)
        )

    def _left_form(self, name: str) -> str:
        """The 16-bit register form of a matrix."""
        source = name if name in self.values else self.fetch(name)
        if self.values[source].dtype == "data":
            return source
        if name not in self.narrow_forms:
            form = self.fresh(f"{name}_b")
            self.narrow_forms[name] = self.cast(source, form, f"{name} in the data type")
        return self.narrow_forms[name]

    def _gemm(self, gemm: Gemm) -> None:
        # What lies in shared memory anyway is read there; wgmma reads registers only the way round they are.
        shared = gemm.left not in self.values or gemm.transpose_left
        left = self._in_ring(gemm.left, "data", True) if shared else self._left_form(gemm.left)
        right = self._in_ring(gemm.right, "data", True)
        onto = self.accumulator(gemm)
        shape = self.analysis.shape(gemm.name)
        self.add_value(gemm.name, shape, "float32", group=None if onto is None else self.values[onto].group)
        inner = self.analysis.shape(gemm.left, gemm.transpose_left)[1]
        registers = () if shared else (left,)
        self.steps.append(
            Step(
                "gemm",
                gemm.name,
                reads=(*registers, *(() if onto is None else (onto,))),
                rings=tuple(dict.fromkeys((left, right))) if shared else (right,),
                writes=gemm.name,
                left=left,
                right=right,
                left_home="shared" if shared else "registers",
                transpose_left=gemm.transpose_left,
                transpose_right=gemm.transpose_right,
                clear=onto is None,
                cost=gemm_clocks(self.clocks, shape[1], inner) * shape[0] // 64,
                origin=gemm.origin,
                note=gemm_text(gemm),
            )
        )

    def register(self, name: str) -> str:
        return name if name in self.values else self.fetch(name)

    def _map(self, operation: Elementwise) -> None:
        whole = [ref.name for ref in refs(operation.expr) if ref.along is None]
        matrices = [n for n in dict.fromkeys(whole) if not isinstance(self.analysis.operations.get(n), Gate)]
        names = {name: self.register(name) for name in matrices}
        rings, gates, lookups = self.operand_rings(operation.expr)
        dtype = self._map_dtype(operation)
        group = self._dying(operation, names.values()) if dtype == "float32" else None
        shape = self.analysis.shape(operation.name)
        self.add_value(operation.name, shape, dtype, group=group)
        elements = shape[0] * shape[1] // self.threads
        leaves = len(tuple(refs(operation.expr)))
        exponentials = any(gate.kind == "decay" for gate in gates)
        inverted = self.is_inverted(operation.name)
        expr = rename(operation.expr, names)
        if inverted:
            self.negative.add(operation.name)
            expr = Apply("mul", expr, Number(-1))
        cost = self.clocks.gate_map if exponentials else elements * (leaves + 1) * self.clocks.element_half // 2
        self.steps.append(
            Step(
                "map",
                operation.name,
                reads=tuple(names.values()),
                rings=rings,
                writes=operation.name,
                expr=expr,
                gates=gates,
                lookups=lookups,
                below=inverted,
                cost=cost,
                origin=operation.origin,
                note=("-" if inverted else "") + operation.name + ("" if group is None else " in place"),
            )
        )

    def is_inverted(self, name: str) -> bool:
        """Whether only inverses read a value: they take what is below the diagonal."""
        users = self.analysis.uses[name]
        kept = self._stores_of(name) or name in self.handed_over
        return bool(users) and not kept and all(isinstance(user, Inverse) for user in users)

    def _map_dtype(self, operation: Elementwise) -> DataType:
        """16 bits when products, other roles and 16-bit tensors are all that read it."""
        name = operation.name
        users = [u for u in self.analysis.uses[name] if u.name in self.own]
        narrow = all(isinstance(u, Gemm) and u.add != name for u in users)
        narrow = narrow and all(store.tensor.dtype == "data" for store in self._stores_of(name))
        return "data" if narrow else "float32"

    def _dying(self, operation: Elementwise, reads: Iterable[str]) -> str | None:
        """The registers of an fp32 operand that nothing else reads: the result takes them."""
        for read in reads:
            alone = all(u is operation for u in self.analysis.uses.get(read, ()))
            kept = self._stores_of(read) or read in self.handed_over
            if self.values[read].dtype == "float32" and alone and not kept:
                return self.values[read].group
        return None

    def _negative(self, inverse: Inverse) -> str:
        """The register value -L of an inverse (I + L)^-1: with it no product needs a sign."""
        source = self.register(inverse.source)
        if self.values[source].dtype != "float32":
            reason = "is inverted, but lies in 16 bits in shared memory"
            raise misplaced(self.analysis, inverse.source, reason, "make it in an elementwise operation")
        if self.is_inverted(inverse.source) and inverse.source in self.negative:
            return source
        value = self.add_value(self.fresh(f"{inverse.source}_negative"), self.values[source].shape, "float32")
        expr = Apply("mul", Ref(source), Number(-1))
        cost = self.values[value].registers * self.clocks.element_half
        note = f"-{inverse.source}"
        self.steps.append(
            Step("map", value, reads=(source,), writes=value, expr=expr, cost=cost, origin=inverse.origin, note=note)
        )
        return value

    def _inverse(self, inverse: Inverse) -> None:
        stores = self._stores_of(inverse.name)
        read = bool(self.analysis.uses[inverse.name])
        ring = inverse.name if read or not stores else self.output_ring(stores[0])
        source = self._negative(inverse)
        scratch = self.read(self.fresh(f"{inverse.name}_blocks"))
        self.writes[scratch] = RingWrite(scratch, inverse.name, (), "float32", self.name, scratch=INVERSE_SCRATCH)
        dims = self.analysis.dims[inverse.name]
        self.writes[ring] = RingWrite(ring, inverse.name, dims, "data", self.name, stores[0] if stores else None)
        self.steps.append(
            Step(
                "inverse",
                inverse.name,
                reads=(source,),
                rings=() if inverse.columns is None else (self.read(inverse.columns),),
                ring_out=ring,
                scratch=scratch,
                columns=inverse.columns,
                scratch_registers=self.clocks.inverse_registers,
                cost=self.clocks.inverse,
                origin=inverse.origin,
                note=inverse_text(inverse),
            )
        )
