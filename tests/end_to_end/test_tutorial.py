"""The tutorial's operator: every command of docs/new-operator.md, and its recurrence against a loop written by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from qlagen.spec import load_spec
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run
from tests.end_to_end.compiled import ROOT, edited

SPEC = ROOT / "docs" / "examples" / "decoupled_delta_rule.toml"
PAGE = ROOT / "docs" / "new-operator.md"


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-m", "qlagen", *arguments],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
    )


def test_the_page_quotes_the_spec() -> None:
    lines = SPEC.read_text("utf-8").splitlines()
    assert len(lines) < 50
    blocks = PAGE.read_text("utf-8").split("```toml\n")[1:]
    assert len(blocks) == 3
    for block in blocks:
        assert block.split("```")[0].rstrip() in "\n".join(lines)


def test_its_recurrence_is_what_the_page_says() -> None:
    random = np.random.default_rng(0)
    tokens, size_k, size_v = 9, 5, 4
    q, k = random.standard_normal((2, 1, tokens, 1, size_k))
    v = random.standard_normal((1, tokens, 1, size_v))
    g, erase, write = -random.random((3, 1, tokens, 1)) * np.array([1, -1, -1])[:, None, None, None]
    state, rows = np.zeros((size_k, size_v)), []
    for t in range(tokens):
        decayed = np.exp(g[0, t, 0]) * state
        update = write[0, t, 0] * v[0, t, 0] - erase[0, t, 0] * (decayed.T @ k[0, t, 0])
        state = decayed + np.outer(k[0, t, 0], update)
        rows.append(0.5 * state.T @ q[0, t, 0])
    spec = replace(load_spec(SPEC), dims=(("K", size_k), ("V", size_v)))
    arrays = {"q": q, "k": k, "v": v, "g": g, "erase": erase, "write": write, "scale": np.float64(0.5)}
    o, final = run(recurrence_of(spec), arrays)
    np.testing.assert_allclose(o[0, :, 0], rows, rtol=1e-12)
    np.testing.assert_allclose(final[0, 0], state, rtol=1e-12)


def test_a_wrong_stage_is_named(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(edited(SPEC.read_text("utf-8"), [("A @ (erase * from_start", "A @ (write * from_start")]), "utf-8")
    result = command("check", str(wrong))
    assert result.returncode == 1
    assert "E-PROOF" in result.stderr
    assert 'W  = "A @ (write * from_start(G) * K)"' in result.stderr


@pytest.mark.slow
def test_every_command(tmp_path: Path) -> None:
    library = str(tmp_path / "library")
    for arguments in (
        ("check", str(SPEC)),
        ("explain", str(SPEC)),
        ("show", str(SPEC), "--stage", "program"),
        ("build", str(SPEC), "--output", library, "--schedules", "specs/schedules"),
        ("verify", str(SPEC), "--library", library, "--impl", "reference", "--cases", "small"),
        ("simulate", str(SPEC), "--library", library, "--eager", "--kernel", "v64"),
    ):
        result = command(*arguments)
        assert result.returncode == 0, (arguments, result.stdout[-2000:], result.stderr[-2000:])
        assert "FAILED" not in result.stdout
    assert "48 within budget, 0 not" in result.stdout
