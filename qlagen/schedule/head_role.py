"""Steps of a compute role that works on several value heads of one key head: the warpgroup makes what the heads have
in common once, then each warp does all of one head."""

from __future__ import annotations

from dataclasses import replace

from qlagen.program.ir import Elementwise, Gate, Gemm, Inverse, Load, Operation, Scan
from qlagen.schedule.analysis import Analysis, inverse_text
from qlagen.schedule.key_heads import copy_name
from qlagen.schedule.model import Step
from qlagen.schedule.plain_role import PlainRole
from qlagen.schedule.similarity import factor, refused
from qlagen.schedule.steps import RingWrite, RoleSteps
from qlagen.schedule.target import Clocks

SHARED_WORDS = 6 * 256 + 8 * 72 + 4 * 128
"""32-bit words of a shared [64, 64] matrix: six 16 x 16 blocks in two 16-bit parts, eight padded 8 x 8 blocks in fp32,
four in two 16-bit parts, each twice."""


def lower_heads(name: str, analysis: Analysis, clocks: Clocks, keys: int = 1) -> RoleSteps:
    """Steps of a role that makes a program's values for several value heads. What they share is there for `keys` key
    heads. Raises E-HEADS for what it cannot do."""
    return _HeadRole(name, analysis, clocks, keys).lower()


class _HeadRole(PlainRole):
    def __init__(self, name: str, analysis: Analysis, clocks: Clocks, keys: int) -> None:
        super().__init__(name, analysis, clocks, analysis.program.operations, (), ())
        self.keys = keys

    def _lower(self, operation: Operation) -> None:
        inverted = {o.source for o in self.own.values() if isinstance(o, Inverse)}
        if isinstance(operation, Scan):
            self._check_gate(operation)
            self._scan(operation)
        elif isinstance(operation, Gemm) and self.analysis.is_shared(operation.name):
            self._gemm(operation)
        elif isinstance(operation, Inverse):
            self._inverse(operation)
        elif isinstance(operation, Elementwise) and operation.name in inverted and self.is_inverted(operation.name):
            pass  # its factors go into the inverse
        elif not isinstance(operation, Load) and not isinstance(operation, Gate):
            raise refused(self.analysis, operation.name, "is neither of a key head nor scan or inverse")

    def _check_gate(self, scan: Scan) -> None:
        if self.analysis.is_shared(scan.source) or not self.analysis.is_load(scan.source):
            raise refused(self.analysis, scan.name, f"is a scan of {scan.source}, which is no tensor of value heads")

    def _inverse(self, inverse: Inverse) -> None:
        factored = factor(self.analysis, inverse)
        used = (factored.factors, factored.gate, inverse.columns)
        for vector in used:
            if vector is not None and (self.analysis.is_shared(vector) or not self._in_memory(vector)):
                raise refused(self.analysis, inverse.name, f"needs {vector}, which no tensor of value heads gives")
        shared = self.fresh(f"{factored.matrix}_shared")
        for key in range(self.keys):
            self._share(copy_name(factored.matrix, key), shared, key, inverse.origin)
        self.writes[shared] = RingWrite(
            shared, factored.matrix, (), "float32", self.name, scratch=SHARED_WORDS, copies=self.keys
        )
        self.read(shared)
        stores = self._stores_of(inverse.name)
        if self.analysis.uses[inverse.name] or not stores:
            raise refused(self.analysis, inverse.name, "is read by the kernel that makes it")
        ring = self.output_ring(stores[0])
        dims = self.analysis.dims[inverse.name]
        self.writes[ring] = RingWrite(ring, inverse.name, dims, "data", self.name, stores[0])
        vectors = tuple(self.read(v) for v in dict.fromkeys(used) if v is not None)
        step = Step(
            "inverse_heads",
            inverse.name,
            rings=(shared, *vectors),
            ring_out=ring,
            after=tuple(copy_name(shared, key) for key in range(self.keys)),
            matrix=shared,
            factors=factored.factors,
            decay=factored.gate,
            columns=inverse.columns,
            scratch_registers=self.clocks.inverse_heads_registers,
            cost=self.clocks.inverse_heads,
            origin=inverse.origin,
            note=f"{inverse_text(inverse)}, a head a warp",
        )
        self.steps.append(replace(step, rings=tuple(dict.fromkeys(step.rings))))

    def _share(self, matrix: str, ring: str, key: int, origin: str) -> None:
        source = self.register(matrix)
        self.steps.append(
            Step(
                "share",
                copy_name(ring, key),
                reads=(source,),
                ring_out=ring,
                key=key,
                cost=self.values[source].registers * self.clocks.put_register,
                origin=origin,
                note=f"{matrix} for all heads",
            )
        )

    def _in_memory(self, vector: str) -> bool:
        return self.analysis.is_load(vector) or isinstance(self.analysis.operations[vector], Scan)
