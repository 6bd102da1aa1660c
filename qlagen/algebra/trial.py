"""Random points of a prime field, the token recurrence there, and the comparison with a form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from qlagen.algebra.build import build_recurrence, chunk_inputs, step_symbol
from qlagen.algebra.derivation import Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Field, PrimeField
from qlagen.spec.model import OpSpec

LOW, HIGH = 1 << 30, 1 << 31
"""Primes are drawn from [LOW, HIGH)."""


@dataclass(frozen=True)
class Point:
    """Values of the inputs of one chunk and of the state, by chunk symbol. `decays` holds exp(g) of every token for a
    log gate, whose entry in `values` is what the field takes for its cumulative sum."""

    values: Mapping[str, Array]
    decays: Mapping[str, Array]


@dataclass(frozen=True)
class Mismatch:
    """The first entry, in row order, where a form differs from the recurrence."""

    state: bool
    """It is in the next state, not in the output."""
    row: int
    column: int
    both: bool
    """Both results differ."""


def is_prime(number: int) -> bool:
    """Miller and Rabin; bases 2, 3, 5 and 7 decide every odd number below 3.2e9."""
    if number < 2 or number % 2 == 0:
        return number == 2
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in (2, 3, 5, 7):
        x = pow(base, odd, number)
        if x in (0, 1, number - 1):
            continue
        for _ in range(twos - 1):
            x = x * x % number
            if x == number - 1:
                break
        else:
            return False
    return True


def draw_prime(generator: np.random.Generator) -> int:
    """A uniformly drawn prime from [LOW, HIGH)."""
    while True:
        number = int(generator.integers(LOW, HIGH))
        if is_prime(number):
            return number


def draw_point(
    spec: OpSpec,
    sizes: Mapping[str, int],
    prime: int,
    generator: np.random.Generator,
    kept: Collection[str] = (),
    base: Point | None = None,
) -> Point:
    """A point with nonzero entries; the chunk symbols in `kept` take their values from `base`."""
    values: dict[str, Array] = {}
    decays: dict[str, Array] = {}
    gates = {i.chunk_symbol for i in spec.inputs if i.role == "log_gate"}
    for name, node in chunk_inputs(spec).items():
        drawn = generator.integers(1, prime, [sizes[d] for d in node.shape])
        if base is not None and name in kept:
            values[name] = base.values[name]
            if name in gates:
                decays[name] = base.decays[name]
        elif name in gates:
            values[name], decays[name] = _running_product(drawn, prime), drawn
        else:
            values[name] = drawn
    return Point(values, decays)


def _running_product(decays: Array, prime: int) -> Array:
    result = decays.copy()
    for t in range(1, len(result)):
        result[t] = result[t] * result[t - 1] % prime
    return result


def run_recurrence(spec: OpSpec, point: Point, sizes: Mapping[str, int], field: Field) -> tuple[Array, Array]:
    """The spec's own ``[recurrence]``, token by token: outputs [C, V] and the state after the chunk."""
    steps = sizes.get(spec.steps, 1)
    nodes = build_recurrence(spec, steps)
    state = point.values[spec.state]
    rows = []
    for t in range(sizes["C"]):
        env = {spec.state: state}
        for tensor in spec.inputs:
            source = point.decays if tensor.role == "log_gate" else point.values
            value = source[tensor.chunk_symbol]
            if tensor.per_step:
                for index in range(steps):
                    env[step_symbol(tensor.token_symbol, index)] = value[t * steps + index][:, None]
            else:
                env[tensor.token_symbol] = value if tensor.heads == "none" else value[t][:, None]
        output, state = evaluate(nodes, env, 1, field, sizes=sizes)
        rows.append(output[:, 0])
    return np.array(rows), state


def run_form(form: Form, point: Point, sizes: Mapping[str, int], field: Field) -> tuple[Array, Array]:
    """Outputs [C, V] and the state after the chunk, by a form."""
    output, state = evaluate((form.output, form.state), point.values, sizes["C"], field, sizes=sizes)
    return output, state


def find_mismatch(
    spec: OpSpec, form: Form, sizes: Mapping[str, int], generator: np.random.Generator
) -> Mismatch | None:
    """One trial: the first difference between a form and the recurrence at a random point, or None."""
    field = PrimeField(draw_prime(generator))
    point = draw_point(spec, sizes, field.prime, generator)
    want = run_recurrence(spec, point, sizes, field)
    have = run_form(form, point, sizes, field)
    wrong = [np.argwhere(a != b) for a, b in zip(want, have, strict=True)]
    for state, places in ((False, wrong[0]), (True, wrong[1])):
        if len(places):
            return Mismatch(state, int(places[0][0]), int(places[0][1]), both=all(map(len, wrong)))
    return None
