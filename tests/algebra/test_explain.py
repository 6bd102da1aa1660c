"""The report on a derivation, for people and for tools."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from qlagen.algebra.derivation import Cost
from qlagen.algebra.explain import changes, explain, explain_json

from .operators import NAMES, derivation

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("name", NAMES)
def test_report_is_pinned(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.explain.txt", explain(derivation(name)))


def test_report_for_tools() -> None:
    report = json.loads(json.dumps(explain_json(derivation("gated_delta_rule"))))
    forward = report["forward"]
    assert report["spec"] == "gated_delta_rule"
    assert (forward["textbook_madds"], forward["madds"]) == (5_832_704, 5_308_416)
    assert (forward["exps"], forward["hbm_bytes"], forward["chain_gemms"]) == (4225, 97 * 1024, 3)
    assert forward["elementwise"] == derivation("gated_delta_rule").chosen_cost.elementwise
    assert all(set(step) == {"rule", "before", "after"} for step in forward["steps"])
    assert [s["rule"] for s in forward["steps"][:3]] == ["fuse stages", "associate", "factor left"]
    assert forward["steps"][1]["before"] == "W @ S"
    assert 0 < report["proof_bound"] < 1e-12


def test_refusals_are_reported() -> None:
    derived = derivation("gated_delta_rule", (', norm = "<=1"', ""))
    assert "Refused\n  ungate inverse: inv_unit_lower(" in explain(derived)
    assert "no norm of K" in explain_json(derived)["forward"]["refused"][0]["reason"]


def test_changes_are_in_words() -> None:
    before = Cost(2e6, 5000.0, 10.0, 4096.0, 2, 0.0)
    assert changes(before, before) == "same bill; opens the way"
    after = Cost(1e6, 6000.0, 10.0, 4096.0, 3, 0.0)
    assert changes(before, after) == (
        "saves 1.00 M multiply-adds; costs 1.0 k elementwise operations, 1 product on the serial chain"
    )
