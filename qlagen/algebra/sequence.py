"""A whole sequence in floating point, chunk by chunk: a form forward, a backward pass in reverse.

For checks and error studies on a CPU; the last chunk may be shorter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from qlagen.algebra.backward import BackwardForm
from qlagen.algebra.derivation import Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Field, Float64
from qlagen.spec.model import OpSpec

EXACT = Float64()


@dataclass(frozen=True)
class Sequence:
    """Values of one head: `tensors` by input name, [T, n] (a log gate per token, a scalar argument [1, 1]; what is
    given for each of N steps has N rows a token)."""

    tensors: Mapping[str, Array]
    state: Array
    """The initial state, [K, V]."""
    chunk: int

    def chunks(self, spec: OpSpec) -> list[dict[str, Array]]:
        """For each chunk its inputs by chunk symbol, without the state."""
        length = min(len(self.tensors[i.name]) for i in spec.inputs if i.heads != "none")
        found = []
        for start in range(0, length, self.chunk):
            values = {}
            for tensor in spec.inputs:
                whole = self.tensors[tensor.name]
                rows = len(whole) // length if tensor.per_step else 1
                part = whole if tensor.heads == "none" else whole[rows * start : rows * (start + self.chunk)]
                values[tensor.chunk_symbol] = np.cumsum(part, axis=0) if tensor.role == "log_gate" else part
            found.append(values)
        return found


def run_forward(spec: OpSpec, form: Form, sequence: Sequence, field: Field = EXACT) -> tuple[Array, Array, list[Array]]:
    """Outputs [T, V], the final state, and the state before every chunk."""
    state, states, outputs = sequence.state, list[Array](), list[Array]()
    for values in sequence.chunks(spec):
        states.append(state)
        env = {**values, spec.state: state}
        output, state = evaluate((form.output, form.state), env, _rows(spec, values), field)
        outputs.append(output)
    stacked = np.concatenate(outputs) if outputs else np.zeros((0, state.shape[1]))
    return stacked, state, states


def run_backward(
    spec: OpSpec,
    backward: BackwardForm,
    sequence: Sequence,
    states: list[Array],
    output_seed: Array,
    state_seed: Array,
    field: Field = EXACT,
) -> tuple[dict[str, Array], Array]:
    """Cotangents of the inputs by name, [T, n], and of the initial state; `states` are those before every chunk, the
    seeds are the cotangents of the outputs, [T, V], and of the final state."""
    found: dict[str, list[Array]] = {name: [] for name, _ in backward.gradients}
    for number, values in reversed(list(enumerate(sequence.chunks(spec)))):
        rows = _rows(spec, values)
        start = number * sequence.chunk
        env = {**values, spec.state: states[number]}
        env |= {backward.output_seed.value: output_seed[start : start + rows], backward.state_seed.value: state_seed}
        *gradients, state_seed = evaluate(backward.roots, env, rows, field)
        for (name, _), gradient in zip(backward.gradients, gradients, strict=True):
            found[name].insert(0, gradient)
    return {name: np.concatenate(parts) for name, parts in found.items() if parts}, state_seed


def _rows(spec: OpSpec, values: Mapping[str, Array]) -> int:
    return min(len(values[i.chunk_symbol]) for i in spec.inputs if i.heads != "none")
