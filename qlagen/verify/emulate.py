"""The chunked form with the roundings of a kernel: what accuracy its storage types allow.

A form is evaluated chunk by chunk in float64. Rounded are, as in a kernel: every operand of a matrix product to the
data type (products accumulate unrounded), the cumulative gate and the carried state to fp32, the output to the data
type; the unit-lower inverse is a forward substitution in fp32. Inputs are already in their types. Sequences and heads
are evaluated together: every value is an array [sequences, heads, rows, columns].

Where a rounding falls is chance: another kernel may scale an operand before rounding it. So an emulation takes a
`draw`: draw 0 rounds to the plain grid of the data type, draw n > 0 to grids stretched by random factors between 1
and 2, one for each operand. The errors of several draws show how much luck one kernel can have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qlagen.algebra.derivation import Form
from qlagen.algebra.ir import Node
from qlagen.algebra.walk import topological
from qlagen.spec.model import OpSpec
from qlagen.verify.cases import Inputs
from qlagen.verify.rounding import StorageType, round_to

Array = npt.NDArray[np.float64]

FORGOTTEN = -110.0
"""Stands for a log gate below it, minus infinity too: exp(-104) already rounds to zero in fp32."""


class Rounding:
    """What is rounded where; `storage` None rounds nothing, which shows the form itself."""

    def __init__(self, storage: StorageType | None, draw: int = 0) -> None:
        self.storage = storage
        self._random = np.random.default_rng(draw) if draw else None

    def operand(self, values: Array) -> Array:
        if self.storage is None:
            return values
        stretch = 1.0 if self._random is None else self._random.uniform(1, 2)
        return round_to(values * stretch, self.storage) / stretch

    def single(self, values: Array) -> Array:
        return values if self.storage is None else round_to(values, "float32")

    def result(self, values: Array) -> Array:
        return values if self.storage is None else round_to(values, self.storage)

    def inverse(self, lower: Array) -> Array:
        """(I + L)^-1 of strictly lower L [..., C, C] by forward substitution."""
        source = lower.astype(np.float64 if self.storage is None else np.float32)
        size = source.shape[-1]
        found = np.broadcast_to(np.eye(size, dtype=source.dtype), source.shape).copy()
        for row in range(1, size):
            found[..., row, :row] = -(source[..., row : row + 1, :row] @ found[..., :row, :row])[..., 0, :]
        return found.astype(np.float64)


@dataclass(frozen=True)
class _Chunk:
    """A chunk of several sequences: names of `[stages]` to values, and the sequences it belongs to."""

    values: dict[str, Array]
    sequences: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    """[sequences, C]: rows of the flattened token axis; minus one past a sequence's end."""


def emulate(spec: OpSpec, form: Form, inputs: Inputs, rounding: Rounding) -> tuple[Array, Array]:
    """o [B, T, Hv, V], zero in rows of no sequence, and final_state [N, Hv, K, V], as kernels compute them."""
    sizes = dict(spec.dims)
    flat, batch, tokens, heads = _flatten(spec, inputs)
    offsets = np.arange(batch + 1) * tokens if inputs.cu_seqlens is None else inputs.cu_seqlens
    lengths = np.diff(offsets)
    state = np.zeros((len(lengths), heads, sizes["K"], sizes["V"]))
    if inputs.initial_state is not None:
        state[:] = inputs.initial_state
    output = np.zeros((batch * tokens, heads, sizes["V"]))
    exact = frozenset(item.chunk_symbol for item in spec.inputs if item.dtype == "data")
    length = spec.chunk[0]
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        for index in range(int(-(-lengths.max(initial=0) // length))):
            chunk = _cut(spec, flat, offsets, index, rounding)
            chunk.values[spec.state] = state[chunk.sequences]
            got, carried = evaluate((form.output, form.state), chunk.values, rounding, exact)
            valid = chunk.rows >= 0
            output[chunk.rows[valid]] = rounding.result(np.swapaxes(got, 1, 2))[valid]
            state[chunk.sequences] = rounding.single(carried)
    return output.reshape(batch, tokens, heads, sizes["V"]), state


def _flatten(spec: OpSpec, inputs: Inputs) -> tuple[dict[str, Array], int, int, int]:
    """Arguments as [B * T, Hv, columns], key heads repeated for their value heads; numbers as [1, 1]."""
    heads = {item.heads: inputs.arrays[item.name].shape[2] for item in spec.inputs if item.heads != "none"}
    value_heads = heads.get("value", heads.get("key", 0))
    batch, tokens = next(inputs.arrays[item.name].shape[:2] for item in spec.inputs if item.heads != "none")
    flat: dict[str, Array] = {}
    for item in spec.inputs:
        value = inputs.arrays[item.name]
        if item.heads == "none":
            flat[item.name] = value.reshape(1, 1)
            continue
        columns = value.shape[3] if item.dims else 1
        value = value.reshape(batch * tokens, value.shape[2], columns)
        flat[item.name] = np.repeat(value, value_heads // value.shape[1], axis=1)
    return flat, batch, tokens, value_heads


def _cut(
    spec: OpSpec, flat: dict[str, Array], offsets: npt.NDArray[np.int64], index: int, rounding: Rounding
) -> _Chunk:
    """Chunk `index` of every sequence that has one. Rows past a sequence's end are zero, so their gate is 0 as well."""
    length, lengths = spec.chunk[0], np.diff(offsets)
    sequences = np.flatnonzero(lengths > index * length)
    within = index * length + np.arange(length)
    rows = np.where(within < lengths[sequences, None], offsets[sequences, None] + within, -1)
    values: dict[str, Array] = {}
    for item in spec.inputs:
        if item.heads == "none":
            values[item.chunk_symbol] = flat[item.name]
            continue
        value = np.where(rows[..., None, None] >= 0, flat[item.name][rows], 0.0)
        if item.role == "log_gate":
            value = rounding.single(np.cumsum(np.maximum(value, FORGOTTEN), axis=1))
        values[item.chunk_symbol] = np.swapaxes(value, 1, 2)
    return _Chunk(values, sequences, rows)


def evaluate(
    roots: tuple[Node, ...], values: dict[str, Array], rounding: Rounding, exact: frozenset[str]
) -> tuple[Array, ...]:
    """Values of the roots; `values` are the named leaves, [..., rows, columns], of which `exact` need no rounding."""
    done: dict[Node, Array] = {}
    operands: dict[Node, Array] = {}

    def operand(node: Node) -> Array:
        inner = node.args[0] if node.op == "transpose" else node
        if inner.op in ("mask", "ones") or (inner.op == "input" and inner.value in exact):
            return done[node]
        if inner not in operands:
            operands[inner] = rounding.operand(done[inner])
        return np.swapaxes(operands[inner], -1, -2) if inner is not node else operands[inner]

    sizes = _sizes(roots, values)
    for node in topological(roots):
        if node.op == "input":
            done[node] = values[node.value]
        elif node.op == "matmul" and "1" not in (*node.args[0].shape, *node.args[1].shape):
            done[node] = operand(node.args[0]) @ operand(node.args[1])
        elif node.op == "inverse":
            done[node] = rounding.inverse(done[node.args[0]])
        else:
            done[node] = _apply(node, [done[argument] for argument in node.args], sizes)
    return tuple(done[root] for root in roots)


def _sizes(roots: tuple[Node, ...], values: dict[str, Array]) -> dict[str, int]:
    """Lengths of the dimension symbols, read off the leaves."""
    sizes = {"1": 1}
    for node in topological(roots):
        if node.op == "input":
            sizes.update(zip(node.shape, values[node.value].shape[-2:], strict=True))
    return sizes


def _apply(node: Node, args: list[Array], sizes: dict[str, int]) -> Array:
    """An operation that runs in fp32 in a kernel; here in float64."""
    shape = (sizes[node.shape[0]], sizes[node.shape[1]])
    if node.op == "transpose":
        return np.swapaxes(args[0], -1, -2)
    if node.op == "matmul":
        return np.asarray(args[0] @ args[1])
    if node.op == "multiply":
        product: Array = args[0]
        for factor in args[1:]:
            product = product * factor
        return product
    if node.op == "add":
        total = np.zeros(shape)
        for coefficient, term in zip(node.coefficients, args, strict=True):
            total = total + coefficient * term
        return total
    if node.op in ("row_sum", "column_sum"):
        return np.asarray(args[0].sum(axis=-1 if node.op == "row_sum" else -2, keepdims=True))
    if node.op in ("mask", "ones"):
        return np.ones(shape) if node.op == "ones" else np.tri(*shape, k=-1 if node.value == "strict" else 0)
    return _decay(node, args[0])


def _decay(node: Node, gate: Array) -> Array:
    """The decay atoms of a cumulative log gate [..., C, columns]."""
    if node.op == "from_start":
        return np.exp(gate)
    if node.op == "to_end":
        return np.exp(gate[..., -1:, :] - gate)
    if node.op == "total":
        return np.exp(gate[..., -1:, :])
    if node.op == "decay":
        lower = np.tri(gate.shape[-2], dtype=bool)
        return np.exp(np.where(lower, gate - np.swapaxes(gate, -1, -2), -np.inf))
    raise ValueError(f"the emulation does not know the operation {node.op!r}")
