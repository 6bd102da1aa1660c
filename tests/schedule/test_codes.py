"""Error codes: every code that the stage raises is documented, and every documented one is raised somewhere."""

from __future__ import annotations

import re

from qlagen.schedule.codes import CODES
from qlagen.spec.codes import CODES as FILE_CODES
from tests.schedule.cases import ROOT


def test_codes_are_those_that_are_raised() -> None:
    sources = sorted((ROOT / "qlagen" / "schedule").glob("*.py"))
    raised = {
        code
        for source in sources
        if source.name != "codes.py"
        for code in re.findall(r"QlagenError\(\s*\"(E-[A-Z]+)\"", source.read_text(encoding="utf-8"))
    }
    assert raised - set(CODES) <= set(FILE_CODES)
    assert set(CODES) <= raised
    assert all(text.endswith(".") for text in CODES.values())
