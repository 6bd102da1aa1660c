"""The emulated chunk form equals the oracle without roundings, and its budgets tell sound kernels from broken ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from qlagen.algebra.build import build_form
from qlagen.spec.load import load_spec, parse_spec
from qlagen.verify import emulate as emulation
from qlagen.verify.budget import CEILING, SINGLE_FLOOR
from qlagen.verify.cases import QUICK, Case, cases_for, make_inputs
from qlagen.verify.compare import output_errors, state_errors
from qlagen.verify.emulate import Rounding, emulate
from qlagen.verify.problem import make_problem, make_problems, recurrence_of
from qlagen.verify.reference import run
from qlagen.verify.rounding import StorageType, round_to

SPECS = Path(__file__).parents[2] / "specs"
NAMES = ("gated_delta_rule", "delta_rule", "simple_gla")
LOADED = {name: load_spec(SPECS / f"{name}.toml") for name in NAMES}
FORMS = {name: build_form(spec) for name, spec in LOADED.items()}
QUICK_BY_NAME = {case.name: case for case in QUICK}


def small(name: str) -> str:
    """The spec's text with K and V of different, small sizes."""
    text = (SPECS / f"{name}.toml").read_text(encoding="utf-8")
    return text.replace("K = 128", "K = 24").replace("V = 128", "V = 16")


@pytest.mark.parametrize("name", NAMES)
def test_without_roundings_it_is_the_recurrence(name: str) -> None:
    spec = parse_spec(small(name), f"{name}.toml")
    form = build_form(spec)
    for case in cases_for(spec, QUICK):
        if case.keys == "similar" and case.factor == "high":
            continue  # grows by 1e4, and so do the roundings of float64
        inputs = make_inputs(spec, case)
        output, state = run(recurrence_of(spec), inputs.arrays, inputs.cu_seqlens, inputs.initial_state)
        got, carried = emulate(spec, form, inputs, Rounding(None))
        np.testing.assert_allclose(got, output, rtol=1e-9, atol=1e-12, equal_nan=True, err_msg=case.name)
        np.testing.assert_allclose(carried, state, rtol=1e-9, atol=1e-12, equal_nan=True, err_msg=case.name)


def test_budgets_are_as_tight_as_the_storage_type() -> None:
    spec, form = LOADED["gated_delta_rule"], FORMS["gated_delta_rule"]
    for name, low, high in (("T=200", 4e-3, 9e-3), ("fp16", 5e-4, 1.2e-3), ("gate zero", 7e-3, 1.3e-2)):
        problem = make_problem(spec, form, QUICK_BY_NAME[name])
        assert np.all((problem.output_budget > low) & (problem.output_budget < high)), name
        assert np.all((problem.state_budget > low / 2) & (problem.state_budget < high * 1.2)), name
    no_update = make_problem(spec, form, QUICK_BY_NAME["factor low"])
    assert np.all(no_update.state_budget == SINGLE_FLOOR)
    for case in cases_for(spec, QUICK):
        assert make_problem(spec, form, case).output_budget.max(initial=0) < CEILING, case.name


def ratios(name: str, case: Case, change: Callable[[pytest.MonkeyPatch], None], draw: int = 9) -> tuple[float, float]:
    """Largest error over budget, of o and of the state, of an emulation with something changed."""
    spec, form = LOADED[name], FORMS[name]
    problem = make_problem(spec, form, case)
    with pytest.MonkeyPatch.context() as patch:
        change(patch)
        got, state = emulate(spec, form, problem.inputs, Rounding(case.dtype, draw))
    of_output = output_errors(got, problem.output, problem.spans, case.dtype) / problem.output_budget
    return float(of_output.max()), float((state_errors(state, problem.state) / problem.state_budget).max())


def nothing(patch: pytest.MonkeyPatch) -> None:
    del patch


@pytest.mark.parametrize("name", NAMES)
def test_other_draws_stay_within_budget(name: str) -> None:
    for case in cases_for(LOADED[name], QUICK):
        if sum(case.lengths):
            worst = ratios(name, case, nothing)
            assert max(worst) <= 1, (case.name, worst)


def round_gates(patch: pytest.MonkeyPatch) -> None:
    """The cumulative gate in bf16: what happens when it is stored in the type of the gate."""
    patch.setattr(Rounding, "single", lambda self, values: round_to(values, "bfloat16"))


def by_products(rounds: int, storage: StorageType) -> Callable[[pytest.MonkeyPatch], None]:
    """(I + L)^-1 as (I - L)(I + L^2)(I + L^4)...: its powers overflow fp16, and too few of them do not suffice."""

    def inverse(self: Rounding, lower: emulation.Array) -> emulation.Array:
        identity = np.eye(lower.shape[-1])
        product, power = identity - lower, lower
        for _ in range(rounds):
            power = round_to(power @ power, storage)
            product = round_to(product @ (identity + power), storage)
        return product

    return lambda patch: patch.setattr(Rounding, "inverse", inverse)


def forget_the_tail_mask(patch: pytest.MonkeyPatch) -> None:
    """Rows past a sequence's end take part in the chunk."""
    cut = emulation._cut

    def unmasked(call, rows, heads, rounding):
        values = cut(call, rows, heads, rounding)
        past = (rows < 0)[:, None, :, None]
        return values | {name: np.where(past, 0.5, values[name]) for name in ("K", "V", "beta")}

    patch.setattr(emulation, "_cut", unmasked)


@pytest.mark.parametrize(
    ("change", "case"),
    [
        (round_gates, "fp16"),
        (round_gates, "gate model"),
        (by_products(5, "float16"), "keys identical, factor one, gate zero"),
        (by_products(5, "bfloat16"), "keys similar"),
        (by_products(2, "float32"), "keys period, factor one, gate zero"),
        (forget_the_tail_mask, "T=65"),
        (forget_the_tail_mask, "packed, one empty"),
    ],
)
def test_faults_of_precision_and_masking_exceed_the_budget(
    change: Callable[[pytest.MonkeyPatch], None], case: str
) -> None:
    assert max(ratios("gated_delta_rule", QUICK_BY_NAME[case], change)) > 1


def test_heads_with_different_gates_keep_their_own_budgets() -> None:
    spec, form = LOADED["gated_delta_rule"], FORMS["gated_delta_rule"]
    assert len(set(make_problem(spec, form, QUICK_BY_NAME["T=200"]).output_budget[0])) == 1
    assert len(set(make_problem(spec, form, QUICK_BY_NAME["gate mixed"]).output_budget[0])) == 4


def test_processes_do_not_change_the_problems() -> None:
    spec, form = LOADED["simple_gla"], FORMS["simple_gla"]
    cases = [QUICK_BY_NAME[name] for name in ("T=65", "gate mixed", "padded tail")]
    for one, two in zip(make_problems(spec, form, cases), make_problems(spec, form, cases, processes=2), strict=True):
        assert one.case is two.case
        np.testing.assert_array_equal(one.output, two.output)
        np.testing.assert_array_equal(one.output_budget, two.output_budget)
