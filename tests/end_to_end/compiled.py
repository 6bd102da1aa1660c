"""A spec's text through all stages, its kernels in the CPU emulator, judged against the oracle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from qlagen.algebra.derivation import Derivation
from qlagen.package.compile import CompiledOperator, compile_operator
from qlagen.schedule.options import load_options
from qlagen.spec import parse_spec
from qlagen.verify.cases import SETS, cases_for
from qlagen.verify.emulator import Mode
from qlagen.verify.problem import make_problems
from qlagen.verify.report import Row
from qlagen.verify.simulate_cases import Variant, simulate_variant

ROOT = Path(__file__).parents[2]
TARGET = "sm_90a"


def spec_text(operator: str) -> str:
    return (ROOT / "specs" / f"{operator}.toml").read_text("utf-8")


def edited(text: str, changes: Sequence[tuple[str, str]]) -> str:
    """The text with every change made; each must apply exactly once."""
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def compiled(text: str) -> CompiledOperator:
    schedules = load_options(ROOT / "specs" / "schedules" / f"{TARGET}.toml")
    return compile_operator(parse_spec(text, "edited.toml"), TARGET, schedules)


def simulated(
    operator: CompiledOperator, folder: Path, modes: Sequence[Mode], cases: Sequence[str] = (), variant: int = 0
) -> list[Row]:
    """Rows of one variant of each kernel on the small cases (or those named)."""
    files = []
    for variants in operator.kernels:
        kernel = variants[min(variant, len(variants) - 1)]
        path = folder / f"{kernel.name}.py"
        path.write_text(kernel.text, "utf-8")
        files.append(path)
    chosen = [case for case in cases_for(operator.spec, SETS["small"]) if not cases or case.name in cases]
    derivation: Derivation = operator.derivation
    problems = make_problems(operator.spec, derivation.chosen, chosen, 0, 1)
    return simulate_variant(Variant("edited", tuple(files)), problems, modes)
