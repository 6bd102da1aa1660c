"""Proof that a form computes the spec's own token recurrence, by evaluation at random points of prime fields.

Decays ``a = exp(g)`` are free unknowns, so every output entry is a polynomial with integer coefficients, on both sides.
Each trial draws a prime from [2^30, 2^31) and a point; a wrong form passes it with a probability that `measure` bounds.
Trials are repeated until the bound is below the one asked for. Arithmetic is exact, so a right form always passes.
Not covered: rounding, declared ranges, and log gates of minus infinity.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log

import numpy as np

from qlagen.algebra.build import build_recurrence
from qlagen.algebra.derivation import Form, Proof
from qlagen.algebra.localise import proof_error
from qlagen.algebra.measure import VARIABLE, Measure, log_sum, measure
from qlagen.algebra.trial import LOW, find_mismatch
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

BOUND = 1e-12
MIN_TRIALS = 2
MAX_FAILURE = 0.1
"""Highest failure probability of one trial with which a proof is attempted."""
PRIMES = 105_097_565 - 54_400_028
"""How many primes there are in [2^30, 2^31): pi(2^31) - pi(2^30)."""


def prove(spec: OpSpec, form: Form, *, chunk: int | None = None, bound: float = BOUND) -> Proof:
    """Prove a form at the spec's own sizes; `chunk` is C, the spec's first by default.

    Raises QlagenError E-PROOF when the form is wrong, or of too high a degree to be proven this way. The probability of
    accepting a wrong form is at most `bound`.
    """
    sizes = spec.sizes(chunk)
    difference = difference_measure(spec, form, sizes)
    failure = failure_probability(difference)
    hopeless = failure > MAX_FAILURE
    trials = MIN_TRIALS if hopeless else max(MIN_TRIALS, ceil(log(bound) / log(failure)))
    generator = np.random.default_rng(int(spec.digest[:16], 16))
    for _ in range(trials):
        mismatch = find_mismatch(spec, form, sizes, generator)
        if mismatch is not None:
            raise proof_error(spec, form, sizes, mismatch)
    if hopeless:
        raise _degree_error(spec, difference)
    key_dim, value_dim = (sizes[d] for d in form.state.shape)
    return Proof(sizes["C"], key_dim, value_dim, difference.degree, trials, failure**trials)


def _degree_error(spec: OpSpec, difference: Measure) -> QlagenError:
    last = spec.stages[-1]
    return QlagenError(
        "E-PROOF",
        "the stages cannot be proven: as polynomials in the inputs they may have degree "
        f"{difference.degree:.1e} and coefficients of {difference.bits:.1e} bits",
        span=last.span,
        notes=[
            f"evaluation modulo a prime of 31 bits decides up to a degree of {MAX_FAILURE * LOW:.1e}",
            "two evaluations found no difference from [recurrence]",
        ],
        hints=["nest fewer inverses and products of the same stages, or use a shorter chunk"],
    )


def difference_measure(spec: OpSpec, form: Form, sizes: Mapping[str, int]) -> Measure:
    """Of form minus recurrence, over all output entries."""
    sides = list(measure((form.output, form.state), {}, sizes))
    nodes = build_recurrence(spec, sizes.get(spec.steps))
    state = VARIABLE
    for _ in range(sizes["C"]):
        output, state = measure(nodes, {spec.state: state}, sizes)
        sides.append(output)
    sides.append(state)
    return Measure(max(m.degree for m in sides), log_sum((max(m.bits for m in sides), max(m.bits for m in sides))))


def failure_probability(difference: Measure) -> float:
    """That one trial accepts a wrong form, at most: the point is a zero, or the prime divides every coefficient.

    Values are drawn from p - 1 >= 2^30 nonzero ones; a coefficient of b bits has at most b / 30 prime factors >= 2^30.
    """
    return difference.degree / LOW + difference.bits / 30 / PRIMES
