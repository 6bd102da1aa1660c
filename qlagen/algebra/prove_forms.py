"""Proof of several forms of one spec at once: they share the recurrence's values and most of their own."""

from __future__ import annotations

from math import ceil, log

import numpy as np

from qlagen.algebra.derivation import Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import PrimeField
from qlagen.algebra.prove import BOUND, MIN_TRIALS, difference_measure, failure_probability, prove
from qlagen.algebra.trial import draw_point, draw_prime, run_recurrence
from qlagen.spec.model import OpSpec


def prove_forms(spec: OpSpec, forms: tuple[Form, ...], *, chunk: int, bound: float = BOUND) -> float:
    """Prove every form at the spec's own sizes and return the probability that any is wrong, at most `bound`.

    The points and primes are those of `qlagen.algebra.prove`, the same for all forms. Raises E-PROOF for a wrong form.
    """
    sizes = spec.sizes(chunk)
    failure = max(failure_probability(difference_measure(spec, form, sizes)) for form in forms)
    trials = max(MIN_TRIALS, ceil(log(bound / len(forms)) / log(failure)))
    generator = np.random.default_rng(int(spec.digest[:16], 16))
    roots = tuple(node for form in forms for node in (form.output, form.state))
    for _ in range(trials):
        field = PrimeField(draw_prime(generator))
        point = draw_point(spec, sizes, field.prime, generator)
        want = run_recurrence(spec, point, sizes, field)
        have = evaluate(roots, point.values, chunk, field, sizes=sizes)
        for place, value in enumerate(have):
            if not np.array_equal(value, want[place % 2]):
                prove(spec, forms[place // 2], chunk=chunk, bound=bound)  # says what is wrong
                raise AssertionError("a trial failed that a proof passes")
    return float(min(1.0, len(forms) * failure**trials))
