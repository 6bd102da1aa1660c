"""The backward pass of a group of value heads that share a key head.

The gradient of what belongs to the key head is a sum over its value heads. Where a term is a product with something of
the key head, the sum may be taken first: one product then serves the whole group.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, log

import numpy as np

from qlagen.algebra.backward import BackwardForm
from qlagen.algebra.backward_plans import backward_model
from qlagen.algebra.build import chunk_inputs
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derive_backward import BackwardDerivation, backward_cost, follow, inverses, steps_of
from qlagen.algebra.facts import Facts
from qlagen.algebra.fields import Array, PrimeField
from qlagen.algebra.heads import evaluate_heads
from qlagen.algebra.ir_adjoint import head_sum
from qlagen.algebra.ledger import canonical
from qlagen.algebra.measure import measure
from qlagen.algebra.prove import BOUND, MIN_TRIALS, failure_probability
from qlagen.algebra.search import Bounds, Search
from qlagen.algebra.trial import draw_point, draw_prime
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

BOUNDS = Bounds(width=16, tried=300, rounds=40, patience=5)
HEADS = 2
"""Value heads with which a form is checked: it says nothing of their number."""


@dataclass(frozen=True)
class SharedBackward:
    """A backward pass whose gradients of key-head inputs are sums over the heads of the group."""

    derived: BackwardDerivation
    """Its bills are those of a group."""
    group: int
    bound: float
    """Probability that it is not the sum over the heads of the form that was proven for one, at most."""


def share_heads(derived: BackwardDerivation, group: int, bounds: Bounds = BOUNDS) -> SharedBackward:
    """The form for `group` value heads per key head: the chosen one, summed over heads, simplified again."""
    forward = derived.forward
    spec, chunk = forward.spec, forward.proof.chunk
    model = backward_model(CostModel.of(spec, chunk, group), derived.start, spec.state)
    start = summed(spec, derived.chosen)
    search = Search(model, Facts.of(spec), frozenset(map(canonical, derived.saved)), bounds)
    best = search.run(start.roots)
    chosen = follow(start, best, search.saved)
    result = replace(
        derived,
        chosen=chosen,
        steps=steps_of(start, best, model, search.saved),
        textbook_cost=backward_cost(derived.textbook, model, inverses(derived.textbook.roots)),
        start_cost=backward_cost(start, model, derived.saved),
        chosen_cost=backward_cost(chosen, model, derived.saved),
    )
    return SharedBackward(result, group, check_heads(spec, derived.chosen, chosen, chunk))


def summed(spec: OpSpec, backward: BackwardForm) -> BackwardForm:
    """The form with sums over heads around the gradients of what belongs to the key head."""
    gradients = tuple(
        (name, head_sum(node) if spec.input(name).heads == "key" else node) for name, node in backward.gradients
    )
    return replace(backward, gradients=gradients)


def check_heads(spec: OpSpec, single: BackwardForm, shared: BackwardForm, chunk: int, bound: float = BOUND) -> float:
    """Compare a form for a group with the sums of the form for one head, at random points of prime fields.

    Returns the probability that a wrong form passes. Raises E-PROOF when they differ.
    """
    sizes = spec.sizes(chunk)
    measures = measure((*single.roots, *shared.roots), {}, sizes)
    worst = replace(measures[0], degree=max(m.degree for m in measures), bits=max(m.bits for m in measures) + 2)
    failure = failure_probability(worst)
    trials = max(MIN_TRIALS, ceil(log(bound) / log(failure)))
    generator = np.random.default_rng(int(spec.digest[:16], 16))
    for _ in range(trials):
        field = PrimeField(draw_prime(generator))
        heads = _draw_heads(spec, single, sizes, field, generator)
        want = evaluate_heads(summed(spec, single).roots, heads, chunk, field, sizes)
        have = evaluate_heads(shared.roots, heads, chunk, field, sizes)
        if not all(np.array_equal(a, b) for w, h in zip(want, have, strict=True) for a, b in zip(w, h, strict=True)):
            raise QlagenError("E-PROOF", f"{spec.name}: sums over heads differ", span=spec.stages[-1].span)
    return float(failure**trials)


def _draw_heads(
    spec: OpSpec,
    backward: BackwardForm,
    sizes: dict[str, int],
    field: PrimeField,
    generator: np.random.Generator,
) -> list[dict[str, Array]]:
    """Values of every input and seed for each head; what belongs to the key head is the same in all."""
    kept = [i.chunk_symbol for i in spec.inputs if i.heads != "value"]
    base = draw_point(spec, sizes, field.prime, generator)
    heads: list[dict[str, Array]] = []
    for _ in range(HEADS):
        values = dict(draw_point(spec, sizes, field.prime, generator, kept, base).values)
        for seed in (backward.output_seed, backward.state_seed):
            values[seed.value] = generator.integers(1, field.prime, [sizes[d] for d in seed.shape])
        heads.append(values)
    assert set(chunk_inputs(spec)) <= set(heads[0])
    return heads
