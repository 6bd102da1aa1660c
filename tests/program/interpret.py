"""Runs the programs of a plan on one value head and one sequence, in float64: what the operations mean, from their
documentation alone."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from qlagen.program.ir import (
    ElementExpr,
    Elementwise,
    Gate,
    GatedDot,
    Gemm,
    Inverse,
    Load,
    Number,
    Operation,
    Plan,
    Program,
    Ref,
    Rows,
    Scan,
)

Array = npt.NDArray[np.float64]


def run_plan(plan: Plan, inputs: Mapping[str, Array], state: Array) -> tuple[Array, Array]:
    """Output and final state. `inputs` has [T, width] or [T] arrays, with an axis for steps after T where there are
    any, and numbers; T need not fill the last chunk."""
    sizes = dict(plan.dims)
    length = sizes["C"]
    tokens = max(len(a) for a in inputs.values() if a.ndim)
    chunks = -(-tokens // length)
    padded = {name: a if a.ndim == 0 else _pad(a, chunks * length) for name, a in inputs.items()}
    memory = [
        {name: a if a.ndim == 0 else a[i * length : (i + 1) * length] for name, a in padded.items()}
        for i in range(chunks)
    ]
    for program in plan.programs:
        for slot in memory:
            values = run_program(program, slot, state, sizes)
            slot.update({store.tensor.name: values[store.value] for store in program.stores})
            state = values[program.carry.next] if program.carry else state
    output = np.concatenate([slot["o"] for slot in memory])[:tokens]
    return output, state


def _pad(values: Array, rows: int) -> Array:
    return np.concatenate([values, np.zeros((rows - len(values), *values.shape[1:]))])


def run_program(
    program: Program, memory: Mapping[str, Array], state: Array, sizes: Mapping[str, int]
) -> dict[str, Array]:
    """Every value of one chunk."""
    values = {name: memory[name] for name in program.scalars}
    if program.carry is not None:
        values[program.carry.name] = state
    for operation in program.operations:
        assert operation.name not in values
        values[operation.name] = _run(operation, values, memory, sizes)
    return values


def _run(
    operation: Operation, values: Mapping[str, Array], memory: Mapping[str, Array], sizes: Mapping[str, int]
) -> Array:
    match operation:
        case Load():
            return memory[operation.tensor.name].reshape([sizes[dim] for dim in operation.tensor.dims])
        case Scan():
            return np.cumsum(values[operation.source], axis=0)
        case Gate():
            return _gate(operation, values, sizes)
        case GatedDot():
            left, right = values[operation.left], values[operation.right]
            decays = _decays(values[operation.gate], operation.exclusive)
            return np.einsum("ic,jc,ijc->ij", left, right, decays)
        case Rows():
            return _rows(operation, values[operation.source], sizes)
        case Inverse():
            source = values[operation.source]
            assert np.array_equal(source, np.tril(source, -1))
            return np.linalg.inv(np.eye(len(source)) + source) * (values[operation.columns] if operation.columns else 1)
        case Gemm():
            left, right = values[operation.left], values[operation.right]
            left = left.T if operation.transpose_left else left
            right = right.T if operation.transpose_right else right
            return left @ right + (0 if operation.add is None else values[operation.add])
        case Elementwise():
            return np.asarray(_evaluate(operation.expr, values))


def _gate(gate: Gate, values: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
    if gate.source is None:
        return np.tril(np.ones((sizes[gate.rows], sizes[gate.rows])), -1 if gate.kind == "strict" else 0)
    g = values[gate.source]
    if gate.kind == "decay":
        return _decays(g[:, None], gate.exclusive)[:, :, 0]
    exponents = {"from_start": g, "to_end": g[-1] - g, "total": g[-1]}
    return np.asarray(np.exp(exponents[gate.kind]))


def _decays(gate: Array, exclusive: bool) -> Array:
    """exp(G_i - G_j) below the diagonal. A gate before each row has G one row further down."""
    own = np.concatenate([gate[1:], gate[-1:]]) if exclusive else gate
    keep = np.tri(len(gate), k=-1 if exclusive else 0)[:, :, None]
    return np.asarray(keep * np.exp(np.minimum(gate[:, None] - own[None], 0)))


def _rows(rows: Rows, source: Array, sizes: Mapping[str, int]) -> Array:
    if rows.kind == "before":
        return np.concatenate([np.zeros_like(source[:1]), source[:-1]])
    if rows.kind == "each":
        return np.repeat(source, sizes[rows.rows] // len(source), axis=0)
    steps = len(source) // sizes[rows.rows]
    return source[steps - 1 :: steps]


def _evaluate(expr: ElementExpr, values: Mapping[str, Array]) -> Array | float:
    if isinstance(expr, Number):
        return float(expr.value)
    if isinstance(expr, Ref):
        value = values[expr.name]
        return value[:, None] if expr.along == "rows" else value[None, :] if expr.along == "columns" else value
    left, right = _evaluate(expr.left, values), _evaluate(expr.right, values)
    return left * right if expr.operator == "mul" else left + right if expr.operator == "add" else left - right
