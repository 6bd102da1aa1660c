"""docs/errors.md is what the tables of codes say, and the tables are what the stages raise."""

from __future__ import annotations

import re

import pytest

from tools.error_docs import PAGE, ROOT, STAGES, main, render, stage_codes

ORDER = ("spec", "algebra", "program", "schedule", "emit", "package", "verify", "bench", "tune", "cli")
_CODE = re.compile(r"\"(E-[A-Z]+(?:-[A-Z]+)*)\"")
_FAILURE = re.compile(r"\bfail\(\s*\"([A-Z-]+)\"")


def mentioned(stage: str) -> set[str]:
    """Codes in a stage's sources, its table aside; the emulator's C++ names them without prefix."""
    folder = ROOT / "qlagen" / stage
    python = [path for path in folder.rglob("*.py") if path.name != "codes.py"]
    found = {code for path in python for code in _CODE.findall(path.read_text(encoding="utf-8"))}
    native = [path for path in folder.rglob("cxx/*/*") if path.is_file()]
    return found | {f"E-EMU-{kind}" for path in native for kind in _FAILURE.findall(path.read_text(encoding="utf-8"))}


def test_every_stage_with_codes_has_a_section() -> None:
    tables = {path.parent.name for path in (ROOT / "qlagen").glob("*/codes.py")}
    assert tables == set(STAGES)
    folders = {path.parent.name for path in (ROOT / "qlagen").glob("*/__init__.py")} - {"targets"}
    assert folders == set(ORDER)


@pytest.mark.parametrize("stage", ORDER)
def test_every_code_that_a_stage_raises_is_documented(stage: str) -> None:
    own_and_left = ORDER[: ORDER.index(stage) + 1]
    known = {code for name in own_and_left if name in STAGES for code in stage_codes(name)}
    assert mentioned(stage) - known == set()


@pytest.mark.parametrize("stage", STAGES)
def test_every_documented_code_is_raised(stage: str) -> None:
    own_and_right = ORDER[ORDER.index(stage) :]
    raised = {code for name in own_and_right for code in mentioned(name)}
    assert set(stage_codes(stage)) - raised == set()


def test_meanings_are_one_sentence() -> None:
    texts = [text for stage in STAGES for text in stage_codes(stage).values()]
    assert all(text.endswith(".") and "\n" not in text and "|" not in text for text in texts)


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == render(), "run python -m tools.error_docs"
    assert main(["--check"]) == 0
