"""The role that holds the carried value in registers: everything that depends on it, as steps."""

from __future__ import annotations

from collections.abc import Mapping

from qlagen.program.dims import refs
from qlagen.program.ir import Elementwise, Gemm, Operation, Store
from qlagen.schedule.analysis import Analysis, gemm_text, rename
from qlagen.schedule.model import DataType, Step
from qlagen.schedule.orient import OrientedGemm, oriented
from qlagen.schedule.steps import RingWrite, RoleSteps, StepBuilder, gemm_clocks
from qlagen.schedule.target import Clocks

STATE = "state"


def state_operations(analysis: Analysis, transposed: bool) -> tuple[Operation, ...]:
    """What the state role does: the dependent operations, and elementwise values of loads that only serve its products
    as left operands or to accumulate on (made elsewhere, they would cross shared memory for nothing)."""
    products = {
        operation.name: oriented(operation, transposed)
        for operation in analysis.program.operations
        if isinstance(operation, Gemm) and analysis.is_dependent(operation)
    }
    rights = {product.right for product in products.values()}
    rights |= {product.left for product in products.values() if product.transpose_left != transposed}
    stored = {store.value for store in analysis.program.stores}

    def sunk(operation: Operation) -> bool:
        users = analysis.uses[operation.name]
        elementwise = isinstance(operation, Elementwise) and len(analysis.dims[operation.name]) == 2
        return elementwise and operation.name not in rights | stored and all(u.name in products for u in users)

    return tuple(o for o in analysis.program.operations if analysis.is_dependent(o) or sunk(o))


def lower_state(analysis: Analysis, clocks: Clocks, transposed: bool) -> RoleSteps:
    """Steps of the state role. Raises E-PLACE for operations that it cannot do."""
    return _StateRole(analysis, clocks, transposed).lower()


class _StateRole(StepBuilder):
    def __init__(self, analysis: Analysis, clocks: Clocks, transposed: bool) -> None:
        super().__init__(STATE, analysis, clocks, 2 * analysis.size["V"], transposed)
        assert analysis.program.carry is not None
        self.carry = analysis.program.carry
        self.own = state_operations(analysis, transposed)
        self.products: Mapping[str, OrientedGemm] = {
            o.name: oriented(o, transposed) for o in self.own if isinstance(o, Gemm)
        }
        self.left_forms: dict[tuple[str, bool], str] = {}

    def lower(self) -> RoleSteps:
        shape = self.analysis.shape(self.carry.name, self.transposed)
        self.add_value(self.carry.name, shape, "float32", carried=True)
        for operation in self.own:
            if isinstance(operation, Gemm):
                self._gemm(operation)
            elif isinstance(operation, Elementwise):
                self._map(operation)
        self._next_left_form()
        for store in self.analysis.program.stores:
            if store.value in self.values:
                self._put(store)
        return self.finish()

    def _group(self, name: str, onto: str | None) -> str:
        """Registers that a result takes: those of the value it accumulates on, the carried one's for its successor."""
        if onto is not None:
            return self.values[onto].group
        return self.carry.name if name == self.carry.next else name

    def _gemm(self, gemm: Gemm) -> None:
        product = self.products[gemm.name]
        shape = self.analysis.shape(gemm.name, self.transposed)
        left = self._left_operand(product.left, product.transpose_left)
        # The carried value is always updated in place: whatever else reads it is done before.
        update = gemm.add == self.carry.name and gemm.name == self.carry.next
        onto = gemm.add if update else self.accumulator(gemm)
        self.add_value(gemm.name, shape, "float32", group=self._group(gemm.name, onto))
        inner = self.analysis.shape(product.right, product.transpose_right)[0]
        self.steps.append(
            Step(
                "gemm",
                gemm.name,
                reads=(left, *(() if onto is None else (onto,))),
                rings=(self.read(product.right, asynchronous=True),),
                writes=gemm.name,
                left=left,
                right=product.right,
                transpose_right=product.transpose_right,
                clear=onto is None,
                cost=gemm_clocks(self.clocks, shape[1], inner),
                origin=gemm.origin,
                note=gemm_text(gemm),
            )
        )

    def _left_operand(self, name: str, turned: bool) -> str:
        """The 16-bit register form of a left operand; a load may be needed as it lies, or turned."""
        if (name, turned) in self.left_forms:
            return self.left_forms[name, turned]
        if name == self.carry.name:
            shape = self.analysis.shape(name, self.transposed)
            form = self.add_value(self.fresh(f"{name}_b"), shape, "data", carried=True)
        else:
            source = name if name in self.values else self.fetch(name, turned)
            value = self.values[source]
            plain = value.dtype == "data" and not value.transposed_view
            form = source if plain else self.cast(source, self.fresh(f"{name}_b"), f"{name} as a left operand")
        self.left_forms[name, turned] = form
        return form

    def _map(self, operation: Elementwise) -> None:
        shape = self.analysis.shape(operation.name, self.transposed)
        matrices = [ref.name for ref in refs(operation.expr) if ref.along is None]
        names = {name: name if name in self.values else self.fetch(name) for name in dict.fromkeys(matrices)}
        rings, gates, lookups = self.operand_rings(operation.expr)
        dtype, group = self._result(operation, tuple(names.values()))
        self.add_value(operation.name, shape, dtype, group=group)
        elements = shape[0] * shape[1] // self.threads
        leaves = len(tuple(refs(operation.expr)))
        self.steps.append(
            Step(
                "map",
                operation.name,
                reads=tuple(names.values()),
                rings=rings,
                writes=operation.name,
                expr=rename(operation.expr, names),
                gates=gates,
                lookups=lookups,
                cost=elements * (leaves + 1) * self.clocks.element_half // 2,
                origin=operation.origin,
                note=operation.name + (" in place" if group != operation.name else ""),
            )
        )

    def _result(self, operation: Elementwise, reads: tuple[str, ...]) -> tuple[DataType, str]:
        """16 bits when only products read the result as a left operand, else fp32, in place when an operand dies."""
        name = operation.name
        users = self.analysis.uses[name]
        only_left = all(u.name in self.products and self.products[u.name].left == name for u in users)
        accumulates = any(isinstance(u, Gemm) and u.add == name for u in users)
        stored = any(store.value == name for store in self.analysis.program.stores)
        if only_left and users and not accumulates and not stored and name != self.carry.next:
            return "data", name
        if name == self.carry.next:
            return "float32", self.carry.name
        for read in reads:
            dies = all(u is operation for u in self.analysis.uses.get(read, ()))
            dies = dies and not any(store.value == read for store in self.analysis.program.stores)
            if self.values[read].dtype == "float32" and (dies or self._last_use(read, operation)):
                return "float32", self.values[read].group
        return "float32", name

    def _last_use(self, read: str, operation: Elementwise) -> bool:
        """Whether the carried value's fp32 registers may be overwritten: all other uses take its 16-bit form."""
        others = (u for u in self.analysis.uses[read] if u is not operation) if read == self.carry.name else ()
        return read == self.carry.name and all(isinstance(u, Gemm) and u.add != read for u in others)

    def _next_left_form(self) -> None:
        form = self.left_forms.get((self.carry.name, self.transposed))
        if form is None:
            return
        cost = self.values[form].registers * self.clocks.cast_register
        note = f"{self.carry.name} as a left operand of the next chunk"
        self.steps.append(Step("cast", f"{form}_next", reads=(self.carry.next,), writes=form, cost=cost, note=note))

    def _put(self, store: Store) -> None:
        source = self.values[store.value]
        shape = source.shape[::-1] if self.transposed else source.shape
        via = self.add_value(
            self.fresh(f"{store.value}_out"), shape, store.tensor.dtype, transposed_view=self.transposed
        )
        ring = self.output_ring(store)
        dims = self.analysis.dims[store.value]
        self.writes[ring] = RingWrite(ring, store.value, dims, store.tensor.dtype, self.name, store)
        note = f"{store.value} to shared memory" + (", transposed" if self.transposed else "")
        cost = source.registers * self.clocks.put_register
        origin = self.origin(store.value)
        self.steps.append(
            Step("put", f"store_{ring}", (store.value,), writes=via, ring_out=ring, cost=cost, origin=origin, note=note)
        )
