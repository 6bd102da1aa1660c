"""A schedule file of the tests' own, and the candidates of its entries."""

from __future__ import annotations

from pathlib import Path

from qlagen.algebra.cache import derive_cached
from qlagen.package.compile import schedule_plan
from qlagen.program.plan import build_plan
from qlagen.schedule.options import parse_options
from qlagen.spec.load import load_spec
from qlagen.tune.candidates import find_entries
from qlagen.tune.check import Checker, Explored

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "specs" / "gated_delta_rule.toml"
TEXT = (Path(__file__).parent / "sm_90a.toml").read_text(encoding="utf-8")
"""A schedule file of the tests' own: that of specs/ changes with every search."""
FILE = "sm_90a.toml"


def explore(part: str, text: str = TEXT) -> list[Explored]:
    file = parse_options(text, FILE)
    plan = build_plan(derive_cached(load_spec(SPEC)))
    entries = find_entries(text, file, schedule_plan(plan, file.target, file), [part])
    return [Checker(SPEC, text, FILE, file.target).explore(entry, dict(plan.dims)) for entry in entries[:1]]
