"""Libraries of candidates: sources and kernels made by other processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from qlagen.tune.build import LibraryBuilder
from tests.tune.entries import SPEC, TEXT


def builder(tmp_path: Path) -> LibraryBuilder:
    return LibraryBuilder(SPEC, SPEC.stem, "sm_90a", tmp_path, 1)


def test_without_the_tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources are made, one folder for each text; that the kernels are not is said with the reason."""
    (tmp_path / "sitecustomize.py").write_text('import sys\n\nsys.modules["tilelang"] = None\n')
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = builder(tmp_path)
    first = found.submit(TEXT)
    assert found.submit(TEXT) is first
    built = first.result(60)
    assert (built.source / "qla_ops" / "kernels" / SPEC.stem / "prepare_tile.py").is_file()
    assert built.reason.startswith("kernels cannot be built here: tilelang is not installed")
    found.close()


def test_a_schedule_that_cannot_be_generated(tmp_path: Path) -> None:
    found = builder(tmp_path)
    bad = found.submit(TEXT.replace("stages = 1\n", "stages = 99\n", 1)).result(60)
    assert "error[E-VALUE]" in bad.reason
    found.close()


def test_closing_ends_what_runs(tmp_path: Path) -> None:
    found = builder(tmp_path)
    running, waiting = found.submit(TEXT), found.submit(TEXT + "\n")
    while not found.running:
        time.sleep(0.01)
    found.close()
    assert running.result().reason
    assert waiting.cancelled()
    assert found.running == set()
