"""Proof that a backward pass is the derivative of the spec's own token recurrence, at random points of prime fields.

Along a random direction the inputs change by X'. To first order the outputs change by O' and S1', which forward mode
through the recurrence gives token by token. The cotangents dX are right for all directions exactly when
sum <dX, X'> = <dO, O'> + <dS1, S1'> as polynomials in inputs, decays, seeds and directions. For a log gate
a = exp(g) changes by a g'. Primes, trials and the bound are those of `qlagen.algebra.prove`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import ceil, log

import numpy as np

from qlagen.algebra.backward import BackwardForm
from qlagen.algebra.build import build_recurrence, chunk_inputs, step_symbol
from qlagen.algebra.derivation import Proof
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, PrimeField
from qlagen.algebra.measure import VARIABLE, Measure, log_sum, measure
from qlagen.algebra.prove import BOUND, MAX_FAILURE, MIN_TRIALS, failure_probability
from qlagen.algebra.tangent import tangents
from qlagen.algebra.trial import Point, draw_point, draw_prime
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec


def prove_backward(spec: OpSpec, backward: BackwardForm, *, chunk: int | None = None, bound: float = BOUND) -> Proof:
    """Prove a backward pass at the spec's own sizes; `chunk` is C, the spec's first by default.

    It is right for every cotangent of output and state, so also for a sequence of chunks. Raises E-PROOF when it is
    wrong, or of too high a degree to be proven this way.
    """
    sizes = spec.sizes(chunk)
    difference = _difference_measure(spec, backward, sizes)
    failure = failure_probability(difference)
    if failure > MAX_FAILURE:
        message = f"the backward pass cannot be proven: its degree may be {difference.degree:.1e}"
        raise QlagenError("E-PROOF", message, span=spec.stages[-1].span, hints=["use a shorter chunk"])
    trials = max(MIN_TRIALS, ceil(log(bound) / log(failure)))
    generator = np.random.default_rng(int(spec.digest[:16], 16))
    for _ in range(trials):
        wrong = _Trial.draw(spec, backward, sizes, generator).wrong_gradients(backward)
        if wrong:
            message = f"the gradient of {', '.join(wrong)} is not the derivative of [recurrence]"
            raise QlagenError("E-PROOF", message, span=spec.stages[-1].span)
    key_dim, value_dim = (sizes[d] for d in backward.state.shape)
    return Proof(sizes["C"], key_dim, value_dim, difference.degree, trials, failure**trials)


@dataclass(frozen=True)
class _Trial:
    """One point, one direction and one pair of seeds."""

    spec: OpSpec
    sizes: Mapping[str, int]
    field: PrimeField
    point: Point
    direction: Mapping[str, Array]
    """By chunk symbol; of a log gate that of g."""
    seeds: Mapping[str, Array]

    @staticmethod
    def draw(spec: OpSpec, backward: BackwardForm, sizes: Mapping[str, int], generator: np.random.Generator) -> _Trial:
        field = PrimeField(draw_prime(generator))

        def draw(shape: Iterable[str]) -> Array:
            return generator.integers(1, field.prime, [sizes[d] for d in shape])

        point = draw_point(spec, sizes, field.prime, generator)
        direction = {name: draw(node.shape) for name, node in chunk_inputs(spec).items()}
        seeds = {node.value: draw(node.shape) for node in (backward.output_seed, backward.state_seed)}
        return _Trial(spec, sizes, field, point, direction, seeds)

    def wrong_gradients(self, backward: BackwardForm) -> list[str]:
        """Names of the inputs whose cotangent is wrong; the sum over all decides, then each is tried alone."""
        env = {**self.point.values, **self.seeds}
        names = [*(name for name, _ in backward.gradients), self.spec.state]
        values = evaluate(backward.roots, env, self.sizes["C"], self.field, sizes=self.sizes)
        gains = {n: self._dot(v, self.direction[self._symbol(n)]) for n, v in zip(names, values, strict=True)}
        if self._change(backward, names) == sum(gains.values()) % self.field.prime:
            return []
        return [n for n in names if self._change(backward, [n]) != gains[n] % self.field.prime]

    def _symbol(self, name: str) -> str:
        return name if name == self.spec.state else self.spec.input(name).chunk_symbol

    def _dot(self, left: Array, right: Array) -> int:
        return int(self.field.reduce(self.field.reduce(left * right).sum()))

    def _change(self, backward: BackwardForm, names: Collection[str]) -> int:
        """The change of <dO, O> + <dS1, S1> when only the inputs in `names` move."""
        moved = {self._symbol(name) for name in names}
        direction = {s: d if s in moved else np.zeros_like(d) for s, d in self.direction.items()}
        outputs, state = self._run(direction)
        change = self._dot(outputs, self.seeds[backward.output_seed.value])
        return (change + self._dot(state, self.seeds[backward.state_seed.value])) % self.field.prime

    def _run(self, direction: Mapping[str, Array]) -> tuple[Array, Array]:
        """Changes of the outputs, [C, V], and of the state after the chunk, by the recurrence."""
        spec, field = self.spec, self.field
        steps = self.sizes.get(spec.steps, 1)
        roots = build_recurrence(spec, steps)
        nodes = (*roots, *tangents(roots))
        state, state_change = self.point.values[spec.state], direction[spec.state]
        rows = []
        for t in range(self.sizes["C"]):
            env = {spec.state: state, f"{spec.state}'": state_change}
            for tensor in spec.inputs:
                gate, symbol = tensor.role == "log_gate", tensor.chunk_symbol
                value = (self.point.decays if gate else self.point.values)[symbol]
                change = field.reduce(value * direction[symbol]) if gate else direction[symbol]
                for mark, source in (("", value), ("'", change)):
                    if tensor.per_step:
                        for index in range(steps):
                            env[step_symbol(tensor.token_symbol, index) + mark] = source[t * steps + index][:, None]
                    else:
                        env[tensor.token_symbol + mark] = source if tensor.heads == "none" else source[t][:, None]
            _, state, output_change, state_change = evaluate(nodes, env, 1, field, sizes=self.sizes)
            rows.append(output_change[:, 0])
        return np.array(rows), state_change


def _difference_measure(spec: OpSpec, backward: BackwardForm, sizes: Mapping[str, int]) -> Measure:
    """Of the two sides' difference: sums of products of a cotangent or seed and a change."""
    roots = build_recurrence(spec, sizes.get(spec.steps, 1))
    nodes = (*roots, *tangents(roots))
    sides = [_paired(m, sizes) for m in measure(backward.roots, {}, sizes)]
    state = change = VARIABLE
    for _ in range(sizes["C"]):
        _, state, output_change, change = measure(nodes, {spec.state: state, f"{spec.state}'": change}, sizes)
        sides.append(_paired(output_change, sizes))
    sides.append(_paired(change, sizes))
    return Measure(max(m.degree for m in sides) + 1, log_sum(m.bits for m in sides))


def _paired(entry: Measure, sizes: Mapping[str, int]) -> Measure:
    """The sum over all entries of a matrix of such entries, each times an unknown; a decay's change adds a factor."""
    largest = max(sizes.values())
    return Measure(entry.degree + 1, entry.bits + 2 * log(largest, 2))
