"""The verifier passes the oracle itself and finds every way in which an operator can be wrong."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qlagen.algebra.build import build_form
from qlagen.algebra.derive import derive
from qlagen.spec.load import parse_spec
from qlagen.verify.cases import PORTABLE, QUICK, Case, cases_for, make_inputs
from qlagen.verify.compare import Place, output_errors, relative_errors, state_errors, worst_chunk
from qlagen.verify.emulate import Rounding, emulate
from qlagen.verify.library import torch_arguments, verify_library, verify_problem
from qlagen.verify.problem import make_problem, make_problems, problem_of, recurrence_of
from qlagen.verify.reference import run
from qlagen.verify.report import Row, as_json, as_table, exit_status, judge
from tests.algebra.operators import FAMILY
from tests.program.forms import written

from .operators import oracle_operator

SPECS = Path(__file__).parents[2] / "specs"


def load(name: str):
    text = (SPECS / f"{name}.toml").read_text(encoding="utf-8")
    text = re.sub(r"^K = \d+", "K = 24", re.sub(r"^V = \d+", "V = 16", text, flags=re.MULTILINE), flags=re.MULTILINE)
    return parse_spec(text, f"{name}.toml")


SPEC = load("gated_delta_rule")
FORM = build_form(SPEC)
RAGGED = Case("ragged", (70, 0, 3, 130), packed=True, padding=5)
PROBLEM = make_problem(SPEC, FORM, RAGGED)


@pytest.mark.parametrize("name", ["gated_delta_rule", "delta_rule", "simple_gla"])
def test_the_oracle_passes_every_case(name: str) -> None:
    spec = load(name)
    cases = cases_for(spec, PORTABLE)
    rows = verify_library(oracle_operator(spec), spec, derive(spec), cases, "oracle")
    assert [row for row in rows if not row.ok] == []
    assert [(row.case, row.output) for row in rows] == [(c.name, o) for c in cases for o in ("o", "final_state")]
    assert exit_status(rows) == 0


@pytest.mark.parametrize("name", FAMILY)
def test_the_oracle_passes_the_family(name: str) -> None:
    """Gates per channel, gates before the decay, several steps per token: the emulation knows them too."""
    spec = load(name)
    cases = cases_for(spec, QUICK)
    assert {"gate strong", "gate reset", "fp16", "one sequence NaN", "state V first"} <= {case.name for case in cases}
    rows = verify_library(oracle_operator(spec), spec, written(spec), cases, "oracle")
    assert [row for row in rows if not row.ok] == []


@pytest.mark.parametrize("name", FAMILY)
def test_the_emulation_without_rounding_is_the_oracle(name: str) -> None:
    spec = load(name)
    for gate in ("soft", "strong", "reset", "mixed"):
        case = Case(f"gate {gate}", (70, 0, 37, 130), packed=True, padding=3, dtype="float32", gate=gate)
        inputs = make_inputs(spec, case)
        wanted = run(recurrence_of(spec), inputs.arrays, inputs.cu_seqlens, inputs.initial_state)
        for got, exact in zip(emulate(spec, build_form(spec), inputs, Rounding(None)), wanted, strict=True):
            assert np.abs(got - exact)[~np.isnan(exact)].max() <= 1e-12 * np.nanmax(np.abs(exact))


@pytest.mark.parametrize("name", ["gated_delta_rule", "delta_rule", "simple_gla"])
def test_another_form_stays_within_the_budgets_of_the_chosen_one(name: str) -> None:
    spec = load(name)
    derivation = derive(spec)
    for problem in make_problems(spec, derivation.chosen, cases_for(spec, QUICK)):
        textbook = emulate(spec, derivation.textbook, problem.inputs, Rounding(problem.case.dtype))
        assert [row for row in judge(problem, "textbook", *textbook) if not row.ok] == []


def spoil_one_head(o: torch.Tensor, final: torch.Tensor) -> None:
    o[0, 70:73, 3] *= 1.02


def spoil_late_chunk(o: torch.Tensor, final: torch.Tensor) -> None:
    o[0, 73 + 128 :, 1] = 0


def spoil_padding(o: torch.Tensor, final: torch.Tensor) -> None:
    o[0, -1, 2, 0] = 1e-30


def leave_poison(o: torch.Tensor, final: torch.Tensor) -> None:
    o[0, 40, 2, 7] = float("nan")


def spoil_empty_sequence(o: torch.Tensor, final: torch.Tensor) -> None:
    final[1] = 0


def swap_heads(o: torch.Tensor, final: torch.Tensor) -> None:
    final[:, [0, 1]] = final[:, [1, 0]]


@pytest.mark.parametrize(
    ("change", "output", "place"),
    [
        (spoil_one_head, "o", Place(2, 3, 0)),
        (spoil_late_chunk, "o", Place(3, 1, 2)),
        (spoil_padding, "o", Place(None, 2)),
        (leave_poison, "o", Place(0, 2, 0)),
        (spoil_empty_sequence, "final_state", Place(1, 0)),
        (swap_heads, "final_state", None),
    ],
)
def test_a_wrong_output_is_found_and_placed(change, output: str, place: Place | None) -> None:
    rows = verify_problem(oracle_operator(SPEC, change), PROBLEM, "broken")
    failed = [row for row in rows if not row.ok]
    assert [row.output for row in failed] == [output]
    got = failed[0].place
    assert got is not None
    if place is not None:
        assert (got.sequence, got.chunk) == (place.sequence, place.chunk)
        assert got.head == place.head or change is spoil_empty_sequence
    assert exit_status(rows) == 1


def test_a_spoiled_sequence_must_not_spoil_others() -> None:
    case = Case("spoiled", (20, 70, 64), packed=True, spoiled=1)
    problem = make_problem(SPEC, FORM, case)
    assert np.isnan(problem.output[0, 20:90]).all()
    assert all(row.ok for row in verify_problem(oracle_operator(SPEC), problem, "sound"))

    def spread(o: torch.Tensor, final: torch.Tensor) -> None:
        o[0, 90] += 0 * o[0, 89]

    rows = verify_problem(oracle_operator(SPEC, spread), problem, "spreads")
    assert [row.ok for row in rows] == [False, True]
    assert rows[0].place == Place(2, 0, 0)


def test_inputs_whose_recurrence_overflows_are_refused() -> None:
    inputs = make_inputs(SPEC, RAGGED)
    inputs.arrays["v"][0, 100, 1, 0] = np.inf
    with pytest.raises(ValueError, match=r"'ragged': the recurrence itself is not finite in sequence 3"):
        problem_of(SPEC, FORM, RAGGED, inputs)


def test_a_state_in_the_wrong_layout_is_found() -> None:
    square = parse_spec((SPECS / "gated_delta_rule.toml").read_text(encoding="utf-8"), "gated_delta_rule.toml")
    problem = make_problem(square, build_form(square), Case("v first", (5,), state_v_first=True, initial_state=False))
    sound = oracle_operator(square)
    assert all(row.ok for row in verify_problem(sound, problem, "sound"))
    ignores = lambda **given: sound(**{**given, "state_v_first": False})  # noqa: E731
    assert [row.ok for row in verify_problem(ignores, problem, "ignores the layout")] == [True, False]


def test_what_the_operator_raises_or_forgets_is_a_failed_row() -> None:
    def raises(**given: object) -> None:
        raise RuntimeError("no such kernel\nsecond line")

    (row,) = verify_problem(raises, PROBLEM, "broken")
    assert not row.ok
    assert row.note == "RuntimeError: no such kernel"
    sound = oracle_operator(SPEC)
    rows = verify_problem(lambda **given: (sound(**given)[0], None), PROBLEM, "broken")
    assert [row.note for row in rows] == ["asked for and not returned"]
    rows = verify_problem(lambda **given: (sound(**given)[0].float(), sound(**given)[1]), PROBLEM, "broken")
    assert not rows[0].ok
    assert rows[0].note == "type torch.float32, not torch.bfloat16"
    rows = verify_problem(lambda **given: (sound(**given)[0][:, :, :2], sound(**given)[1]), PROBLEM, "broken")
    assert not rows[0].ok
    assert rows[0].note == "shape (1, 208, 2, 16), not (1, 208, 4, 16)"


def test_output_buffers_are_poisoned() -> None:
    sound = oracle_operator(SPEC)
    seen = []

    def in_place(*, out: torch.Tensor, final_state_out: torch.Tensor, **given: object):
        seen.append(bool(out.isnan().all() and final_state_out.isnan().all()))
        o, final = sound(**given)
        out[:, :203], final_state_out[:, :3] = o[:, :203], final[:, :3]
        return out, final_state_out

    rows = verify_problem(in_place, PROBLEM, "leaves rows unwritten")
    assert seen == [True]
    assert [row.ok for row in rows] == [False, False]
    assert rows[0].place == Place(None, 0)
    assert math.isinf(rows[1].error)


def test_segments_are_asked_for_where_the_operator_takes_them() -> None:
    sound = oracle_operator(SPEC)
    seen = []

    def cutting(*, auto_cp: bool | int = True, **given: object):
        seen.append(auto_cp)
        return sound(**given)

    cut = replace(PROBLEM, case=replace(PROBLEM.case, segments=3))
    for problem in (PROBLEM, cut):
        assert all(row.ok for row in verify_problem(cutting, problem, "takes it"))
        assert all(row.ok for row in verify_problem(lambda **given: sound(**given), problem, "does not"))
    assert seen == [True, 3]


def test_arguments_have_the_types_that_the_case_asks_for() -> None:
    case = Case("x", (3, 4), packed=True, padding=2, dtype="float16", number_dtype="bfloat16", index_dtype="int64")
    given = torch_arguments(make_problem(SPEC, FORM, case))
    assert list(given)[:6] == ["q", "k", "v", "g", "beta", "scale"]
    assert (given["q"].dtype, given["g"].dtype) == (torch.float16, torch.bfloat16)
    assert given["initial_state"].dtype == torch.bfloat16
    assert given["cu_seqlens"].dtype == torch.int64
    assert given["cu_seqlens"].tolist() == [0, 3, 7]
    assert given["scale"] is None
    assert given["v"].shape == (1, 9, 4, 16)
    assert given["v"][:, 7:].isnan().all()


def test_torch_is_imported_only_when_an_operator_runs() -> None:
    program = "import sys, qlagen.verify.library, qlagen.verify.report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], cwd=SPECS.parent, check=False).returncode == 0


def test_errors_are_relative_to_each_head() -> None:
    expected = np.array([[3.0, 4.0], [0.0, 0.0], [300.0, 400.0], [0.0, 0.0]])
    got = expected + np.array([[0.5, 0.0], [0.0, 0.0], [0.0, 5.0], [1e-3, 0.0]])
    errors = relative_errors(got, expected, "bfloat16")
    np.testing.assert_allclose(errors[:3], [0.1, 0, 0.01])
    assert errors[3] > 1e30
    tiny = relative_errors(np.array([[0.0]]), np.array([[1e-8]]), "float16")
    assert tiny[0] < 1e-3
    assert np.isinf(relative_errors(np.array([[np.nan]]), np.array([[1.0]]), "float32"))[0]


def test_errors_by_sequence_and_the_worst_chunk() -> None:
    expected = np.ones((1, 10, 2, 3))
    got = expected.copy()
    got[0, 7, 1] = 1.5
    spans = [(0, 4), (4, 4), (4, 9)]
    np.testing.assert_allclose(
        output_errors(got, expected, spans, "bfloat16"), [[0, 0], [0, 0], [0, np.sqrt(0.75 / 15)]]
    )
    assert worst_chunk(got, expected, (4, 9), 1, 2) == 1
    assert worst_chunk(got, expected, (4, 4), 1, 2) is None
    got[0, 8, 1, 0] = np.nan
    assert worst_chunk(got, expected, (4, 9), 1, 2) == 2
    states = np.ones((2, 2, 3, 3))
    wrong = states.copy()
    wrong[1, 0] = 2
    np.testing.assert_allclose(state_errors(wrong, states), [[0, 0], [1, 0]])


ROWS = [
    Row("s", "T=1", "portable", "o", 1e-3, 4e-3, True, Place(0, 3, 2)),
    Row("s", "T=1", "portable", "final_state", math.inf, 4e-3, False, Place(1, 0)),
    Row("s", "T=2", "portable", "o", math.inf, 0.0, False, Place(None, 1), "must be zero"),
]


def test_table() -> None:
    assert as_table(ROWS) == "\n".join(
        [
            "spec  case  implementation  output       error     budget            worst",
            "s     T=1   portable        o            1.00e-03  4.00e-03  ok      sequence 0, head 3, chunk 2",
            "s     T=1   portable        final_state  inf       4.00e-03  FAILED  sequence 1, head 0",
            "s     T=2   portable        o            inf       0.00e+00  FAILED  past the end, head 1, must be zero",
            "1 within budget, 2 not",
        ]
    )


def test_json_and_exit_status() -> None:
    first, second, third = json.loads(as_json(ROWS))
    keys = ["spec", "case", "implementation", "output", "error", "budget", "ok"]
    assert {key: first[key] for key in keys} == {
        "spec": "s",
        "case": "T=1",
        "implementation": "portable",
        "output": "o",
        "error": 1e-3,
        "budget": 4e-3,
        "ok": True,
    }
    assert (first["sequence"], first["head"], first["chunk"]) == (0, 3, 2)
    assert second["error"] is None
    assert third["note"] == "must be zero"
    assert exit_status(ROWS) == 1
    assert exit_status(ROWS[:1]) == 0
    assert exit_status([]) == 1
