"""The search reaches the forms the kernels are built from, by rules, the same on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qlagen.algebra.build import build_form
from qlagen.algebra.cost import CostModel
from qlagen.algebra.derive import Bounds, Candidate, search
from qlagen.algebra.explain import stage_lines
from qlagen.algebra.facts import Facts
from qlagen.algebra.ir import topological
from qlagen.algebra.rules import RULES
from qlagen.algebra.show import show_derivation

from .operators import NAMES, SPECS, derivation, spec

GOLDEN = Path(__file__).parent / "golden"
CHOSEN = {
    "gated_delta_rule": [
        "A  = inv_unit_lower(stril(beta * (K @ K^T) * decay(G)))",
        "Vn = A @ (beta * (V - from_start(G) * (K @ S)))",
        "O  = scale * (from_start(G) * (Q @ S) + ((Q @ K^T) * decay(G)) @ Vn)",
        "S1 = total(G) * S + K^T @ (to_end(G) * Vn)",
    ],
    "delta_rule": [
        "A  = inv_unit_lower(stril(beta * (K @ K^T)))",
        "Vn = A @ (beta * (V - K @ S))",
        "O  = scale * (Q @ S + tril(Q @ K^T) @ Vn)",
        "S1 = S + K^T @ Vn",
    ],
    "simple_gla": [
        "O  = scale * (from_start(G) * (Q @ S) + ((Q @ K^T) * decay(G)) @ V)",
        "S1 = total(G) * S + K^T @ (to_end(G) * V)",
    ],
}


@pytest.mark.parametrize("name", NAMES)
def test_chosen_form(name: str) -> None:
    assert stage_lines(derivation(name).chosen) == CHOSEN[name]


@pytest.mark.parametrize("name", NAMES)
def test_shown_derivation(name: str, golden: Callable[[Path, str], None]) -> None:
    golden(GOLDEN / f"{name}.txt", show_derivation(derivation(name)))


@pytest.mark.parametrize(("key", "value"), [(64, 64), (128, 64)])
@pytest.mark.parametrize("name", NAMES)
def test_other_sizes_choose_the_same_form(name: str, key: int, value: int) -> None:
    derived = derivation(name, ("K = 128", f"K = {key}"), ("V = 128", f"V = {value}"))
    assert stage_lines(derived.chosen) == CHOSEN[name]
    assert (derived.proof.key_dim, derived.proof.value_dim) == (key, value)


def test_wide_values_choose_another_form() -> None:
    """With V > K it pays to multiply by A on the key side, before the values come in: nothing is fixed in advance."""
    derived = derivation("delta_rule", ("K = 128", "K = 64"))
    lines = stage_lines(derived.chosen)
    assert lines[1] == "O  = scale * (Q @ S + (tril(Q @ K^T) @ A) @ (beta * (V - K @ S)))"
    assert derived.chosen_cost.multiply_adds < derived.textbook_cost.multiply_adds


@pytest.mark.parametrize("bounds", [Bounds(width=12, patience=3), Bounds(width=80)])
def test_width_of_the_beam_does_not_matter_here(bounds: Bounds) -> None:
    op = spec("gated_delta_rule")
    model, textbook = CostModel.of(op), build_form(op)
    found = search(Candidate(textbook, model.cost(textbook)), model, Facts.of(op), bounds)
    assert found.form.output is derivation("gated_delta_rule").chosen.output
    assert found.form.state is derivation("gated_delta_rule").chosen.state


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_parts_of_the_form(name: str) -> None:
    form = derivation(name).chosen
    below = topological((form.output, form.state))
    stages = dict(form.stages)
    assert all(node in below for node in stages.values())
    assert form.output is stages[spec(name).output]
    assert form.state is stages[spec(name).state_output]
    assert list(stages) == [s.name for s in spec(name).stages if s.name in stages]


@pytest.mark.parametrize("name", NAMES)
def test_log_is_of_named_rules_and_ends_at_the_chosen_bill(name: str) -> None:
    derived = derivation(name)
    assert derived.steps[0].rule == "fuse stages"
    assert {s.rule for s in derived.steps[1:]} <= {rule.name for rule in RULES}
    assert derived.steps[-1].cost == derived.chosen_cost


def test_an_edited_spec_gives_an_edited_form() -> None:
    """Without beta on the values (in the stages and in the recurrence), only the recall is scaled."""
    derived = derivation(
        "gated_delta_rule",
        ('"A @ (beta * V)"', '"A @ V"'),
        ('"beta * (v - decayed^T @ k)"', '"v - beta * (decayed^T @ k)"'),
    )
    assert stage_lines(derived.chosen)[1] == "Vn = A @ (V - beta * from_start(G) * (K @ S))"
    assert derived.chosen_cost.multiply_adds == derivation("gated_delta_rule").chosen_cost.multiply_adds


def test_the_way_a_spec_is_written_does_not_matter() -> None:
    """Operands in another order, and a scale that is hoisted already."""
    derived = derivation(
        "gated_delta_rule",
        ('"U - W @ S"', '"-(W @ S) + U"'),
        ("A @ (beta * V)", "A @ (V * beta)"),
        ("beta * from_start(G) * K", "from_start(G) * (K * beta)"),
        ("from_start(G) * Q @ S", "from_start(G) * (Q @ S)"),
    )
    assert stage_lines(derived.chosen) == CHOSEN["gated_delta_rule"]


def test_same_in_every_process() -> None:
    """Hash seeds and what was derived before change nothing."""
    code = (
        "import sys; from qlagen.spec import load_spec; from qlagen.algebra.derive import derive\n"
        "from qlagen.algebra.show import show_derivation\n"
        "texts = {p: show_derivation(derive(load_spec(p))) for p in sys.argv[1:]}\n"
        "print(*[texts[p] for p in sorted(texts)])"
    )
    paths = [str(SPECS / f"{name}.toml") for name in NAMES]
    outputs = set()
    for seed, order in (("1", paths), ("2", paths[::-1])):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(SPECS.parent)}
        run = subprocess.run(
            [sys.executable, "-c", code, *order], capture_output=True, text=True, check=True, env=environment
        )
        outputs.add(run.stdout)
    assert len(outputs) == 1
