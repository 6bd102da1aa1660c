"""Golden files for every test: `pytest --update` rewrites them, a plain run compares."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

# The matrices of the tests are small: the threads of OpenBLAS (NumPy) and OpenMP (torch) make them slower, and many
# times slower on a busy machine. Both libraries read this when they are first imported, by the test modules.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update", action="store_true", help="rewrite golden files instead of comparing with them")


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[Path, str], None]:
    """`golden(path, text)` asserts that the file holds exactly that text."""

    def check(path: Path, text: str) -> None:
        if request.config.getoption("--update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; run pytest --update and read it before you commit it"
        assert text == path.read_text(encoding="utf-8")

    return check
