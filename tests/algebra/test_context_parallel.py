"""Segment maps, their composition, the state-only form, and when a map may be skipped."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.build import build_form, build_recurrence
from qlagen.algebra.context_parallel import (
    ContextParallel,
    SkipRule,
    context_parallel,
    prove_states,
    skip_rule,
    split_rule,
    state_forms,
)
from qlagen.algebra.derivation import Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Float64
from qlagen.algebra.prove import prove
from qlagen.algebra.segment import SegmentMap, compose, full_map, segment_map
from qlagen.algebra.text import show
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

from .operators import FAMILY, NAMES, chunk_values, derivation, spec

SIZES = {"1": 1, "C": 6, "K": 4, "V": 3, "M": 2, "CM": 12}


@cache
def facts(name: str, *edits: tuple[str, str]) -> ContextParallel:
    found = context_parallel(derivation(name, *edits))
    assert found is not None
    return found


def token_rule(op: OpSpec) -> SkipRule:
    token = segment_map(build_recurrence(op, steps=1)[1], op.state)
    assert token is not None
    return skip_rule(op, token)


def values_of(found: SegmentMap, env: dict[str, Array]) -> tuple[Array, Array]:
    nodes = (found.diagonal, found.rest, found.write)
    diagonal, rest, write = evaluate(nodes, env, SIZES["C"], Float64(), sizes=SIZES)
    return full_map(diagonal, rest), write


class TestSegmentMap:
    @pytest.mark.parametrize("name", [*NAMES, *FAMILY])
    def test_of_a_chunk(self, name: str) -> None:
        for form in (build_form(spec(name)), derivation(name).chosen):
            found = segment_map(form.state, "S")
            assert found is not None
            assert "S" not in ir.depends_on(found.rest) | ir.depends_on(found.write) | ir.depends_on(found.diagonal)
            env = chunk_values(spec(name), SIZES)
            matrix, write = values_of(found, env)
            (want,) = evaluate((form.state,), env, SIZES["C"], Float64(), sizes=SIZES)
            np.testing.assert_allclose(matrix @ env["S"] + write, want, rtol=1e-12, atol=1e-12)

    @pytest.mark.parametrize("name", [*NAMES, *FAMILY])
    def test_composition_is_that_of_a_longer_sequence(self, name: str) -> None:
        form = build_form(spec(name))
        found = segment_map(form.state, "S")
        assert found is not None
        maps, state = [], chunk_values(spec(name), SIZES, 9)["S"]
        reached = state
        for seed in range(4):
            env = {**chunk_values(spec(name), SIZES, seed), "S": reached}
            maps.append(values_of(found, env))
            (reached,) = evaluate((form.state,), env, SIZES["C"], Float64(), sizes=SIZES)
        left = compose(compose(compose(maps[0], maps[1]), maps[2]), maps[3])
        tree = compose(compose(maps[0], maps[1]), compose(maps[2], maps[3]))
        for matrix, write in (left, tree):
            np.testing.assert_allclose(matrix @ state + write, reached, rtol=1e-12, atol=1e-12)

    def test_of_a_token(self) -> None:
        gated = segment_map(build_recurrence(spec("gated_delta_rule"))[1], "S")
        plain = segment_map(build_recurrence(spec("simple_gla"))[1], "S")
        assert gated is not None
        assert plain is not None
        assert (show(gated.diagonal), show(gated.rest)) == ("a", "-a * beta * k * k^T")
        assert plain.is_diagonal
        assert show(plain.write) == "k * v^T"

    def test_none_where_the_state_is_no_left_factor(self) -> None:
        state, values = ir.input_node("S", ("K", "V")), ir.input_node("x", ("V", "V"))
        assert segment_map(ir.matmul(state, values), "S") is None
        assert segment_map(ir.multiply(state, state), "S") is None
        assert segment_map(ir.multiply(state, ir.input_node("row", ("1", "V"))), "S") is None


class TestStateOnly:
    @pytest.mark.parametrize(("name", "chain"), [("gated_delta_rule", 2), ("delta_rule", 2), ("simple_gla", 0)])
    def test_the_chain(self, name: str, chain: int) -> None:
        assert facts(name).state_only.chain_gemms == chain

    @pytest.mark.parametrize("name", [*NAMES, *FAMILY])
    def test_proven(self, name: str) -> None:
        found = facts(name).state_only
        assert found.bound < 1e-12
        assert found.chain_gemms <= 2
        form = derivation(name).chosen
        assert prove(spec(name), Form(form.output, found.state, form.stages), chunk=8).bound < 1e-12

    def test_form_of_the_gated_delta_rule(self) -> None:
        found = facts("gated_delta_rule").state_only
        assert show(found.state) == (
            "total(G) * S + (K^T @ inv_unit_lower(stril(beta * (K @ K^T)))) "
            "@ (beta * (to_end(G) * V - K @ (total(G) * S)))"
        )
        assert found.multiply_adds == 2 * 64 * 64 * 128 + 2 * 64 * 128 * 128 + 64**3 / 4

    def test_without_the_norm_the_inverse_stays_gated(self) -> None:
        found = facts("gated_delta_rule", (', norm = "<=1"', "")).state_only
        assert "ungate inverse" not in found.rules
        assert found.chain_gemms == 2


class TestStateForms:
    def saved(self, name: str) -> tuple[ir.Node, ...]:
        found = [node for node in ir.topological((derivation(name).chosen.state,)) if node.op == "inverse"]
        return tuple(found)

    def test_with_the_inverse_at_hand_a_product_of_it_and_the_keys_leaves_the_chain(self) -> None:
        found = derivation("gated_delta_rule")
        form, *_ = state_forms(found, found.chosen.state, self.saved("gated_delta_rule"))
        assert form.chain_gemms == 2
        assert form.multiply_adds == 64 * 64 * 128 + 2 * 64 * 128 * 128
        assert show(form.state).startswith("total(G) * S + (K^T @ (")
        assert show(form.state).endswith("@ (V - from_start(G) * (K @ S))")

    @pytest.mark.parametrize("name", [*NAMES, *FAMILY])
    def test_they_make_the_next_state(self, name: str) -> None:
        chosen = derivation(name).chosen.state
        for form in state_forms(derivation(name), chosen, self.saved(name)):
            assert form.bound < 1e-11
            env = chunk_values(spec(name), SIZES)
            got, want = evaluate((form.state, chosen), env, SIZES["C"], Float64(), sizes=SIZES)
            np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)

    def test_a_wrong_form_is_refused(self) -> None:
        found = derivation("simple_gla")
        with pytest.raises(QlagenError, match="is not the next state") as caught:
            prove_states(found, (found.chosen.state, ir.linear(((2, found.chosen.state),))))
        assert caught.value.code == "E-PROOF"


class TestSkip:
    def test_rules(self) -> None:
        gated = token_rule(spec("gated_delta_rule"))
        assert (gated.bound, gated.condition, gated.granted) == ("log_gate_sum", "0 <= beta |k|^2 <= 2", True)
        assert token_rule(spec("simple_gla")) == SkipRule("log_gate_sum", "", granted=True, gate="a")
        assert token_rule(spec("delta_rule")).bound == "never"  # nothing decays
        expected = {
            "gla": "largest_channel_sum",  # M is diagonal
            "kda": "largest_log_gate_sum",
            "mamba2": "log_gate_sum",
            "gated_delta_product": "log_gate_sum",
            "comba": "never",
            "gdn2": "never",
            "rwkv7": "never",
        }
        assert {name: token_rule(spec(name)).bound for name in FAMILY} == expected
        assert {name: split_rule(derivation(name)) for name in FAMILY} == {n: token_rule(spec(n)) for n in FAMILY}
        steps = token_rule(spec("gated_delta_product"))
        assert (steps.condition, steps.granted) == ("0 <= beta |k|^2 <= 2", True)

    def test_channels_move(self) -> None:
        """With a gate per channel and reflections the largest sum of any channel bounds nothing: two channels that
        decay in turn, and reflections that exchange them, keep everything."""
        found = segment_map(build_form(spec("kda")).state, "S")
        assert found is not None
        sizes = {"1": 1, "C": 2, "K": 2, "V": 1}
        gates = np.array([[0.0, -3.0], [-3.0, 0.0]])
        env = {
            "Q": np.zeros((2, 2)),
            "K": np.array([[1.0, -1.0], [1.0, -1.0]]) / np.sqrt(2),
            "V": np.zeros((2, 1)),
            "G": np.cumsum(gates, axis=0),
            "beta": np.full((2, 1), 2.0),
        }
        diagonal, rest = evaluate((found.diagonal, found.rest), env, 2, Float64(), sizes=sizes)
        assert np.linalg.norm(full_map(diagonal, rest), 2) == pytest.approx(1.0)
        assert np.exp(gates.sum(axis=0).max()) < 0.05

    def test_threshold(self) -> None:
        assert token_rule(spec("gated_delta_rule")).threshold(4.5e-5) == pytest.approx(-10.0, abs=0.01)
        assert token_rule(spec("delta_rule")).threshold(0.5) == -np.inf

    def test_undeclared_norms_are_said(self) -> None:
        for edit in ((', norm = "<=1"', ""), ('range = "[0,2]"', 'range = "[0,3]"'), ('"[0,2]"', '"[-1,1]"')):
            rule = token_rule(spec("gated_delta_rule", edit))
            assert (rule.granted, rule.bound) == (False, "log_gate_sum")
            assert rule.growth == "log max(1, |1 - beta |k|^2|)"

    def test_another_vector_has_no_bound(self) -> None:
        """What is removed is read with q instead of k: no contraction, and no bound."""
        edited = spec("gated_delta_rule", ("(v - decayed^T @ k)", "(v - decayed^T @ q)"))
        assert token_rule(edited).bound == "never"
        twice = spec("gated_delta_rule", ("beta * (v - decayed^T @ k)", "beta * (v + decayed^T @ k)"))
        assert token_rule(twice).bound == "never"

    @pytest.mark.parametrize(("beta", "norm"), [(0.5, 1.0), (2.0, 1.0), (2.2, 1.0), (2.0, 1.1)])
    def test_the_bound_holds_and_needs_its_condition(self, beta: float, norm: float) -> None:
        op = spec("gated_delta_rule")
        found = segment_map(build_form(op).state, "S")
        assert found is not None
        generator = np.random.default_rng(0)
        maps, log_bound, growth = (np.eye(4), np.zeros((4, 3))), 0.0, 0.0
        for seed in range(20):
            env = chunk_values(op, SIZES, seed)
            keys = generator.normal(size=env["K"].shape)
            env["K"] = norm * keys / np.linalg.norm(keys, axis=1, keepdims=True)
            env["beta"] = np.full_like(env["beta"], beta)
            env["G"] = env["G"] / 8
            maps = compose(maps, values_of(found, env))
            log_bound += float(env["G"][-1, 0])
            growth += SIZES["C"] * np.log(max(1.0, abs(1 - beta * norm**2)))
        reached = float(np.log(np.linalg.norm(maps[0], 2)))
        assert reached <= log_bound + growth + 1e-9
        if beta * norm**2 > 2:
            assert reached > log_bound
