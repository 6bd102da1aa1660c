"""The bill of a form, per chunk of C tokens and value head.

Every distinct expression is billed once, with its transpose, as if one kernel computed it and kept it; only memory
traffic depends on how the form is cut into kernels (`qlagen.algebra.plan`).

Conventions. Matrix products run on tensor cores and are billed in multiply-adds at full size, whatever their structure.
The inverse counts as C^3 / 4 of them (block substitution, then merges). A product under a gate per channel (`gdot`)
is billed as a full one, and its gates beside it: two exps for each entry of an operand's shape. Elementwise
operations: one per element and broadcast factor, one per conversion of a computed matrix product operand to the data
type; a product that is a plain term of a sum accumulates for free; a run-time scalar argument is free, because it
folds into any neighbouring factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from qlagen.algebra.derivation import Cost, Form
from qlagen.algebra.ir import Node, depends_on, is_lower, is_strictly_lower, is_unit_lower, kind, topological, transpose
from qlagen.algebra.plan import Kernel, fused_plan
from qlagen.algebra.walk import compute_nodes
from qlagen.spec.model import OpSpec, Shape

DATA_BYTES = 2
FLOAT_BYTES = 4
SUBSTITUTION_BLOCK = 16


@dataclass(frozen=True)
class Work:
    """Arithmetic of one expression, given its operands."""

    multiply_adds: float = 0.0
    elementwise: float = 0.0
    exps: float = 0.0
    rounded: float = 0.0
    """Entries that it rounds to the data type itself."""


@dataclass(frozen=True)
class CostModel:
    """Sizes and storage of one spec. `bytes_per_entry` holds every input; a scalar argument has 0."""

    sizes: Mapping[str, int]
    bytes_per_entry: Mapping[str, int]
    state: str
    _work: dict[Node, Work] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(spec: OpSpec, chunk: int | None = None) -> CostModel:
        """The model of a spec at its own sizes; `chunk` defaults to the spec's first."""
        entry = {"data": DATA_BYTES, "float32": FLOAT_BYTES}
        stored = {i.chunk_symbol: 0 if i.heads == "none" else entry[i.dtype] for i in spec.inputs}
        return CostModel(spec.sizes(chunk), stored, spec.state)

    def entries(self, shape: Shape) -> int:
        return self.sizes[shape[0]] * self.sizes[shape[1]]

    def cost(self, form: Form, plan: tuple[Kernel, ...] | None = None) -> Cost:
        """The bill of a form; memory traffic by `plan`, fused when None."""
        nodes = tuple(compute_nodes((form.output, form.state)))
        works = [self.work(node) for node in nodes]
        operands = self._operands(nodes)
        return Cost(
            multiply_adds=sum(w.multiply_adds for w in works),
            elementwise=sum(w.elementwise for w in works) + sum(self.entries(o.shape) for o in operands),
            exps=sum(w.exps for w in works),
            hbm_bytes=self.hbm_bytes(fused_plan(form, self.state) if plan is None else plan),
            chain_gemms=len(self.chain(form.state)),
            rounded=sum(self._rounded(o) for o in operands) + sum(w.rounded for w in works),
        )

    def work(self, node: Node) -> Work:
        """Arithmetic of one node."""
        found = self._work.get(node)
        if found is None:
            found = self._work[node] = self._node_work(node)
        return found

    def is_gemm(self, node: Node) -> bool:
        """A matrix product for tensor cores: a matrix-vector product is none."""
        return node.op in ("matmul", "gdot") and kind(node) == "matrix"

    def _node_work(self, node: Node) -> Work:
        entries = self.entries(node.shape)
        if node.op == "matmul":
            products = entries * self.entries((node.args[0].shape[1], "1"))
            return Work(multiply_adds=products) if self.is_gemm(node) else Work(elementwise=products)
        if node.op == "gdot":
            return self._gdot_work(node)
        if node.op == "multiply":
            return Work(elementwise=self._multiply_work(node))
        if node.op == "add":
            accumulated = sum(self.is_gemm(a) for a in node.args)
            return Work(elementwise=max(0, len(node.args) - accumulated - 1) * entries)
        if node.op in ("row_sum", "column_sum"):
            return Work(elementwise=self.entries(node.args[0].shape))
        if node.op in ("from_start", "to_end", "total", "decay"):
            return Work(elementwise=entries, exps=entries)
        if node.op == "inverse":
            chunk = self.entries((node.shape[0], "1"))
            substitution = chunk * SUBSTITUTION_BLOCK * (SUBSTITUTION_BLOCK - 1) // 2
            return Work(multiply_adds=chunk**3 / 4, elementwise=substitution)
        return Work()

    def _gdot_work(self, node: Node) -> Work:
        """Blocks below the diagonal are products of gated operands, whose gates refer to the seam between the blocks;
        a block on the diagonal multiplies one decay after another onto its columns, so that no entry needs an exp of
        its own."""
        entries = self.entries(node.args[0].shape)
        products = self.entries(node.shape) * self.entries((node.args[0].shape[1], "1"))
        diagonal = entries * (SUBSTITUTION_BLOCK + 1)
        return Work(products, elementwise=4 * entries + diagonal, exps=2 * entries, rounded=2 * entries)

    def _multiply_work(self, node: Node) -> float:
        """Vector factors meet first, in vector size; then each remaining factor is one pass over the result."""
        priced = [f for f in node.args if f.op != "ones" and not (f.op == "input" and kind(f) == "scalar")]
        by_kind = {k: [f for f in priced if kind(f) == k] for k in ("scalar", "column", "row", "matrix")}
        vectors = [by_kind[k] for k in ("column", "row") if by_kind[k]]
        work = float(sum((len(group) - 1) * self.entries(group[0].shape) for group in vectors))
        passes = len(by_kind["matrix"]) + len(vectors) - 1
        if not vectors and by_kind["scalar"] and by_kind["matrix"]:
            passes += 1
        return work + max(0, passes) * self.entries(node.shape)

    def _operands(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Distinct matrix product operands that are computed or held in float32, transposes counted once."""
        found: dict[Node, None] = {}
        for node in nodes:
            if node.op == "matmul" and self.is_gemm(node):
                for operand in node.args:
                    plain = operand.args[0] if operand.op == "transpose" else operand
                    if not self._is_data(plain) and plain not in found and transpose(plain) not in found:
                        found[plain] = None
        return tuple(found)

    def _is_data(self, node: Node) -> bool:
        exact = node.op in ("mask", "ones")
        return exact or (node.op == "input" and self.bytes_per_entry.get(node.value) == DATA_BYTES)

    def _rounded(self, operand: Node) -> float:
        """Zeros and the ones of a unit diagonal are exact."""
        entries = self.entries(operand.shape)
        rows = self.entries((operand.shape[0], "1"))
        for lower in (operand, transpose(operand)):
            if is_unit_lower(lower) or is_strictly_lower(lower):
                return (entries - rows) / 2
            if is_lower(lower):
                return (entries + rows) / 2
        return entries

    def chain(self, state: Node) -> tuple[Node, ...]:
        """The matrix products on the path from the carried state to `state` that has the most of them, in order."""
        paths: dict[Node, tuple[Node, ...]] = {}
        for node in topological((state,)):
            if self.state in depends_on(node):
                below = max((paths[a] for a in node.args if a in paths), key=len, default=())
                paths[node] = (*below, node) if self.is_gemm(node) else below
        return paths.get(state, ())

    def hbm_bytes(self, plan: tuple[Kernel, ...]) -> float:
        """What the kernels read and write. The state stays on chip unless a kernel stores it for a later one."""
        stored: set[Node] = set()
        state_in_memory, total = False, 0.0
        for kernel in plan:
            for node in self._loads(kernel, stored):
                if node.op != "input" or node.value != self.state:
                    total += self._bytes(node)
                elif state_in_memory or kernel.stores_state:
                    total += self.entries(node.shape) * DATA_BYTES
            total += sum(self._bytes(o) for o in kernel.outputs)
            state_in_memory |= kernel.stores_state
            stored.update(kernel.outputs)
            stored.update(map(transpose, kernel.outputs))
        return total

    def _loads(self, kernel: Kernel, stored: set[Node]) -> tuple[Node, ...]:
        found: dict[Node, None] = {}
        seen: set[Node] = set()

        def visit(node: Node) -> None:
            if node in seen:
                return
            seen.add(node)
            plain = node.args[0] if node.op == "transpose" else node
            if plain in stored or plain.op == "input":
                canonical = min(plain, transpose(plain), key=lambda n: n.key) if plain.op != "input" else plain
                found[canonical] = None
                return
            for argument in node.args:
                visit(argument)

        for node in kernel.computes:
            visit(node)
        return tuple(found)

    def _bytes(self, node: Node) -> float:
        if node.op == "input":
            return self.entries(node.shape) * self.bytes_per_entry.get(node.value, FLOAT_BYTES)
        return self.entries(node.shape) * (DATA_BYTES if kind(node) == "matrix" else FLOAT_BYTES)
