"""From expressions to tile operations: each expression once, in the order of the spec's stages.

Elementwise expressions become one operation with everything that only they use inlined; matrix products accumulate
onto the rest of the sum they stand in; vectors and numbers that scale a matrix are combined into one vector first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, cast

from qlagen.algebra.ir import (
    Node,
    depends_on,
    kind,
    multiply,
    terms_of,
    transpose,
)
from qlagen.errors import QlagenError
from qlagen.program.dims import needed, operands
from qlagen.program.ir import (
    Apply,
    ElementExpr,
    Elementwise,
    Gate,
    GatedDot,
    Gemm,
    Inverse,
    Number,
    Operation,
    Ref,
    Rows,
)
from qlagen.program.leaves import Leaves
from qlagen.program.sums import Accumulation, Uses, accumulate, protect_bases
from qlagen.spec.model import OpSpec

_GATES = ("from_start", "to_end", "total", "decay")
_LONGEST_JOINED_NAME = 24


class Lowering:
    """Operations of one program. Ask for a `value`; then read `operations` and `scalars`.

    `stages` names expressions, `gates` cumulative gates; `state` is the carried value's name.
    """

    def __init__(
        self,
        spec: OpSpec,
        leaves: Leaves,
        stages: Mapping[Node, str],
        gates: Mapping[Node, str],
        roots: tuple[Node, ...],
    ) -> None:
        self.spec, self.leaves, self.stages, self.gates = spec, leaves, stages, gates
        self.uses = Uses(roots, frozenset(leaves), frozenset(stages), spec.state)
        self.names: dict[Node, str] = {}
        self.origin = ""
        self.taken = {leaf.name for leaf in leaves.values()} | {leaf.load.name for leaf in leaves.values() if leaf.load}
        self.reserved = set(stages.values())
        self.gate_operations: list[Operation] = []
        self.others: list[Operation] = []

    @property
    def operations(self) -> tuple[Operation, ...]:
        """Loads and scans in the order of the leaves, gates, then the rest; nothing that the roots do not need."""
        loads: list[Operation] = [leaf.load for leaf in self.leaves.values() if leaf.load]
        scans: list[Operation] = [leaf.scan for leaf in self.leaves.values() if leaf.scan]
        kept = frozenset(name for name, _ in map(self.value, self.uses.roots))
        others = protect_bases(self.others, kept, self.taken | self.reserved)
        return needed((*loads, *scans, *self.gate_operations, *others), kept)

    @property
    def scalars(self) -> tuple[str, ...]:
        read = {name for operation in self.operations for name in operands(operation)}
        return tuple(leaf.name for leaf in self.leaves.values() if leaf.is_scalar and leaf.name in read)

    # Values

    def root(self, node: Node) -> str:
        """The value of an output: not its transpose."""
        name, turned = self.value(node)
        if turned:
            raise self.unsupported("its transpose is computed, and nothing turns a matrix in place")
        return name

    def value(self, node: Node, role: str = "value") -> tuple[str, bool]:
        """The name under which the expression or its transpose is computed; True for the transpose.

        Vectors have no orientation. `role` completes the name of an expression that is no stage.
        """
        for candidate, turned in ((node, False), (transpose(node), True)):
            if candidate in self.leaves:
                return self.leaves[candidate].name, turned
            if candidate in self.names:
                return self.names[candidate], turned
        turned = self.must_turn(node)
        target = transpose(node) if turned else node
        with self.within(self.stages.get(target, self.origin)):
            self.names[target] = self.make(target, role)
        return self.names[target], turned

    def make(self, node: Node, role: str) -> str:
        """Emits what computes the expression, and its name."""
        if node.op in _GATES:
            return self.make_gate(node)
        if node.op == "mask":
            name = self.fresh(node.value)
            mask = cast(Literal["lower", "strict"], node.value)
            self.gate_operations.append(Gate(name, None, mask, self.origin, rows=node.shape[0]))
            return name
        if node.op in ("before", "each", "last"):
            return self.make_rows(node, role)
        if node.op == "gdot":
            return self.make_gated_dot(node)
        if node.op == "inverse":
            return self.make_inverse(node)
        if node.op == "matmul":
            return self.make_gemm(node, self.stages.get(node))
        if node.op == "add" and (accumulation := accumulate(node, self.uses)):
            return self.make_sum(node, accumulation, role)
        if node.op in ("multiply", "add"):
            expr = self.expression(node, node)
            return self.emit(Elementwise(self.name_of(node, role), expr, self.origin))
        raise self.unsupported(f"{node.op} of {node.args[0]!r} is not a tile operation" if node.args else f"{node!r}")

    def make_gate(self, node: Node) -> str:
        gate = node.args[0]
        source, _ = self.value(gate)
        name = self.fresh(f"{self.gate_name(gate)}_{node.op}")
        gate_kind = cast(Literal["from_start", "to_end", "total", "decay"], node.op)
        self.gate_operations.append(Gate(name, source, gate_kind, self.origin, gate.op == "before"))
        return name

    def gate_name(self, gate: Node) -> str:
        return self.gates[gate] if gate in self.gates else f"{self.gate_name(gate.args[0])}_{gate.op}"

    def is_cumulative(self, node: Node) -> bool:
        """A cumulative gate, or other rows of one."""
        return node in self.gates or (node.op in ("before", "each") and self.is_cumulative(node.args[0]))

    def make_rows(self, node: Node, role: str) -> str:
        row_kind = cast(Literal["before", "each", "last"], node.op)
        source, turned = self.value(node.args[0], role)
        if turned and kind(node) == "matrix":
            raise self.unsupported(f"{node.op} of the columns of a value")
        if self.is_cumulative(node):
            name = self.fresh(self.gate_name(node))
            self.gate_operations.append(Rows(name, source, row_kind, node.shape[0], self.origin))
            return name
        return self.emit(Rows(self.name_of(node, f"{role}_{node.op}"), source, row_kind, node.shape[0], self.origin))

    def make_gated_dot(self, node: Node) -> str:
        left, turn_left = self.operand(node.args[0], "left")
        right, turn_right = self.operand(node.args[1], "right")
        if turn_left or turn_right:
            raise self.unsupported("a gated product of the columns of a value")
        gate, _ = self.value(node.args[2])
        name = self.name_of(node, f"{left}_{right}" if len(left + right) < _LONGEST_JOINED_NAME else "product")
        return self.emit(GatedDot(name, left, right, gate, node.args[2].op == "before", self.origin))

    def make_inverse(self, node: Node) -> str:
        if self.spec.state in depends_on(node):
            raise self.unsupported(f"an inverse that depends on the carried value {self.spec.state}")
        name = self.name_of(node, "inverse")
        source = self.operand(node.args[0], "source")
        if source[1]:
            raise self.unsupported("the inverse of a transpose")
        return self.emit(Inverse(name, source[0], self.origin))

    def make_gemm(self, node: Node, name: str | None, add: str | None = None) -> str:
        if any(kind(argument) != "matrix" for argument in node.args):
            raise self.unsupported("a matrix product with a vector")
        left, turn_left = self.operand(node.args[0], "left")
        right, turn_right = self.operand(node.args[1], "right")
        joined = f"{left}_{right}"
        name = name or self.fresh(joined if len(joined) <= _LONGEST_JOINED_NAME else f"{self.origin}_product")
        return self.emit(Gemm(name, left, right, turn_left, turn_right, add, self.origin))

    def make_sum(self, node: Node, accumulation: Accumulation, role: str) -> str:
        """Products accumulated one after another onto the base."""
        name = self.name_of(node, role)
        so_far: str | None = None
        if accumulation.base is not None:
            so_far, turned = self.value(accumulation.base, "base")
            if turned:
                raise self.unsupported("a product is added to the transpose of a value")
        for product in accumulation.products[:-1]:
            so_far = self.make_gemm(product, self.fresh(f"{self.origin}_sum") if so_far else None, so_far)
        return self.make_gemm(accumulation.products[-1], name, so_far)

    def operand(self, node: Node, role: str) -> tuple[str, bool]:
        """A matrix that a product or an inverse reads: a value in memory or registers, not a gate or mask alone."""
        name, turned = self.value(node, role)
        if _is_gate(node):
            name = self.emit(Elementwise(self.fresh(f"{self.origin}_{role}"), Ref(name), self.origin))
        return name, turned

    # Elementwise expressions

    def expression(self, node: Node, target: Node) -> ElementExpr:
        """The expression of `node` inside the operation that makes `target`, to whose shape it is broadcast."""
        if node is not target and not self.is_inlined(node, target):
            return self.ref(node, target)
        if node.op == "multiply":
            return self.product(node, target)
        return self.sum(node, target)

    def is_inlined(self, node: Node, target: Node) -> bool:
        """Sums and products that only this operation reads; vectors stay values, so that they are made once a row."""
        if node.op not in ("multiply", "add") or not self.uses.is_private(node) or node in self.names:
            return False
        if kind(node) != kind(target):
            return False
        return node.op == "multiply" or accumulate(node, self.uses) is None

    def ref(self, node: Node, target: Node) -> Ref:
        name, turned = self.value(node)
        if kind(node) == kind(target):
            if turned and node.op == "matmul":
                name = self.names[node] = self.make_gemm(node, None)
            elif turned and kind(node) == "matrix":
                raise self.unsupported(f"{name} meets the transpose of another matrix entry by entry")
            return Ref(name)
        if kind(node) == "scalar":
            return Ref(name, "all")
        if kind(node) == "matrix" or kind(target) != "matrix":
            raise self.unsupported(f"{name} does not fit the shape of what it is combined with")
        return Ref(name, "rows" if kind(node) == "column" else "columns")

    def product(self, node: Node, target: Node) -> ElementExpr:
        """Matrices first, then gates and masks, then what scales rows, columns and everything."""
        factors = [f for f in node.args if f.op != "ones"]
        matrices = [f for f in factors if kind(f) == "matrix"]
        matrices.sort(key=_is_gate)
        small = [f for f in factors if kind(f) != "matrix"]
        exprs = [self.expression(f, target) for f in matrices]
        scales = self.combined(small) if kind(target) == "matrix" else sorted(small, key=_scale_order)
        exprs += [self.expression(f, target) for f in scales]
        if not exprs:
            raise self.unsupported("a matrix of ones")
        return _fold("mul", exprs)

    def combined(self, factors: list[Node]) -> list[Node]:
        """The factors with vectors along rows, and numbers, multiplied into one vector; else those along columns."""
        ready = [f for f in factors if not self.uses.is_dependent(f)]
        others = [f for f in factors if f not in ready]
        numbers = [f for f in ready if kind(f) == "scalar"]
        result: list[Node] = []
        for axis in ("column", "row"):
            vectors = [f for f in ready if kind(f) == axis]
            taken, numbers = (numbers, []) if vectors else ([], numbers)
            if len(vectors) + len(taken) > 1:
                product = multiply(*vectors, *taken)
                self.value(product, "scale")
                vectors = [product]
            result += vectors
        return sorted([*result, *numbers, *others], key=_scale_order)

    def sum(self, node: Node, target: Node) -> ElementExpr:
        """Positive terms first."""
        terms = sorted(terms_of(node), key=lambda term: term[0] < 0)
        if not terms:
            raise self.unsupported("a matrix of zeros")
        (coefficient, first), *rest = terms
        result = self.term(coefficient, first, target)
        for coefficient, term in rest:
            operator: Literal["add", "sub"] = "add" if coefficient > 0 else "sub"
            result = Apply(operator, result, self.term(abs(coefficient), term, target))
        return result

    def term(self, coefficient: int, node: Node, target: Node) -> ElementExpr:
        if node.op == "ones":
            return Number(coefficient)
        expr = self.expression(node, target)
        return expr if coefficient == 1 else Apply("mul", Number(coefficient), expr)

    def must_turn(self, node: Node) -> bool:
        """Entry by entry with a transposed matrix: then the transpose of the whole is computed. Vectors have none."""
        if node.op == "transpose":
            return True
        return self.has_turned(node) and not self.has_turned(transpose(node))

    def has_turned(self, node: Node) -> bool:
        if kind(node) != "matrix" or node.op == "ones":
            return False
        if node.op in ("multiply", "add") and node not in self.names and node not in self.leaves:
            return any(self.has_turned(a) for a in node.args)
        return node.op == "transpose" or transpose(node) in self.names or transpose(node) in self.leaves

    # Names and errors

    @contextmanager
    def within(self, stage: str) -> Iterator[None]:
        """Operations made inside belong to the stage."""
        outer, self.origin = self.origin, stage
        yield
        self.origin = outer

    def name_of(self, node: Node, role: str) -> str:
        return self.stages.get(node) or self.fresh(f"{self.origin}_{role}")

    def fresh(self, base: str) -> str:
        """The name, or with a number when it is taken."""
        name, number = base, 1
        while name in self.taken or name in self.reserved:
            number += 1
            name = f"{base}_{number}"
        self.taken.add(name)
        return name

    def emit(self, operation: Elementwise | Gemm | Inverse | GatedDot | Rows) -> str:
        self.others.append(operation)
        return operation.name

    def unsupported(self, what: str) -> QlagenError:
        stages = {stage.name: stage for stage in self.spec.stages}
        stage = stages.get(self.origin)
        return QlagenError(
            "E-PROGRAM",
            f"no tile operations for stage {self.origin}: {what}",
            span=stage.span if stage else None,
            notes=["kernels multiply matrices, scale rows and columns, add, gate, mask and invert unit lower matrices"],
        )


def _is_gate(node: Node) -> bool:
    """A decay matrix or a mask, or the transpose of one."""
    return (node.args[0] if node.op == "transpose" else node).op in ("decay", "mask")


def _scale_order(factor: Node) -> int:
    return ("column", "row", "scalar").index(kind(factor))


def _fold(operator: Literal["mul", "add"], exprs: list[ElementExpr]) -> ElementExpr:
    result = exprs[0]
    for expr in exprs[1:]:
        result = Apply(operator, result, expr)
    return result


def below(roots: Iterable[Node], leaves: Leaves) -> frozenset[Node]:
    """Every expression that a program with these leaves computes, and its transpose."""
    found: set[Node] = set()
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node in found:
            continue
        found.update((node, transpose(node)))
        if node not in leaves and transpose(node) not in leaves:
            pending += node.args
    return frozenset(found)
