"""Spec expressions become the expressions they say, and shown text reads back as the same expression."""

from __future__ import annotations

import numpy as np
import pytest

from qlagen.algebra import ir
from qlagen.algebra.build import FUNCTIONS, build_form, build_recurrence
from qlagen.algebra.explain import stage_lines
from qlagen.algebra.text import show
from qlagen.spec.functions import FUNCTIONS as LANGUAGE

from .operators import NAMES, spec


def test_every_function_of_the_language_is_built() -> None:
    assert set(FUNCTIONS) == set(LANGUAGE)


def test_stages_of_the_gated_delta_rule() -> None:
    assert stage_lines(build_form(spec("gated_delta_rule"))) == [
        "A  = inv_unit_lower(stril(beta * (K @ K^T) * decay(G)))",
        "W  = A @ (beta * from_start(G) * K)",
        "U  = A @ (beta * V)",
        "Vn = U - W @ S",
        "O  = scale * ((from_start(G) * Q) @ S + ((Q @ K^T) * decay(G)) @ Vn)",
        "S1 = total(G) * S + K^T @ (to_end(G) * Vn)",
    ]


def test_recurrence_of_the_gated_delta_rule() -> None:
    output, state = build_recurrence(spec("gated_delta_rule"))
    assert (output.shape, state.shape) == (("V", "1"), ("K", "V"))
    assert show(state) == "a * S + beta * k * (v^T - k^T @ (a * S))"


@pytest.mark.parametrize("name", NAMES)
def test_shown_stages_read_back(name: str) -> None:
    """Replace every stage by what `show` makes of it, all in inputs alone: the spec builds the same form."""
    op = spec(name)
    form = build_form(op)
    edits = tuple((f'"{op.stage(stage).text}"', f'"{show(node)}"') for stage, node in form.stages)
    again = build_form(spec(name, *edits))
    assert again.stages == form.stages


def test_integers_and_broadcasts() -> None:
    edited = spec(
        "simple_gla", ('"total(G) * S + K^T @ (to_end(G) * V)"', '"2 * S - S + K^T @ (V - 3 * (V * to_end(G)))"')
    )
    state = dict(build_form(edited).stages)["S1"]
    values = ir.input_node("V", ("C", "V"))
    gate = ir.input_node("G", ("C", "1"))
    inner = ir.linear(((1, values), (-3, ir.multiply(ir.to_end(gate), values))))
    assert state is ir.add(
        ir.input_node("S", ("K", "V")), ir.matmul(ir.transpose(ir.input_node("K", ("C", "K"))), inner)
    )


def test_a_number_added_to_a_matrix_stretches() -> None:
    edited = spec("simple_gla", ('(to_end(G) * V)"', '(to_end(G) + V)"'))
    state = dict(build_form(edited).stages)["S1"]
    assert any(n.op == "ones" and n.shape == ("1", "V") for n in ir.topological((state,)))
    assert np.all([n.shape == state.shape for _, n in ir.terms_of(state)])
