"""The derived backward pass against autograd of the token recurrence, and exactly in prime fields."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.adjoint import adjoints, contributions
from qlagen.algebra.backward import BackwardForm, build_backward, seed_name
from qlagen.algebra.build import build_form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, Float64
from qlagen.algebra.prove_backward import prove_backward
from qlagen.algebra.sequence import run_backward, run_forward
from qlagen.algebra.text import show
from qlagen.algebra.walk import substitute
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

from . import autograd
from .operators import FAMILY, NAMES, derivation, sequence_values, spec

SMALL = (("K = 128", "K = 6"), ("V = 128", "V = 5"))


def small(name: str) -> OpSpec:
    """A spec with K = 6 and V = 5."""
    sizes = dict(spec(name).dims)
    return spec(name, (f"K = {sizes['K']}", "K = 6"), (f"V = {sizes['V']}", "V = 5"))


def check_against_autograd(op: OpSpec, backward: BackwardForm, length: int, chunk: int) -> float:
    """The largest relative error of any gradient, with an initial state and a seed of the final state."""
    sizes = {"K": 6, "V": 5}
    sequence = sequence_values(op, length, sizes, chunk)
    generator = np.random.default_rng(1)
    output_seed, state_seed = generator.normal(size=(length, 5)), generator.normal(size=(6, 5))
    _, _, states = run_forward(op, build_form(op), sequence)
    have, have_state = run_backward(op, backward, sequence, states, output_seed, state_seed)
    want, want_state = autograd.gradients(op, sequence.tensors, sequence.state, output_seed, state_seed)
    assert set(have) == set(op.gradients) - {op.state}
    pairs = [(have[name], want[name]) for name in have] + [(have_state, want_state)]
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in pairs)


@pytest.mark.parametrize("length", [1, 5, 16, 37])
@pytest.mark.parametrize("name", FAMILY)
def test_the_family_against_autograd(name: str, length: int) -> None:
    op = spec(name)
    assert check_against_autograd(op, build_backward(op, build_form(op)), length, 8) < 1e-12


@pytest.mark.parametrize("name", FAMILY)
def test_the_family_is_proven_at_small_sizes(name: str) -> None:
    op = small(name)
    assert prove_backward(op, build_backward(op, build_form(op)), chunk=5).bound < 1e-12


@pytest.mark.parametrize("length", [1, 5, 16, 37])
@pytest.mark.parametrize("name", NAMES)
def test_against_autograd_of_the_recurrence(name: str, length: int) -> None:
    op = spec(name)
    for form in (build_form(op), derivation(name).chosen):
        for chunk in (4, 16):
            assert check_against_autograd(op, build_backward(op, form), length, chunk) < 1e-12


@pytest.mark.parametrize("name", NAMES)
def test_proven_at_small_sizes(name: str) -> None:
    op = spec(name, *SMALL)
    for form in (build_form(op), derivation(name, *SMALL).chosen):
        proof = prove_backward(op, build_backward(op, form), chunk=9)
        assert (proof.chunk, proof.key_dim, proof.value_dim) == (9, 6, 5)
        assert proof.bound < 1e-12


def test_proven_at_real_sizes() -> None:
    op = spec("gated_delta_rule")
    assert prove_backward(op, build_backward(op, derivation("gated_delta_rule").chosen)).bound < 1e-12


@pytest.mark.parametrize("name", ["q", "k", "v", "g", "beta", "S"])
def test_a_wrong_gradient_is_named(name: str) -> None:
    op = spec("gated_delta_rule", *SMALL)
    right = build_backward(op, build_form(op))
    doubled = tuple((n, ir.linear(((2, node),)) if n == name else node) for n, node in right.gradients)
    state = ir.negate(right.state) if name == "S" else right.state
    with pytest.raises(QlagenError, match=f"gradient of {name} is not the derivative"):
        prove_backward(op, dataclasses.replace(right, gradients=doubled, state=state), chunk=5)


def test_a_sign_in_the_adjoint_of_the_inverse_matters() -> None:
    """Exchange A^T dA A^T for its negative inside: k, g and beta are wrong, v and S are not."""
    op = spec("gated_delta_rule", *SMALL)
    backward = build_backward(op, build_form(op))
    inverse = dict(backward.stages)["A"]
    turned = ir.transpose(inverse)
    sandwich = next(
        n
        for n in ir.topological(backward.roots)
        if n.op == "matmul" and n.args[1] is turned and n.args[0].op == "matmul" and n.args[0].args[0] is turned
    )
    flipped = {sandwich: ir.negate(sandwich), ir.transpose(sandwich): ir.negate(ir.transpose(sandwich))}
    *gradients, state = substitute(backward.roots, flipped)
    names = [name for name, _ in backward.gradients]
    wrong = dataclasses.replace(backward, gradients=tuple(zip(names, gradients, strict=True)), state=state)
    with pytest.raises(QlagenError, match="gradient of k, g, beta is not"):
        prove_backward(op, wrong, chunk=5)


def test_shapes_and_names() -> None:
    op = spec("gated_delta_rule")
    backward = build_backward(op, build_form(op))
    assert [(n, g.shape) for n, g in backward.gradients] == [
        ("q", ("C", "K")),
        ("k", ("C", "K")),
        ("v", ("C", "V")),
        ("g", ("C", "1")),
        ("beta", ("C", "1")),
    ]
    assert backward.state.shape == ("K", "V")
    assert (show(backward.output_seed), show(backward.state_seed)) == ("dO", "dS1")
    assert [name for name, _ in backward.stages] == ["A", "W", "U", "Vn", "dA", "dW", "dU", "dVn"]
    assert dict(backward.gradients)["g"].op == "suffix_sum"
    names = {node: name for name, node in backward.stages}
    assert show(dict(backward.gradients)["v"], names) == "beta * (A^T @ dVn)"


def test_seed_names_are_free() -> None:
    op = spec("simple_gla", ("O  =", 'dS1  = "2 * V"\nO  ='), ("decay(G) @ V", "decay(G) @ (dS1 - V)"))
    assert seed_name(op, "S1") == "dS1_"
    assert prove_backward(op, build_backward(op, build_form(op)), chunk=4).bound < 1e-12


def test_unused_gradients_are_not_made() -> None:
    op = spec("simple_gla", ('wrt = ["q", "k", "v", "g", "S"]', 'wrt = ["v"]'))
    backward = build_backward(op, build_form(op))
    assert [name for name, _ in backward.gradients] == ["v"]
    assert prove_backward(op, backward, chunk=4).bound < 1e-12


G = ir.input_node("G", ("C", "1"))
X = ir.input_node("X", ("C", "C"))
ROW = ir.input_node("row", ("1", "C"))
COLUMN = ir.input_node("column", ("C", "1"))
NUMBER = ir.input_node("number", ("1", "1"))
STRICT = ir.multiply(ir.mask("strict"), X)
EXPRESSIONS = (
    ir.transpose(ir.matmul(X, ir.inverse(STRICT))),
    ir.matmul(ir.inverse(STRICT), ir.inverse(ir.multiply(COLUMN, STRICT))),
    ir.multiply(COLUMN, ROW, NUMBER),
    ir.multiply(X, X, COLUMN),
    ir.linear(((3, ir.matmul(X, X)), (-2, ir.multiply(ROW, COLUMN)))),
    ir.add(X, ROW),
    ir.multiply(ir.row_sum(X), X),
    ir.multiply(ir.column_sum(ir.row_sum(X)), ROW),
    ir.multiply(ir.from_start(G), X),
    ir.multiply(ir.to_end(G), X),
    ir.multiply(ir.total(G), X),
    ir.multiply(ir.decay(G), X),
    ir.multiply(ir.decay(G), ir.from_start(G), ir.transpose(ir.to_end(G)), ir.inverse(STRICT)),
)


@pytest.mark.parametrize("root", EXPRESSIONS, ids=show)
def test_adjoints_of_every_operation(root: ir.Node) -> None:
    """Against central differences: error O(h^2)."""
    generator = np.random.default_rng(2)
    inputs = {n.value: n for n in (G, X, ROW, COLUMN, NUMBER)}
    values = {n: generator.normal(size=[5 if d == "C" else 1 for d in node.shape]) for n, node in inputs.items()}
    values["G"] = np.cumsum(-np.abs(values["G"]), axis=0)
    seed = ir.input_node("seed", root.shape)
    values["seed"] = generator.normal(size=[5 if d == "C" else 1 for d in root.shape])
    known = adjoints(((root, seed),))

    def loss(env: dict[str, Array]) -> float:
        return float((evaluate((root,), env, 5, Float64())[0] * values["seed"]).sum())

    step = 1e-5
    for name, node in inputs.items():
        direction = generator.normal(size=values[name].shape)
        ahead, behind = ({**values, name: values[name] + s * direction} for s in (step, -step))
        slope = (loss(ahead) - loss(behind)) / (2 * step)
        have = 0.0
        if node in known:
            have = float((evaluate((known[node],), values, 5, Float64(), sizes={"C": 5})[0] * direction).sum())
        assert abs(have - slope) < 1e-7 * max(1.0, abs(slope))


def test_every_operation_has_an_adjoint_but_those_of_backward_passes() -> None:
    missing = []
    for op in get_args(ir.Op):
        try:
            list(contributions(ir.Node(op, (), ("C", "C")), X))
        except (ValueError, IndexError) as fault:
            missing += [op] if "has no derivative" in str(fault) else []
    assert missing == [
        "row_minus_column",
        "suffix_sum",
        "following",
        "step_sum",
        "at_last",
        "head_sum",
        "gapply",
        "gapply_transposed",
    ]
