"""What scheduling needs to know about a program: simplified operations, sizes, uses and dependence on the carry."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from qlagen.errors import QlagenError
from qlagen.program.dims import infer_dims, operands, refs, show_dims
from qlagen.program.ir import (
    Apply,
    Dims,
    ElementExpr,
    Elementwise,
    Gate,
    Gemm,
    Inverse,
    Load,
    Operation,
    Program,
    Ref,
)

CHUNK = 64
"""The chunk length C that kernels are made for: the rows of one wgmma."""


@dataclass(frozen=True)
class Analysis:
    """A program without useless operations and with sizes. Every mapping is in program order."""

    program: Program
    dims: Mapping[str, Dims]
    operations: Mapping[str, Operation]
    uses: Mapping[str, tuple[Operation, ...]]
    size: Mapping[str, int]
    """C and K in full, V of one CTA's tile."""
    dependent: frozenset[str]
    """Values that need the carried value, and itself."""
    by_value_head: frozenset[str]
    """Values that need a tensor of value heads, or the carried value."""

    def shape(self, name: str, transposed: bool = False) -> tuple[int, int]:
        rows, columns = (self.size[dim] for dim in self.dims[name])
        return (columns, rows) if transposed else (rows, columns)

    def length(self, name: str) -> int:
        return self.size[self.dims[name][0]]

    def is_load(self, name: str) -> bool:
        return isinstance(self.operations.get(name), Load)

    def is_shared(self, name: str) -> bool:
        """Whether all value heads of a key head have the value in common: it needs nothing that belongs to one."""
        return name not in self.by_value_head

    def start_decay(self, total: Gate) -> str:
        """The vector of decays from the chunk's start whose last entry a total decay is."""
        gates = (o for o in self.operations.values() if isinstance(o, Gate) and o.source == total.source)
        return next(gate.name for gate in gates if gate.kind == "from_start")

    def is_dependent(self, operation: Operation) -> bool:
        return operation.name in self.dependent


def analyse(program: Program, dims: Mapping[str, int], value_tile: int) -> Analysis:
    """Simplify a program and look through it. `dims`: sizes of C, K and V; `value_tile`: columns of V per CTA.

    Raises E-DIMENSION, E-TILE for a product over a V that CTAs share out, and E-PROGRAM for an ill-formed program.
    """
    _check_sizes(dims, value_tile)
    program = _with_start_decays(_without_unused(_inline(program)))
    if value_tile < dims["V"]:
        _check_contractions(program)
    uses: dict[str, list[Operation]] = {name: [] for name in infer_dims(program)}
    for operation in program.operations:
        for name in dict.fromkeys(operands(operation)):
            uses[name].append(operation)
    return Analysis(
        program,
        infer_dims(program),
        {operation.name: operation for operation in program.operations},
        {name: tuple(users) for name, users in uses.items()},
        {**dims, "V": value_tile},
        _dependent(program, () if program.carry is None else (program.carry.name,)),
        _dependent(program, (*_of_value_heads(program), *(() if program.carry is None else (program.carry.name,)))),
    )


def roots(program: Program) -> tuple[str, ...]:
    """Values that leave the iteration: the carry's next value and what is stored."""
    following = () if program.carry is None else (program.carry.next,)
    return (*following, *(store.value for store in program.stores))


def _check_sizes(dims: Mapping[str, int], value_tile: int) -> None:
    for name in ("C", "K", "V"):
        if name not in dims:
            raise QlagenError("E-DIMENSION", f"the size of {name} is missing", notes=["C, K and V need sizes"])
    if dims["C"] != CHUNK:
        raise QlagenError("E-DIMENSION", f"chunks of {dims['C']} tokens: kernels are made for C = {CHUNK}")
    for name in ("K", "V"):
        if dims[name] % 64 or not 64 <= dims[name] <= 256:
            message = f"{name} = {dims[name]}: must be a multiple of 64 from 64 to 256"
            raise QlagenError("E-DIMENSION", message, hints=[f"pad {name} to a multiple of 64"])
    if value_tile % 64 or value_tile < 64 or dims["V"] % value_tile:
        message = f"a value tile of {value_tile} columns: must be a multiple of 64 that divides V = {dims['V']}"
        raise QlagenError("E-DIMENSION", message, hints=["choose another value_tile"])


def _check_contractions(program: Program) -> None:
    """A CTA that has some columns of V cannot sum over all of them."""
    dims = infer_dims(program)
    for gemm in program.operations:
        if isinstance(gemm, Gemm) and dims[gemm.left][0 if gemm.transpose_left else 1] == "V":
            message = (
                f"program {program.name} of {program.operator}: {gemm.name} contracts over V, which CTAs share out"
            )
            raise QlagenError("E-TILE", message, hints=["use a value_tile that covers V"])


def _of_value_heads(program: Program) -> tuple[str, ...]:
    return tuple(o.name for o in program.operations if isinstance(o, Load) and o.tensor.head == "value")


def _dependent(program: Program, sources: Iterable[str]) -> frozenset[str]:
    """The sources and what needs one of them."""
    found = set(sources)
    for operation in program.operations:
        if found.intersection(operands(operation)):
            found.add(operation.name)
    return frozenset(found)


def _without_unused(program: Program) -> Program:
    """Only what reaches a root stays."""
    needed = set(roots(program))
    for operation in reversed(program.operations):
        if operation.name in needed:
            needed.update(operands(operation))
    return replace(program, operations=tuple(o for o in program.operations if o.name in needed))


def _with_start_decays(program: Program) -> Program:
    """A total decay is read as the last entry of the decay vector from the chunk's start: that vector must exist."""
    operations = list(program.operations)
    found = {o.source for o in operations if isinstance(o, Gate) and o.kind == "from_start"}
    taken = {o.name for o in operations}
    for gate in program.operations:
        if isinstance(gate, Gate) and gate.kind == "total" and gate.source not in found:
            name = f"{gate.name}_vector"
            while name in taken:
                name += "_"
            operations.insert(operations.index(gate), Gate(name, gate.source, "from_start", gate.origin))
            found.add(gate.source)
            taken.add(name)
    return replace(program, operations=tuple(operations))


def _inline(program: Program) -> Program:
    """Elementwise values read once, as a whole, by another elementwise value disappear into it; so do elementwise
    numbers and vectors that other elementwise vectors read. Roots stay."""
    while True:
        found = _inlinable(program)
        if found is None:
            return program
        inlined, users = found
        changed = {user.name: replace(user, expr=_substitute(user.expr, inlined.name, inlined.expr)) for user in users}
        kept = (changed.get(o.name, o) for o in program.operations)
        remaining = replace(program, operations=tuple(kept))
        left = any(inlined.name in operands(o) for o in remaining.operations)
        if not left:
            remaining = replace(remaining, operations=tuple(o for o in remaining.operations if o.name != inlined.name))
        program = remaining


def _inlinable(program: Program) -> tuple[Elementwise, tuple[Elementwise, ...]] | None:
    dims = infer_dims(program)
    for operation in program.operations:
        if not isinstance(operation, Elementwise) or operation.name in roots(program):
            continue
        readers = [o for o in program.operations if operation.name in operands(o)]
        users = tuple(o for o in readers if isinstance(o, Elementwise) and _fits(operation, dims, o))
        if users and (len(dims[operation.name]) < 2 or len(readers) == 1):
            return operation, users
    return None


def _fits(operation: Elementwise, dims: Mapping[str, Dims], user: Elementwise) -> bool:
    """Whether every mention in `user` can take the expression: a whole one, or a number's."""
    mentions = [ref for ref in refs(user.expr) if ref.name == operation.name]
    number = dims[operation.name] == ()
    return all(ref.along is None or (number and ref.along == "all") for ref in mentions)


def _substitute(expr: ElementExpr, name: str, by: ElementExpr) -> ElementExpr:
    if isinstance(expr, Ref) and expr.name == name:
        return _everywhere(by) if expr.along == "all" else by
    if isinstance(expr, Apply):
        return Apply(expr.operator, _substitute(expr.left, name, by), _substitute(expr.right, name, by))
    return expr


def _everywhere(expr: ElementExpr) -> ElementExpr:
    """A number's expression as part of a larger value's: its leaves are broadcast."""
    if isinstance(expr, Ref):
        return Ref(expr.name, "all")
    if isinstance(expr, Apply):
        return Apply(expr.operator, _everywhere(expr.left), _everywhere(expr.right))
    return expr


def rename(expr: ElementExpr, names: Mapping[str, str]) -> ElementExpr:
    """The expression with its unbroadcast leaves renamed."""
    if isinstance(expr, Ref):
        return Ref(names.get(expr.name, expr.name), expr.along) if expr.along is None else expr
    if isinstance(expr, Apply):
        return Apply(expr.operator, rename(expr.left, names), rename(expr.right, names))
    return expr


def gemm_text(gemm: Gemm) -> str:
    """For people: ``O += P @ N``, with ^T for transposed operands."""
    left = gemm.left + ("^T" if gemm.transpose_left else "")
    right = gemm.right + ("^T" if gemm.transpose_right else "")
    return f"{gemm.name} {'=' if gemm.add is None else '+='} {left} @ {right}"


def inverse_text(inverse: Inverse) -> str:
    """For people: ``A = (I + L)^-1``, with the scale of its columns."""
    columns = "" if inverse.columns is None else f" diag({inverse.columns})"
    return f"{inverse.name} = (I + {inverse.source})^-1{columns}"


def misplaced(analysis: Analysis, name: str, reason: str, hint: str) -> QlagenError:
    """E-PLACE: an operation that the role it belongs to cannot do."""
    program = analysis.program
    what = f"{name} {show_dims(analysis.dims[name])}"
    message = f"program {program.name} of {program.operator}: {what} {reason}"
    return QlagenError("E-PLACE", message, hints=[hint])
