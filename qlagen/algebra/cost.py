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
from qlagen.algebra.heads import per_key_head
from qlagen.algebra.ir import Node, depends_on, is_lower, is_strictly_lower, is_unit_lower, kind, topological, transpose
from qlagen.algebra.plan import Kernel, fused_plan
from qlagen.algebra.walk import compute_nodes
from qlagen.spec.model import OpSpec, Shape

DATA_BYTES = 2
FLOAT_BYTES = 4
SUBSTITUTION_BLOCK = 16
GATED_PRODUCTS = ("gdot", "gapply", "gapply_transposed")


@dataclass(frozen=True)
class Work:
    """Arithmetic of one expression, given its operands."""

    multiply_adds: float = 0.0
    elementwise: float = 0.0
    exps: float = 0.0
    rounded: float = 0.0
    """Entries that it rounds to the data type itself."""

    def scaled(self, share: float) -> Work:
        """A part of the work; what is rounded stays the same."""
        return Work(self.multiply_adds * share, self.elementwise * share, self.exps * share, self.rounded)


@dataclass(frozen=True)
class CostModel:
    """Sizes and storage of one spec. `bytes_per_entry` holds every input; a scalar argument has 0. `state` is the name
    of the carried value."""

    sizes: Mapping[str, int]
    bytes_per_entry: Mapping[str, int]
    state: str
    group: int = 1
    """Value heads that share a key head and one kernel: what needs `key_inputs` alone is done once for all of them."""
    key_inputs: frozenset[str] = frozenset()
    _work: dict[Node, Work] = field(default_factory=dict, compare=False, repr=False)

    @staticmethod
    def of(spec: OpSpec, chunk: int | None = None, group: int = 1) -> CostModel:
        """The model of a spec at its own sizes; `chunk` defaults to the spec's first, `group` is the number of value
        heads per key head."""
        entry = {"data": DATA_BYTES, "float32": FLOAT_BYTES}
        stored = {i.chunk_symbol: 0 if i.heads == "none" else entry[i.dtype] for i in spec.inputs}
        shared = frozenset(i.chunk_symbol for i in spec.inputs if i.heads != "value")
        return CostModel(spec.sizes(chunk), stored, spec.state, group, shared)

    def share(self, node: Node) -> float:
        """The part of an expression that one value head pays for."""
        return 1.0 / self.group if self.group > 1 and per_key_head(node, self.key_inputs) else 1.0

    def entries(self, shape: Shape) -> int:
        return self.sizes[shape[0]] * self.sizes[shape[1]]

    def cost(self, form: Form, plan: tuple[Kernel, ...] | None = None) -> Cost:
        """The bill of a form; memory traffic by `plan`, fused when None."""
        nodes = tuple(compute_nodes((form.output, form.state)))
        works = [self.work(node) for node in nodes]
        operands = self.operands(nodes)
        return Cost(
            multiply_adds=sum(w.multiply_adds for w in works),
            elementwise=sum(w.elementwise for w in works) + sum(self.conversion(o) for o in operands),
            exps=sum(w.exps for w in works),
            hbm_bytes=self.hbm_bytes(fused_plan(form, self.state) if plan is None else plan),
            chain_gemms=len(self.chain(form.state)),
            rounded=sum(self.rounded(o) for o in operands) + sum(w.rounded for w in works),
        )

    def work(self, node: Node) -> Work:
        """Arithmetic of one node."""
        found = self._work.get(node)
        if found is None:
            found, share = self._node_work(node), self.share(node)
            if share != 1.0:
                found = found.scaled(share)
            self._work[node] = found
        return found

    def conversion(self, operand: Node) -> float:
        """Elementwise operations that bring a matrix product's operand to the data type."""
        return self.entries(operand.shape) * self.share(operand)

    def is_gemm(self, node: Node) -> bool:
        """A matrix product for tensor cores: a matrix-vector product is none."""
        return node.op in ("matmul", *GATED_PRODUCTS) and kind(node) == "matrix"

    def converted(self, node: Node) -> tuple[Node, ...]:
        """Operands of a matrix product that have to be in the data type as they are, without a gate."""
        if not self.is_gemm(node) or node.op == "gdot":
            return ()
        return node.args if node.op == "matmul" else node.args[:1]

    def _node_work(self, node: Node) -> Work:
        entries = self.entries(node.shape)
        if node.op == "matmul":
            products = entries * self.entries((node.args[0].shape[1], "1"))
            return Work(multiply_adds=products) if self.is_gemm(node) else Work(elementwise=products)
        if node.op in GATED_PRODUCTS:
            return self._gated_work(node)
        if node.op == "multiply":
            return Work(elementwise=self._multiply_work(node))
        if node.op == "add":
            accumulated = sum(self.is_gemm(a) and a.op in ("matmul", "gdot") for a in node.args)
            return Work(elementwise=max(0, len(node.args) - accumulated - 1) * entries)
        if node.op in ("row_sum", "column_sum", "suffix_sum", "step_sum"):
            return Work(elementwise=self.entries(node.args[0].shape))
        if node.op == "head_sum":
            return Work(elementwise=entries * (self.group - 1))  # paid once for the group
        if node.op == "row_minus_column":
            return Work(elementwise=2 * self.entries(node.args[0].shape))
        if node.op in ("from_start", "to_end", "total", "decay"):
            return Work(elementwise=entries, exps=entries)
        if node.op == "inverse":
            chunk = self.entries((node.shape[0], "1"))
            substitution = chunk * SUBSTITUTION_BLOCK * (SUBSTITUTION_BLOCK - 1) // 2
            return Work(multiply_adds=chunk**3 / 4, elementwise=substitution)
        return Work()

    def _gated_work(self, node: Node) -> Work:
        """Blocks below the diagonal are products of gated operands, whose gates refer to the seam between the blocks;
        a block on the diagonal multiplies one decay after another onto its columns, so that no entry needs an exp of
        its own. Where the result has the channels, one gate is on the result and is not rounded."""
        entries = self.entries(node.args[1].shape)
        products = self.entries(node.shape) * self.entries((node.args[0].shape[1], "1"))
        diagonal = entries * (SUBSTITUTION_BLOCK + 1)
        gated = 2 if node.op == "gdot" else 1
        return Work(products, (2 + gated) * entries + diagonal, exps=2 * entries, rounded=gated * entries)

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

    def operands(self, nodes: Iterable[Node]) -> tuple[Node, ...]:
        """Distinct matrix product operands that are computed or held in float32, transposes counted once."""
        found: dict[Node, None] = {}
        for node in nodes:
            for operand in self.converted(node):
                plain = operand.args[0] if operand.op == "transpose" else operand
                if not self.is_data(plain) and plain not in found and transpose(plain) not in found:
                    found[plain] = None
        return tuple(found)

    def is_data(self, node: Node) -> bool:
        """It needs no conversion to the data type."""
        exact = node.op in ("mask", "ones", "last_row")
        return exact or (node.op == "input" and self.bytes_per_entry.get(node.value) == DATA_BYTES)

    def rounded(self, operand: Node) -> float:
        """How many entries of an operand are rounded. Zeros and the ones of a unit diagonal are exact."""
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

    def hbm_bytes(self, plan: tuple[Kernel, ...], saved: Iterable[Node] = ()) -> float:
        """What the kernels read and write. The state stays on chip unless a kernel stores it for a later one. What is
        in `saved` is in memory from the start."""
        listed = tuple(saved)
        stored: set[Node] = {*listed, *map(transpose, listed)}
        state_in_memory, total = False, 0.0
        for kernel in plan:
            for node in self._loads(kernel, stored):
                if node.op != "input" or node.value != self.state:
                    total += self.bytes_of(node)
                elif state_in_memory or kernel.stores_state:
                    total += self.entries(node.shape) * DATA_BYTES
            total += sum(self.bytes_of(o) for o in kernel.outputs)
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

    def bytes_of(self, node: Node) -> float:
        """Its size in memory."""
        if node.op == "input":
            size = self.bytes_per_entry.get(node.value, FLOAT_BYTES)
        else:
            size = DATA_BYTES if kind(node) == "matrix" else FLOAT_BYTES
        return self.entries(node.shape) * size * self.share(node)
