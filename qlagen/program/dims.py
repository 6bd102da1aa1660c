"""Dimensions of every value of a program, and the walks that this and other passes share."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qlagen.errors import QlagenError
from qlagen.program.ir import (
    Apply,
    Dims,
    ElementExpr,
    Elementwise,
    Gate,
    GatedDot,
    Gemm,
    Inverse,
    Load,
    Operation,
    Program,
    Ref,
    Rows,
    Scan,
)


def refs(expr: ElementExpr) -> Iterator[Ref]:
    """The values an expression reads, in the order they are written."""
    if isinstance(expr, Ref):
        yield expr
    elif isinstance(expr, Apply):
        yield from refs(expr.left)
        yield from refs(expr.right)


def operands(operation: Operation) -> tuple[str, ...]:
    """Names of the values that an operation reads, scalars included."""
    match operation:
        case Load():
            return ()
        case Scan() | Rows():
            return (operation.source,)
        case Inverse():
            return (operation.source, *(() if operation.columns is None else (operation.columns,)))
        case GatedDot():
            return (operation.left, operation.right, operation.gate)
        case Gate():
            return () if operation.source is None else (operation.source,)
        case Gemm():
            return (operation.left, operation.right, *(() if operation.add is None else (operation.add,)))
        case Elementwise():
            return tuple(ref.name for ref in refs(operation.expr))


def needed(operations: Iterable[Operation], wanted: Iterable[str]) -> tuple[Operation, ...]:
    """Those of the operations that the wanted values need, in their order."""
    live = set(wanted)
    kept: list[Operation] = []
    for operation in reversed(tuple(operations)):
        if operation.name in live:
            kept.append(operation)
            live.update(operands(operation))
    return tuple(kept[::-1])


def program_error(program: Program, what: str, *notes: str) -> QlagenError:
    return QlagenError("E-PROGRAM", f"program {program.name} of {program.operator}: {what}", notes=notes)


def infer_dims(program: Program) -> dict[str, Dims]:
    """Dimensions of the carry, the scalars and every operation's value, in order of definition.

    Raises E-PROGRAM for a value defined twice or used before it is defined, and for shapes that do not fit.
    """
    dims: dict[str, Dims] = dict.fromkeys(program.scalars, ())
    if program.carry is not None:
        dims[program.carry.name] = program.carry.dims
    for operation in program.operations:
        name = operation.name
        if name in dims:
            raise program_error(program, f"{name} is defined twice")
        for operand in operands(operation):
            if operand not in dims:
                raise program_error(program, f"{name} uses {operand}, which is not defined before it")
        fault, found = _dims(operation, dims)
        if fault:
            raise program_error(program, f"{name}: {fault}")
        dims[name] = found
    return dims


def _dims(operation: Operation, dims: Mapping[str, Dims]) -> tuple[str, Dims]:
    """What is wrong, or nothing, and the dimensions."""
    match operation:
        case Load():
            return "", operation.tensor.dims
        case Scan():
            return _expect(dims, operation.source, _of_rows(dims[operation.source]), dims[operation.source])
        case Inverse():
            square = 2 * _rows(dims[operation.source])
            fault, found = _expect(dims, operation.source, square, square)
            if fault or operation.columns is None:
                return fault, found
            return _expect(dims, operation.columns, square[:1], square)
        case Gate():
            return _gate_dims(operation, dims)
        case GatedDot():
            return _gated_dot_dims(operation, dims)
        case Rows():
            rows = _of_rows(dims[operation.source])
            return _expect(dims, operation.source, rows, (operation.rows, *rows[1:]))
        case Gemm():
            return _gemm_dims(operation, dims)
        case Elementwise():
            return _elementwise_dims(operation.expr, dims)


def _expect(dims: Mapping[str, Dims], source: str, wanted: Dims, result: Dims) -> tuple[str, Dims]:
    got = dims[source]
    return ("" if got == wanted else f"needs {show_dims(wanted)}, but {source} is {show_dims(got)}"), result


def is_rows(dim: str) -> bool:
    """Whether a first dimension counts a chunk's rows: tokens, C, or their steps, C and the symbol of these."""
    return dim.startswith("C")


def _rows(dims: Dims) -> Dims:
    """The symbol of the rows, C if there are none."""
    return dims[:1] if dims and is_rows(dims[0]) else ("C",)


def _of_rows(dims: Dims) -> Dims:
    """What is wanted of a value with rows, and with or without columns."""
    return (*_rows(dims), *dims[1:2])


def _gate_dims(gate: Gate, dims: Mapping[str, Dims]) -> tuple[str, Dims]:
    masks = gate.kind in ("lower", "strict")
    if masks != (gate.source is None):
        return f"a {gate.kind} {'mask has no source' if masks else 'gate needs a source'}", ()
    if gate.source is None:
        return "", (gate.rows, gate.rows)
    source = dims[gate.source]
    if gate.kind == "decay":
        return _expect(dims, gate.source, _rows(source), 2 * _rows(source))
    wanted = _of_rows(source)
    return _expect(dims, gate.source, wanted, wanted[1:] if gate.kind == "total" else wanted)


def _gated_dot_dims(dot: GatedDot, dims: Mapping[str, Dims]) -> tuple[str, Dims]:
    gate = dims[dot.gate]
    wanted = (*_rows(gate), gate[1] if len(gate) == 2 else "K")
    for operand in operands(dot):
        fault, _ = _expect(dims, operand, wanted, ())
        if fault:
            return fault, ()
    return "", 2 * _rows(gate)


def _gemm_dims(gemm: Gemm, dims: Mapping[str, Dims]) -> tuple[str, Dims]:
    left, right = dims[gemm.left], dims[gemm.right]
    if len(left) != 2 or len(right) != 2:
        return f"a product of {show_dims(left)} and {show_dims(right)}: both must be matrices", ()
    left = left[::-1] if gemm.transpose_left else left
    right = right[::-1] if gemm.transpose_right else right
    result = (left[0], right[1])
    if left[1] != right[0]:
        return f"cannot multiply {show_dims(left)} with {show_dims(right)}", result
    if gemm.add is not None and dims[gemm.add] != result:
        return f"adds {gemm.add} {show_dims(dims[gemm.add])} to {show_dims(result)}", result
    return "", result


def _elementwise_dims(expr: ElementExpr, dims: Mapping[str, Dims]) -> tuple[str, Dims]:
    """Unbroadcast leaves give the dimensions; without any, a vector along each axis does (an outer product)."""
    leaves = tuple(refs(expr))
    whole = [dims[leaf.name] for leaf in leaves if leaf.along is None]
    by_axis = {axis: dims[leaf.name] for axis in ("rows", "columns") for leaf in leaves if leaf.along == axis}
    if whole:
        result = whole[0]
    elif len(by_axis) == 2:
        result = (*by_axis["rows"], *by_axis["columns"])
    elif by_axis or not leaves:
        return "nothing gives it its shape: every operand is broadcast", ()
    else:
        result = ()
    for leaf in leaves:
        wanted = {"rows": result[:1], "columns": result[1:], "all": ()}.get(leaf.along or "", result)
        if dims[leaf.name] != wanted or (leaf.along in ("rows", "columns") and len(result) != 2):
            along = f" along {leaf.along}" if leaf.along else ""
            return f"{leaf.name} {show_dims(dims[leaf.name])}{along} does not fit {show_dims(result)}", result
    return "", result


def show_dims(dims: Dims) -> str:
    return f"[{', '.join(dims)}]"
