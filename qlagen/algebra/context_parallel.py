"""Facts for context parallelism: a sequence is cut into segments that run at once and are joined by their maps.

A segment's state from a zero start is B; the state that reaches it adds M S. Where M is small, a segment may take the
state after a short warm-up instead and M need not be computed: the error is at most |M| |S|. How |M| is bounded follows
from the token's own map, M_t = (I - c x x^T) diag(a):

- a factor I - c x x^T with 0 <= c |x|^2 <= 2 has norm 1 at most, so |M| <= exp(sum over tokens of the largest log gate
  of any channel), which for one gate per token is exp(sum g);
- without such a factor M is diagonal and |M| = exp(largest sum of any channel), which is smaller;
- without a decay, or with another rank-one factor, there is no such bound, and M is computed.

With several channels and such a factor exp(largest sum of any channel) is no bound: reflections move what they hold
from one channel to another.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, inf, log
from typing import Literal

import numpy as np

from qlagen.algebra.build import build_recurrence
from qlagen.algebra.clocks import Clocks
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derivation import Derivation, Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.facts import GROWTH_LIMIT, Facts
from qlagen.algebra.fields import PrimeField
from qlagen.algebra.ir import Node, factors_of, kind, split_coefficient, transpose
from qlagen.algebra.ledger import canonical
from qlagen.algebra.measure import Measure, log_sum, measure
from qlagen.algebra.pareto import pareto_set
from qlagen.algebra.prove import BOUND, MAX_FAILURE, MIN_TRIALS, failure_probability
from qlagen.algebra.prove_forms import prove_forms
from qlagen.algebra.search import Bounds, Key, Program, Search
from qlagen.algebra.segment import SegmentMap, segment_map
from qlagen.algebra.target import Throughput
from qlagen.algebra.text import show
from qlagen.algebra.trial import draw_point, draw_prime
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

Skip = Literal["log_gate_sum", "largest_log_gate_sum", "largest_channel_sum", "never"]
"""The bound of log |M|: sum of g; sum over tokens of the largest log gate of any channel; largest over channels of the
sum over tokens; none."""
BOUNDS = Bounds(width=24, tried=400, rounds=20, patience=5)
QUICK = Bounds(width=12, tried=200, rounds=12, patience=3)
"""For forms that may read an inverse: what remains is how to associate a few products."""


@dataclass(frozen=True)
class SkipRule:
    """When a segment's M may be left out."""

    bound: Skip
    condition: str
    """What the inputs must satisfy, as declared; empty when nothing is needed."""
    granted: bool
    """Whether the spec declares it. If not, `growth` must be added to the bound."""
    growth: str = ""
    """What log |M| may have more, per token, where the condition does not hold."""
    gate: str = ""
    """The token symbol of the log gate that the bound is made of; empty without one."""

    def threshold(self, tolerance: float) -> float:
        """M may be skipped where the bound of log |M| is at most this: then |M S| <= tolerance |S|. Minus infinity
        when it never may."""
        return -inf if self.bound == "never" else log(tolerance)


@dataclass(frozen=True)
class StateForm:
    """An expression for the next state alone, for segments of which no output is wanted."""

    state: Node
    """[K, V]"""
    multiply_adds: float
    chain_gemms: int
    rules: tuple[str, ...]
    bound: float = 1.0
    """Probability that it is wrong, at most."""


@dataclass(frozen=True)
class ContextParallel:
    """Facts of one operator that kernels for context parallelism read."""

    chunk: SegmentMap
    """The map of a chunk by the chosen form."""
    skip: SkipRule
    state_only: StateForm
    """The expression with the fewest multiply-adds, and of those the one with the shortest serial chain."""


def split_rule(derivation: Derivation) -> SkipRule | None:
    """When the map of a segment may be skipped; None when a sequence cannot be cut: its state is not linear in the
    state before it, from the left."""
    spec = derivation.spec
    token = segment_map(build_recurrence(spec, steps=1)[1], spec.state)
    chunk = segment_map(derivation.chosen.state, spec.state)
    return None if token is None or chunk is None else skip_rule(spec, token)


def context_parallel(derivation: Derivation, group: int = 1) -> ContextParallel | None:
    """The facts of an operator; None when its state is not linear in the state before it, from the left."""
    spec = derivation.spec
    token = segment_map(build_recurrence(spec, steps=1)[1], spec.state)
    chunk = segment_map(derivation.chosen.state, spec.state)
    if token is None or chunk is None:
        return None
    return ContextParallel(chunk, skip_rule(spec, token), _state_only(derivation, group))


def skip_rule(spec: OpSpec, token: SegmentMap) -> SkipRule:
    """When a segment's map may be skipped, from the map of one token; where a token has several steps, of its first:
    the others have no decay and factors of the same kind."""
    gates = {i.token_symbol for i in spec.inputs if i.role == "log_gate"}
    decay = token.diagonal
    if decay.op != "input" or decay.value not in gates:
        return SkipRule("never", "", granted=False)
    per_channel = kind(decay) != "scalar"
    if token.is_diagonal:
        return SkipRule("largest_channel_sum" if per_channel else "log_gate_sum", "", granted=True, gate=decay.value)
    reflection = _reflection(token.rest, decay)
    if reflection is None:
        return SkipRule("never", "", granted=False)
    scales, vector = reflection
    product = " ".join([*(_plain(s) for s in scales), f"|{_plain(vector)}|^2"])
    condition = f"0 <= {product} <= {GROWTH_LIMIT:g}"
    low, high = _range(spec, scales, vector)
    return SkipRule(
        "largest_log_gate_sum" if per_channel else "log_gate_sum",
        condition,
        granted=low >= 0 and high <= GROWTH_LIMIT,
        growth=f"log max(1, |1 - {product}|)",
        gate=decay.value,
    )


def _reflection(rest: Node, decay: Node) -> tuple[tuple[Node, ...], Node] | None:
    """The numbers c and the vector x when a token's rest is -c x x^T diag(decay)."""
    coefficient, product = split_coefficient(rest)
    factors = list(factors_of(product))
    turned = transpose(decay)
    if turned not in factors:
        return None
    factors.remove(turned)
    vectors = [f for f in factors if kind(f) == "column" and f.op == "input"]
    scales = tuple(f for f in factors if kind(f) == "scalar" and f.op == "input")
    fits = len(vectors) == 1 and transpose(vectors[0]) in factors and len(factors) == len(scales) + 2
    return (scales, vectors[0]) if coefficient == -1 and fits else None


def _range(spec: OpSpec, scales: tuple[Node, ...], vector: Node) -> tuple[float, float]:
    """Declared bounds of c |x|^2."""
    facts = Facts.of(spec)
    chunk_symbols = {i.token_symbol: i.chunk_symbol for i in spec.inputs}
    low, high = 1.0, facts.norms.get(chunk_symbols[_plain(vector)], inf) ** 2
    for scale in scales:
        bottom, top = facts.ranges[chunk_symbols[_plain(scale)]]
        low, high = (low * bottom if bottom >= 0 else -inf), high * top
    return low, high


def _plain(symbol: Node) -> str:
    """The name of an input, without the step."""
    return symbol.value.partition(".")[0]


def _state_only(derivation: Derivation, group: int) -> StateForm:
    """The form with the fewest multiply-adds, of those the one with the shortest chain."""
    spec, chunk = derivation.spec, derivation.proof.chunk
    best = _search_state(derivation, group, (derivation.textbook.state, derivation.chosen.state), (), BOUNDS)[0]
    bound = prove_forms(spec, (Form(derivation.chosen.output, best.state, ()),), chunk=chunk)
    return replace(best, bound=bound)


def state_forms(derivation: Derivation, start: Node, saved: tuple[Node, ...]) -> tuple[StateForm, ...]:
    """Expressions for the next state alone, found from `start`, where the expressions `saved` are in memory: none has
    both more multiply-adds and a longer serial chain than another one. The one with the fewest multiply-adds comes
    first. Each is proven equal to the chosen form's; none is given when that takes too many trials."""
    found = _search_state(derivation, 1, (start,), saved, QUICK)
    bound = prove_states(derivation, tuple(form.state for form in found))
    return () if bound is None else tuple(replace(form, bound=derivation.proof.bound + bound) for form in found)


def _search_state(
    derivation: Derivation, group: int, starts: tuple[Node, ...], saved: tuple[Node, ...], bounds: Bounds
) -> tuple[StateForm, ...]:
    """Not proven yet."""
    spec = derivation.spec
    model = CostModel.of(spec, derivation.proof.chunk, group)
    clocks = Clocks(model, Throughput(1, 1, 1, 1, 1, 1, 1, 1))

    def by_depth(program: Program) -> Key:
        return (clocks.depth(program.roots[0]), *program.bill)

    def by_work(program: Program) -> Key:
        return tuple(program.bill)

    search = Search(model, Facts.of(spec), frozenset(map(canonical, saved)), bounds, (by_work, by_depth))
    search.run(starts[:1])
    for start in starts[1:]:
        search.start((start,))
    ranked = sorted(search.visited, key=lambda p: (by_work(p), p.tie))
    front = pareto_set(ranked, lambda p: (p.bill.multiply_adds, clocks.depth(p.roots[0])))
    return tuple(
        StateForm(
            p.roots[0],
            p.bill.multiply_adds,
            clocks.depth(p.roots[0]),
            tuple(step.match.rule.name for step in p.path() if step.match is not None),
        )
        for p in front
    )


def prove_states(derivation: Derivation, states: tuple[Node, ...]) -> float | None:
    """The probability that one of them differs from the chosen next state, at most: evaluated at random points as in
    `qlagen.algebra.prove`. None where a trial decides too little. Raises E-PROOF for a wrong one."""
    spec = derivation.spec
    sizes = spec.sizes(derivation.proof.chunk)
    roots = (derivation.chosen.state, *states)
    sides = measure(roots, {}, sizes)
    bits = max(side.bits for side in sides)
    failure = failure_probability(Measure(max(side.degree for side in sides), log_sum((bits, bits))))
    if failure > MAX_FAILURE:
        return None
    trials = max(MIN_TRIALS, ceil(log(BOUND / len(roots)) / log(failure)))
    generator = np.random.default_rng(int(spec.digest[:16], 16))
    for _ in range(trials):
        field = PrimeField(draw_prime(generator))
        point = draw_point(spec, sizes, field.prime, generator)
        wanted, *found = evaluate(roots, point.values, sizes["C"], field, sizes=sizes)
        for state, value in zip(states, found, strict=True):
            if not np.array_equal(value, wanted):
                raise QlagenError(
                    "E-PROOF", f"{show(state)} is not the next state", notes=["this is a fault of a rewrite"]
                )
    return float(min(1.0, len(roots) * failure**trials))
