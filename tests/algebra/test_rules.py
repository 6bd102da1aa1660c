"""Every rule keeps the value: in float64, and exactly in a prime field, at random small sizes."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np
import pytest

from qlagen.algebra import ir, ir_adjoint
from qlagen.algebra.build import build_form
from qlagen.algebra.derive import rewrite_form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.facts import Facts
from qlagen.algebra.fields import Array, Float64, PrimeField
from qlagen.algebra.ir import Node
from qlagen.algebra.rewrite_operands import hoist_everywhere
from qlagen.algebra.rules import RULES, matches, refusals
from qlagen.algebra.text import show

from .operators import NAMES, derivation, spec

PRIME = 2147483629
Q = ir.input_node("Q", ("C", "K"))
K = ir.input_node("K", ("C", "K"))
V = ir.input_node("V", ("C", "V"))
S = ir.input_node("S", ("K", "V"))
X = ir.input_node("X", ("C", "C"))
Y = ir.input_node("Y", ("C", "C"))
ROW = ir.input_node("row", ("1", "C"))
BETA = ir.input_node("beta", ("C", "1"))
G = ir.input_node("G", ("C", "1"))
SCALE = ir.input_node("scale", ("1", "1"))
INPUTS = (Q, K, V, S, X, Y, ROW, BETA, G, SCALE)
GRAM = ir.matmul(K, ir.transpose(K))
STRICT = ir.multiply(ir.mask("strict"), X)
LOWER = ir.multiply(ir.mask("lower"), Y)
INVERSE = ir.inverse(ir.multiply(BETA, STRICT))
DECAY, FIRST, LAST = ir.decay(G), ir.from_start(G), ir.to_end(G)
GRANTED = Facts({"beta": (0.0, 2.0)}, {"K": 1.0}, frozenset({"Q", "K", "scale"}))

# rule, before, one of the results it must yield
EXAMPLES: tuple[tuple[str, Node, Node], ...] = (
    ("associate", ir.matmul(ir.matmul(X, K), S), ir.matmul(X, ir.matmul(K, S))),
    ("associate", ir.matmul(X, ir.matmul(K, S)), ir.matmul(ir.matmul(X, K), S)),
    ("hoist scale", ir.matmul(ir.multiply(BETA, K), S), ir.multiply(BETA, ir.matmul(K, S))),
    ("hoist scale", ir.matmul(Y, ir.multiply(X, ROW)), ir.multiply(ROW, ir.matmul(Y, X))),
    ("hoist scale", ir.matmul(ir.multiply(SCALE, K), S), ir.multiply(SCALE, ir.matmul(K, S))),
    ("push scale", ir.multiply(BETA, ir.matmul(K, S)), ir.matmul(ir.multiply(BETA, K), S)),
    ("push scale", ir.multiply(ROW, BETA, ir.matmul(Y, X)), ir.multiply(BETA, ir.matmul(Y, ir.multiply(ROW, X)))),
    ("slide scale", ir.matmul(ir.multiply(X, ROW), V), ir.matmul(X, ir.multiply(ir.transpose(ROW), V))),
    ("slide scale", ir.matmul(X, ir.multiply(BETA, V)), ir.matmul(ir.multiply(ir.transpose(BETA), X), V)),
    (
        "distribute",
        ir.matmul(X, ir.subtract(V, ir.matmul(K, S))),
        ir.linear(((1, ir.matmul(X, V)), (-1, ir.matmul(X, ir.matmul(K, S))))),
    ),
    ("distribute", ir.matmul(ir.add(X, Y), V), ir.add(ir.matmul(X, V), ir.matmul(Y, V))),
    ("distribute", ir.multiply(BETA, ir.add(X, Y)), ir.add(ir.multiply(BETA, X), ir.multiply(BETA, Y))),
    (
        "factor left",
        ir.linear(((2, ir.matmul(X, V)), (-1, ir.matmul(X, ir.matmul(K, S))))),
        ir.matmul(X, ir.linear(((2, V), (-1, ir.matmul(K, S))))),
    ),
    (
        "factor right",
        ir.linear(((1, ir.matmul(X, V)), (3, ir.matmul(Y, V)), (1, V))),
        ir.add(V, ir.matmul(ir.linear(((1, X), (3, Y))), V)),
    ),
    (
        "factor scale",
        ir.subtract(ir.multiply(BETA, V), ir.multiply(BETA, FIRST, ir.matmul(K, S))),
        ir.multiply(BETA, ir.subtract(V, ir.multiply(FIRST, ir.matmul(K, S)))),
    ),
    (
        "swap trace",
        ir.row_sum(ir.multiply(BETA, V, ir.matmul(K, S))),
        ir.row_sum(ir.multiply(K, ir.matmul(ir.multiply(BETA, V), ir.transpose(S)))),
    ),
    (
        "swap trace",
        ir.column_sum(ir.multiply(V, ir.matmul(K, S))),
        ir.column_sum(ir.multiply(S, ir.matmul(ir.transpose(K), V))),
    ),
    ("hoist from sum", ir.row_sum(ir.multiply(BETA, X)), ir.multiply(BETA, ir.row_sum(X))),
    ("hoist from sum", ir.column_sum(ir.multiply(ROW, X)), ir.multiply(ROW, ir.column_sum(X))),
    ("push into sum", ir.multiply(BETA, ir.row_sum(X)), ir.row_sum(ir.multiply(BETA, X))),
    ("distribute sum", ir.row_sum(ir.subtract(X, Y)), ir.subtract(ir.row_sum(X), ir.row_sum(Y))),
    (
        "distribute sum",
        ir_adjoint.row_minus_column(ir.add(X, Y)),
        ir.add(ir_adjoint.row_minus_column(X), ir_adjoint.row_minus_column(Y)),
    ),
    (
        "sum heads first",
        ir_adjoint.head_sum(ir.matmul(ir.multiply(BETA, X), K)),
        ir.matmul(ir_adjoint.head_sum(ir.multiply(BETA, X)), K),
    ),
    (
        "sum heads first",
        ir_adjoint.head_sum(ir.matmul(ir.transpose(K), X)),
        ir.matmul(ir.transpose(K), ir_adjoint.head_sum(X)),
    ),
    (
        "distribute head sum",
        ir_adjoint.head_sum(ir.subtract(X, Y)),
        ir.subtract(ir_adjoint.head_sum(X), ir_adjoint.head_sum(Y)),
    ),
    (
        "merge head sums",
        ir.subtract(ir_adjoint.head_sum(X), ir_adjoint.head_sum(Y)),
        ir_adjoint.head_sum(ir.subtract(X, Y)),
    ),
    (
        "merge sums",
        ir.linear(((2, ir.column_sum(X)), (-1, ir.column_sum(Y)))),
        ir.column_sum(ir.linear(((2, X), (-1, Y)))),
    ),
    (
        "push through",
        ir.multiply(INVERSE, ir.transpose(BETA)),
        ir.multiply(BETA, ir.inverse(ir.multiply(STRICT, ir.transpose(BETA)))),
    ),
    (
        "push through",
        ir.multiply(BETA, ir.inverse(ir.multiply(STRICT, ir.transpose(BETA)))),
        ir.multiply(INVERSE, ir.transpose(BETA)),
    ),
    ("absorb to_end", ir.multiply(DECAY, LAST, X), ir.multiply(ir.mask("lower"), ir.transpose(LAST), X)),
    ("absorb to_end", ir.multiply(STRICT, ir.transpose(LAST)), ir.multiply(STRICT, LAST, DECAY)),
    ("absorb from_start", ir.multiply(DECAY, ir.transpose(FIRST), X), ir.multiply(ir.mask("lower"), FIRST, X)),
    ("absorb from_start", ir.multiply(STRICT, FIRST), ir.multiply(STRICT, ir.transpose(FIRST), DECAY)),
    ("merge gates", ir.multiply(FIRST, LAST, V), ir.multiply(ir.total(G), V)),
    ("merge gates", ir.multiply(FIRST, LAST), ir.multiply(ir.total(G), ir.ones(("C", "1")))),
    (
        "split decay",
        ir.multiply(DECAY, ir.matmul(LOWER, STRICT)),
        ir.matmul(ir.multiply(DECAY, LOWER), ir.multiply(DECAY, STRICT)),
    ),
    ("gate inverse", ir.multiply(DECAY, INVERSE), ir.inverse(ir.multiply(BETA, DECAY, STRICT))),
    (
        "ungate inverse",
        ir.inverse(ir.multiply(BETA, ir.mask("strict"), DECAY, GRAM)),
        ir.multiply(DECAY, ir.inverse(ir.multiply(BETA, ir.mask("strict"), GRAM))),
    ),
)


def results(rule_name: str, before: Node, facts: Facts = GRANTED) -> list[Node]:
    (rule,) = (r for r in RULES if r.name == rule_name)
    return list(rule.rewrite(before, facts))


def drawn(seed: int) -> tuple[int, dict[str, Array], dict[str, Array], dict[str, int]]:
    """A chunk length, float values, prime field values, and the sizes."""
    generator = np.random.default_rng(seed)
    sizes = {
        "C": int(generator.integers(1, 7)),
        "K": int(generator.integers(1, 5)),
        "V": int(generator.integers(1, 5)),
        "1": 1,
    }
    floats = {n.value: generator.normal(size=[sizes[d] for d in n.shape]) for n in INPUTS}
    floats["G"] = np.cumsum(-np.abs(floats["G"]), axis=0)
    exact = {n.value: generator.integers(1, PRIME, [sizes[d] for d in n.shape]) for n in INPUTS}
    return sizes["C"], floats, exact, sizes


def assert_equal(before: Node, after: Node, seed: int, sizes_of: Mapping[str, int] | None = None) -> None:
    assert before.shape == after.shape
    chunk, floats, exact, sizes = drawn(seed)
    want, have = evaluate((before, after), floats, chunk, Float64(), sizes=sizes)
    np.testing.assert_allclose(have, want, rtol=1e-7, atol=1e-7 * max(1.0, np.abs(want).max()))
    want, have = evaluate((before, after), exact, chunk, PrimeField(PRIME), sizes=sizes)
    assert np.array_equal(want, have), f"{show(before)} -> {show(after)}"


@pytest.mark.parametrize(("name", "before", "after"), EXAMPLES, ids=[f"{n}: {show(b)}" for n, b, _ in EXAMPLES])
def test_example(name: str, before: Node, after: Node) -> None:
    assert any(result is after for result in results(name, before))
    for result in results(name, before):
        for seed in range(8):
            assert_equal(before, result, seed)


def test_every_rule_has_an_example_and_a_pattern() -> None:
    assert {name for name, _, _ in EXAMPLES} == {rule.name for rule in RULES}
    assert all("->" in rule.pattern for rule in RULES)
    assert all(bool(rule.requires) == (rule.refuse is not None) for rule in RULES)


@pytest.mark.parametrize("name", NAMES)
def test_every_rewrite_of_the_forms_keeps_their_value(name: str) -> None:
    """Two rewrites deep around the textbook and the chosen form, every match, exactly; the second level is sampled."""
    op = spec(name)
    facts = Facts.of(op)
    generator = np.random.default_rng(0)
    applied = set()
    for form in (build_form(op), derivation(name).chosen):
        first = list(matches((form.output, form.state), facts))
        for match in first:
            applied.add(match.rule.name)
            assert_equal(match.before, match.after, int(generator.integers(1000)))
        for index in generator.integers(len(first), size=12):
            deeper = rewrite_form(form, first[index])
            for match in matches((deeper.output, deeper.state), facts):
                applied.add(match.rule.name)
                assert_equal(match.before, match.after, int(generator.integers(1000)))
    assert {"hoist scale", "push scale", "slide scale", "distribute"} <= applied


def test_a_scale_is_hoisted_from_all_products_of_an_operand() -> None:
    scaled = ir.multiply(SCALE, V)
    first, second = ir.matmul(X, scaled), ir.matmul(ir.transpose(scaled), K)
    ((one, two),) = hoist_everywhere((first, second))
    assert one == (first, ir.multiply(SCALE, ir.matmul(X, V)))
    assert two == (second, ir.multiply(SCALE, ir.matmul(ir.transpose(V), K)))
    for before, after in (one, two):
        assert_equal(before, after, 3)
    rows = ir.multiply(BETA, V)  # in the second product the rows are summed over
    assert list(hoist_everywhere((ir.matmul(rows, ir.transpose(S)), ir.matmul(ir.transpose(rows), K)))) == []
    assert list(hoist_everywhere((first,))) == []


def test_rules_do_not_fire_where_they_would_be_wrong() -> None:
    assert results("hoist scale", ir.matmul(ir.multiply(X, ROW), V)) == []  # a row of the left operand is inside
    assert results("slide scale", ir.matmul(ir.multiply(BETA, X), V)) == []
    assert results("push through", ir.multiply(INVERSE, ROW)) == []  # another scale than the one inside
    assert results("absorb to_end", ir.multiply(DECAY, FIRST, X)) == []
    assert results("absorb to_end", ir.multiply(X, ir.transpose(LAST))) == []  # not lower
    assert results("split decay", ir.multiply(DECAY, ir.matmul(LOWER, X))) == []
    square = ir.row_sum(ir.multiply(X, ir.matmul(Q, ir.transpose(K))))
    assert results("swap trace", square) == []  # X would be rounded
    assert results("swap trace", ir.row_sum(ir.multiply(Q, ir.matmul(X, K)))) == []
    assert results("hoist from sum", ir.row_sum(ir.multiply(ROW, X))) == []
    assert results("push into sum", ir.multiply(ROW, ir.row_sum(X))) == []
    assert results("factor left", ir.add(ir.matmul(X, V), ir.matmul(Y, V))) == []
    assert results("factor scale", ir.add(ir.multiply(BETA, V), ir.multiply(LAST, ir.matmul(K, S)))) == []


class TestRangePrerequisite:
    gated = ir.inverse(ir.multiply(BETA, ir.mask("strict"), DECAY, GRAM))

    @pytest.mark.parametrize(
        ("beta", "norm", "reason"),
        [
            ((0.0, 2.0), 1.0, None),
            ((0.0, 0.5), 2.0, None),
            ((0.0, 2.0), 1.5, "needs 0 <= beta |K|^2 <= 2; declared: beta in [0, 2], |K| <= 1.5"),
            ((0.0, 2.0), inf, "needs 0 <= beta |K|^2 <= 2; declared: beta in [0, 2], no norm of K"),
            ((-1.0, 1.0), 1.0, "needs 0 <= beta |K|^2 <= 2; declared: beta in [-1, 1], |K| <= 1"),
            ((0.0, inf), 1.0, "needs 0 <= beta |K|^2 <= 2; declared: beta in [0, inf), |K| <= 1"),
        ],
    )
    def test_declared_ranges_decide(self, beta: tuple[float, float], norm: float, reason: str | None) -> None:
        facts = Facts({"beta": beta}, {"K": norm})
        found = refusals((self.gated,), facts)
        assert [r.reason for r in found] == ([] if reason is None else [reason])
        assert len(results("ungate inverse", self.gated, facts)) == (reason is None)

    def test_other_arguments_are_refused(self) -> None:
        other = ir.inverse(ir.multiply(DECAY, STRICT))
        (refusal,) = refusals((other,), GRANTED)
        assert refusal.rule == "ungate inverse"
        assert refusal.reason == "no bound is known for (I + L)^-1 with L = stril(X)"

    def test_a_spec_without_norm_is_refused_and_says_so(self) -> None:
        derived = derivation("gated_delta_rule", (', norm = "<=1"', ""))
        assert [r.reason for r in derived.refusals] == [
            "needs 0 <= beta |K|^2 <= 2; declared: beta in [0, 2], no norm of K"
        ]
        assert derivation("gated_delta_rule").refusals == ()

    def test_the_bound_is_what_the_inverse_needs(self) -> None:
        """With 0 <= beta |k|^2 <= 2 entries of the ungated inverse stay at 2; a little outside they explode."""
        chunk, size = 64, 4
        key = np.zeros((chunk, size))
        key[:, 0] = 1.0
        inverse = ir.inverse(ir.multiply(BETA, ir.mask("strict"), GRAM))
        largest = [
            float(
                np.abs(
                    evaluate((inverse,), {"K": key * norm, "beta": np.full((chunk, 1), 2.0)}, chunk, Float64())[0]
                ).max()
            )
            for norm in (1.0, 1.3)
        ]
        assert largest[0] <= 2.0 + 1e-12
        assert largest[1] > 1e20
