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

_BLOCK = 16
"""Rows of a block on the diagonal of a product under a gate per channel."""
FORGOTTEN = -110.0
"""Stands for a log gate below it, minus infinity too: exp(-104) already rounds to zero in fp32."""

_TILES = 16
"""Chunks of different sequences and heads evaluated together: few enough for a core's cache."""


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
class _Call:
    """One call: arguments as [B * T, their heads, steps, columns] or [1, 1], and the sequences' offsets in the token
    axis."""

    spec: OpSpec
    flat: dict[str, Array]
    offsets: npt.NDArray[np.int64]
    key_heads: int
    value_heads: int


def emulate(spec: OpSpec, form: Form, inputs: Inputs, rounding: Rounding) -> tuple[Array, Array]:
    """o [B, T, Hv, V], zero in rows of no sequence, and final_state [N, Hv, K, V], as kernels compute them."""
    sizes = dict(spec.dims)
    batch, tokens = next(inputs.arrays[item.name].shape[:2] for item in spec.inputs if item.heads != "none")
    call = _flatten(spec, inputs, batch, tokens)
    count = len(call.offsets) - 1
    state = np.zeros((count, call.value_heads, sizes["K"], sizes["V"]))
    if inputs.initial_state is not None:
        state[:] = inputs.initial_state
    output = np.zeros((batch * tokens, call.value_heads, sizes["V"]))
    block = max(1, _TILES // max(1, count))
    with np.errstate(under="ignore", over="ignore", invalid="ignore"):
        for first in range(0, call.value_heads, block):
            heads = np.arange(first, min(first + block, call.value_heads))
            _emulate_heads(call, form, heads, rounding, state, output)
    return output.reshape(batch, tokens, call.value_heads, sizes["V"]), state


def _emulate_heads(
    call: _Call, form: Form, heads: npt.NDArray[np.int64], rounding: Rounding, state: Array, output: Array
) -> None:
    """Walk the chunks of all sequences in step for some value heads; `state` and `output` are written in place."""
    exact = frozenset(item.chunk_symbol for item in call.spec.inputs if item.dtype == "data")
    length, lengths = call.spec.chunk[0], np.diff(call.offsets)
    for index in range(int(-(-lengths.max(initial=0) // length))):
        sequences = np.flatnonzero(lengths > index * length)
        within = index * length + np.arange(length)
        rows = np.where(within < lengths[sequences, None], call.offsets[sequences, None] + within, -1)
        values = _cut(call, rows, heads, rounding)
        values[call.spec.state] = state[np.ix_(sequences, heads)]
        got, carried = evaluate((form.output, form.state), values, rounding, exact)
        valid = rows >= 0
        output[np.ix_(rows[valid], heads)] = rounding.result(np.swapaxes(got, 1, 2))[valid]
        state[np.ix_(sequences, heads)] = rounding.single(carried)


def _flatten(spec: OpSpec, inputs: Inputs, batch: int, tokens: int) -> _Call:
    flat: dict[str, Array] = {}
    heads: dict[str, int] = {}
    for item in spec.inputs:
        value = inputs.arrays[item.name]
        if item.heads == "none":
            flat[item.name] = value.reshape(1, 1)
            continue
        heads[item.heads] = value.shape[2]
        steps = value.shape[3] if item.per_step else 1
        columns = 1 if item.width == "1" else value.shape[-1]
        flat[item.name] = value.reshape(batch * tokens, value.shape[2], steps, columns)
    offsets = np.arange(batch + 1) * tokens if inputs.cu_seqlens is None else inputs.cu_seqlens
    value_heads = heads.get("value", heads.get("key", 0))
    return _Call(spec, flat, offsets, heads.get("key", value_heads), value_heads)


def _cut(
    call: _Call, rows: npt.NDArray[np.int64], heads: npt.NDArray[np.int64], rounding: Rounding
) -> dict[str, Array]:
    """Inputs of one chunk by their names in ``[stages]``, [sequences, heads, rows, columns].

    `rows` [sequences, C] is minus one past a sequence's end: such rows are zero, and so is their gate.
    """
    of_kind = {"value": heads, "key": heads // (call.value_heads // call.key_heads)}
    values: dict[str, Array] = {}
    for item in call.spec.inputs:
        if item.heads == "none":
            values[item.chunk_symbol] = call.flat[item.name]
            continue
        value = call.flat[item.name][rows[..., None], of_kind[item.heads]]
        value = np.swapaxes(np.where(rows[..., None, None, None] >= 0, value, 0.0), 1, 2)
        value = value.reshape(*value.shape[:2], -1, value.shape[-1])
        if item.role == "log_gate":
            value = rounding.single(np.cumsum(np.maximum(value, FORGOTTEN), axis=2))
        values[item.chunk_symbol] = value
    return values


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
        elif node.op == "gdot":
            left, right, gate = (done[argument] for argument in node.args)
            done[node] = _gated_dot(rounding, left, right, gate, node.args[2].op == "before")
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
    if node.op in ("each", "last"):
        steps = sizes[(node if node.op == "each" else node.args[0]).shape[0]] // sizes["C"]
        return np.repeat(args[0], steps, axis=-2) if node.op == "each" else args[0][..., steps - 1 :: steps, :]
    return _decay(node, args[0])


def _decay(node: Node, gate: Array) -> Array:
    """The gate before each row, and the decay atoms, of a cumulative log gate [..., rows, columns]."""
    if node.op == "before":
        return np.concatenate([np.zeros_like(gate[..., :1, :]), gate[..., :-1, :]], axis=-2)
    if node.op == "from_start":
        return np.exp(gate)
    if node.op == "to_end":
        return np.exp(gate[..., -1:, :] - gate)
    if node.op == "total":
        return np.exp(gate[..., -1:, :])
    if node.op == "decay":
        return _between(gate, node.args[0].op == "before")[..., 0]
    raise ValueError(f"the emulation does not know the operation {node.op!r}")


def _own(gate: Array, exclusive: bool) -> Array:
    """The gate on the columns' side. One that stands before each row (`exclusive`) has it a row later; its last row is
    not known then, and nothing below the diagonal reads it."""
    return np.concatenate([gate[..., 1:, :], gate[..., -1:, :]], axis=-2) if exclusive else gate


def _between(gate: Array, exclusive: bool) -> Array:
    """[..., rows, rows, columns]: exp(G_i - G_j) where i >= j, or i > j with an `exclusive` gate; else 0."""
    keep = np.tri(gate.shape[-2], k=-1 if exclusive else 0, dtype=bool)[..., None]
    difference = gate[..., :, None, :] - _own(gate, exclusive)[..., None, :, :]
    return np.asarray(np.exp(np.where(keep, difference, -np.inf)))


def _gated_dot(rounding: Rounding, left: Array, right: Array, gate: Array, exclusive: bool) -> Array:
    """[i >= j] sum_c x_ic y_jc exp(G_ic - G_jc), as a kernel makes it: blocks below the diagonal are products of
    rounded operands, whose gates refer to the seam above the rows; those on the diagonal are summed in fp32."""
    rows, own = gate.shape[-2], _own(gate, exclusive)
    result = np.zeros((*gate.shape[:-2], rows, rows))
    for first in range(0, rows, _BLOCK):
        block = slice(first, min(first + _BLOCK, rows))
        gated = _between(gate[..., block, :], exclusive) * right[..., None, block, :]
        result[..., block, block] = np.einsum("...ijc,...ic->...ij", gated, left[..., block, :])
        if first:
            seam = own[..., first - 1 : first, :]
            above = rounding.operand(right[..., :first, :] * np.exp(seam - own[..., :first, :]))
            below = rounding.operand(left[..., block, :] * np.exp(gate[..., block, :] - seam))
            result[..., block, :first] = below @ np.swapaxes(above, -1, -2)
    return result
