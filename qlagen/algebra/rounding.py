"""Rounding errors of forms, emulated: operands of matrix products are rounded to bfloat16, all else is float64.

What is compared is the algebra alone: two forms of one operator on the same inputs, with the same states and
cotangents. The error of an output is the Euclidean norm of its difference from exact arithmetic, relative to its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from qlagen.algebra.backward import BackwardForm
from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.derive_backward import BackwardDerivation
from qlagen.algebra.fields import Array, Float64, round_bfloat16
from qlagen.algebra.sequence import Sequence, run_backward, run_forward
from qlagen.spec.model import OpSpec

CHUNKS = 3
SEEDS = 4
GATE_SCALES = (1 / 16, 1 / 4, 1.0)
"""Multiples of log gates whose mean is -1/5 a token: from hardly any decay over a chunk to nearly all."""
ROUNDED = Float64(round_operand=round_bfloat16)


@dataclass(frozen=True)
class RoundingRow:
    """Relative errors of one output (``O``, the next state, ``dq`` ..) with log gates of one size."""

    output: str
    gate_scale: float
    textbook: float
    chosen: float


def rounding_table(derivation: BackwardDerivation, seeds: int = SEEDS) -> tuple[RoundingRow, ...]:
    """Errors of the chosen forms, forward and backward, beside those of the textbook's, at the spec's own sizes."""
    spec = derivation.forward.spec
    gated = any(i.role == "log_gate" for i in spec.inputs)
    rows: list[RoundingRow] = []
    for scale in GATE_SCALES if gated else (1.0,):
        found: dict[str, list[tuple[float, float]]] = {}
        for seed in range(seeds):
            for name, errors in _errors(derivation, _Case.draw(derivation.forward, scale, seed)):
                found.setdefault(name, []).append(errors)
        for name, pairs in found.items():
            textbook, chosen = np.mean(np.array(pairs), axis=0)
            rows.append(RoundingRow(name, scale, float(textbook), float(chosen)))
    return tuple(rows)


@dataclass(frozen=True)
class _Case:
    sequence: Sequence
    output_seed: Array
    state_seed: Array

    @staticmethod
    def draw(derivation: Derivation, gate_scale: float, seed: int) -> _Case:
        """A sequence of one head. In every second seed vectors have a common part, as keys of real layers do."""
        spec, chunk = derivation.spec, derivation.proof.chunk
        generator = np.random.default_rng(seed)
        sizes, length = dict(spec.dims), CHUNKS * chunk
        state = [sizes[d] for d in derivation.textbook.state.shape]
        tensors: dict[str, Array] = {}
        for tensor in spec.inputs:
            rows = 1 if tensor.heads == "none" else length * (sizes[spec.steps] if tensor.per_step else 1)
            drawn = generator.normal(size=(rows, sizes.get(tensor.width, 1)))
            if tensor.role == "log_gate":
                drawn = -gate_scale * np.abs(drawn) / 4
            elif tensor.heads == "none":
                drawn = np.full((1, 1), _default(tensor.default, sizes))
            elif tensor.norm is not None:
                drawn = drawn + seed % 2 * generator.normal(size=(1, drawn.shape[1]))
                drawn *= tensor.norm / np.linalg.norm(drawn, axis=1, keepdims=True)
            elif tensor.range != (None, None):
                low, high = tensor.range
                drawn = generator.uniform(low or 0.0, min(1.0, 1.0 if high is None else high), drawn.shape)
            tensors[tensor.name] = round_bfloat16(drawn) if tensor.dtype == "data" else drawn
        return _Case(
            Sequence(tensors, generator.normal(size=state) * 0.3, chunk),
            round_bfloat16(generator.normal(size=(length, state[1]))),
            generator.normal(size=state) * 0.3,
        )


def _default(text: str | None, sizes: Mapping[str, int]) -> float:
    """The value of a scalar argument: a number, or a power of a dimension such as ``K^-1/2``."""
    base, _, power = (text or "1").partition("^")
    value = float(sizes[base]) if base in sizes else float(base)
    return value ** float(Fraction(power)) if power else value


def _errors(derivation: BackwardDerivation, case: _Case) -> Iterator[tuple[str, tuple[float, float]]]:
    """For each output its name and the errors of the textbook and of the chosen forms."""
    forward = derivation.forward
    spec = forward.spec
    exact, final, states = run_forward(spec, forward.textbook, case.sequence)
    outputs = [_run(spec, form, case) for form in (forward.textbook, forward.chosen)]
    for place, (name, want) in enumerate(((spec.output, exact), (spec.state_output, final))):
        yield name, (_error(outputs[0][place], want), _error(outputs[1][place], want))
    stored = [round_bfloat16(state) for state in states]
    wanted = _run_back(spec, derivation.textbook, case, stored, Float64())
    have = [_run_back(spec, form, case, stored, ROUNDED) for form in (derivation.textbook, derivation.chosen)]
    for name, want in wanted.items():
        yield f"d{name}", (_error(have[0][name], want), _error(have[1][name], want))


def _run(spec: OpSpec, form: Form, case: _Case) -> tuple[Array, Array]:
    output, state, _ = run_forward(spec, form, case.sequence, ROUNDED)
    return output, state


def _run_back(
    spec: OpSpec, backward: BackwardForm, case: _Case, states: list[Array], field: Float64
) -> dict[str, Array]:
    gradients, state = run_backward(spec, backward, case.sequence, states, case.output_seed, case.state_seed, field)
    return {**gradients, spec.state: state}


def _error(have: Array, want: Array) -> float:
    return float(np.linalg.norm(have - want) / np.linalg.norm(want))
