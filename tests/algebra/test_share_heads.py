"""Sums over the value heads of a key head: rules that only hold for several heads, and what they save."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.cache import derive_backward_cached
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derive_backward import BackwardDerivation
from qlagen.algebra.facts import Facts
from qlagen.algebra.fields import Float64
from qlagen.algebra.heads import evaluate_heads, per_key_head
from qlagen.algebra.ir_adjoint import head_sum
from qlagen.algebra.rewrite_heads import sum_heads_first
from qlagen.algebra.share_heads import check_heads, share_heads, summed
from qlagen.errors import QlagenError
from qlagen.spec.load import load_spec

from .operators import FAMILY, NAMES, SPECS, spec

K = ir.input_node("K", ("C", "K"))
V = ir.input_node("V", ("C", "V"))
X = ir.input_node("X", ("C", "C"))
BETA = ir.input_node("beta", ("C", "1"))
KEYS = frozenset({"K", "Q", "scale"})
SMALL = 64 * 64 * 128


def stored(name: str) -> BackwardDerivation:
    return derive_backward_cached(load_spec(SPECS / f"{name}.toml"))


def test_what_belongs_to_the_key_head() -> None:
    assert per_key_head(ir.matmul(K, ir.transpose(K)), KEYS)
    assert not per_key_head(ir.multiply(BETA, K), KEYS)
    assert per_key_head(ir.matmul(head_sum(X), K), KEYS)


def test_values_of_several_heads() -> None:
    """Nested sums, counted by hand."""
    heads = [{"X": np.full((2, 2), 1.0 + h), "K": np.ones((2, 3))} for h in range(3)]
    sizes = {"1": 1, "C": 2, "K": 3}
    inner = head_sum(X)  # 1 + 2 + 3
    outer = head_sum(ir.multiply(inner, X))  # 6 * 6
    first, second, plain = (
        r[0] for r in zip(*evaluate_heads((inner, outer, X), heads, 2, Float64(), sizes), strict=True)
    )
    assert (first[0, 0], second[0, 0], plain[0, 0]) == (6.0, 36.0, 1.0)
    (product,) = evaluate_heads((ir.matmul(ir.transpose(inner), K),), heads, 2, Float64(), sizes)[2]
    assert product[0, 0] == 12.0


def test_a_product_with_a_value_head_is_not_moved() -> None:
    facts = Facts({}, {}, KEYS)
    assert list(sum_heads_first(head_sum(ir.matmul(X, V)), facts)) == []
    assert list(sum_heads_first(head_sum(ir.matmul(X, K)), facts)) == [ir.matmul(head_sum(X), K)]
    assert list(sum_heads_first(head_sum(ir.multiply(BETA, K)), facts)) == []  # it would lose the shape


def test_a_sum_costs_its_additions_and_serves_the_group() -> None:
    model = CostModel.of(spec("gated_delta_rule"), group=4)
    assert model.work(head_sum(X)).elementwise == 64 * 64 * 3 / 4
    assert model.work(ir.matmul(head_sum(X), K)).multiply_adds == SMALL / 4
    assert CostModel.of(spec("gated_delta_rule")).work(head_sum(X)).elementwise == 0


class TestShared:
    @pytest.mark.parametrize("group", [2, 4])
    def test_three_products_serve_the_group(self, group: int) -> None:
        """dO Vn^T K, its transpose with Q, and what the correction sends to K; besides K K^T and Q K^T."""
        alone, shared = stored("gated_delta_rule"), share_heads(stored("gated_delta_rule"), group)
        saved = alone.chosen_cost.multiply_adds - shared.derived.chosen_cost.multiply_adds
        assert saved == 5 * SMALL * (1 - 1 / group)
        assert shared.bound < 1e-12
        assert {"sum heads first", "distribute head sum"} <= {s.rule for s in shared.derived.steps}

    @pytest.mark.parametrize("name", [*NAMES, *FAMILY])
    def test_checked_with_two_heads(self, name: str) -> None:
        shared = share_heads(stored(name), 4)
        assert shared.bound < 1e-12
        assert shared.derived.chosen_cost.multiply_adds <= shared.derived.start_cost.multiply_adds

    def test_a_wrong_sum_is_found(self) -> None:
        """The sum of one operand with another head's factor: right for one head, wrong for two."""
        derived = stored("simple_gla")
        right = summed(derived.forward.spec, derived.chosen)
        (name, gradient), *rest = right.gradients
        inner = gradient.args[0]
        product = next(t for _, t in ir.terms_of(inner) if t.op == "matmul" and "S" in ir.depends_on(t))
        others = ir.linear([(c, head_sum(t)) for c, t in ir.terms_of(inner) if t is not product])
        wrong = ir.add(others, ir.matmul(head_sum(product.args[0]), product.args[1]))
        broken = dataclasses.replace(right, gradients=((name, wrong), *rest))
        check_heads(derived.forward.spec, derived.chosen, right, 8)
        with pytest.raises(QlagenError, match="sums over heads differ"):
            check_heads(derived.forward.spec, derived.chosen, broken, 8)
