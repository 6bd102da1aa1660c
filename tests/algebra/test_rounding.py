"""Rounding errors of the chosen forms, in emulated bfloat16, beside those of the textbook's."""

from __future__ import annotations

import dataclasses

import pytest

from qlagen.algebra.cache import derive_backward_cached
from qlagen.algebra.fields import Float64
from qlagen.algebra.rounding import GATE_SCALES, rounding_table
from qlagen.spec.load import load_spec
from qlagen.spec.model import Input

from .operators import FAMILY, NAMES, SPECS


def _width(tensor: Input) -> int:
    """Gates of a log gate per token; many leave little noise in the error of its gradient, and are slow."""
    return len(tensor.dims) + 1 if tensor.role == "log_gate" else 0


@pytest.mark.parametrize("name", [*NAMES, *FAMILY])
def test_no_chosen_form_is_less_accurate(name: str) -> None:
    """By more than a tenth, for any output and any strength of the gates."""
    derived = derive_backward_cached(load_spec(SPECS / f"{name}.toml"))
    rows = rounding_table(derived, seeds=2 if max(map(_width, derived.forward.spec.inputs)) > 1 else 6)
    outputs = {row.output for row in rows}
    op = derived.forward.spec
    assert outputs == {op.output, op.state_output, f"d{op.state}", *(f"d{g}" for g in op.gradients)}
    assert {row.gate_scale for row in rows} <= set(GATE_SCALES)
    for row in rows:
        assert 2e-4 < row.textbook < 1e-2, row
        assert row.chosen <= 1.1 * row.textbook, row


def test_most_gradients_are_more_accurate() -> None:
    derived = derive_backward_cached(load_spec(SPECS / "gated_delta_rule.toml"))
    ratios = {r.output: r.chosen / r.textbook for r in rounding_table(derived) if r.gate_scale == 1.0}
    assert all(ratios[name] < 0.95 for name in ("dq", "dk", "dv", "dg", "dS"))


def test_a_form_that_rounds_more_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Exchange the two forms: then the chosen one must look worse."""
    derived = derive_backward_cached(load_spec(SPECS / "simple_gla.toml"))
    swapped = dataclasses.replace(derived, textbook=derived.chosen, chosen=derived.textbook)
    assert any(row.chosen > 1.1 * row.textbook for row in rounding_table(swapped, seeds=1))


def test_without_rounding_there_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qlagen.algebra.rounding.ROUNDED", Float64())
    derived = derive_backward_cached(load_spec(SPECS / "gated_delta_rule.toml"))
    assert all(row.chosen < 1e-12 for row in rounding_table(derived, seeds=1))
