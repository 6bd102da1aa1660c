from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from qlagen.bench import cli
from qlagen.bench.arguments import PARTS, RESULTS, register
from qlagen.bench.records import row_files
from qlagen.bench.report import make_report
from tests.bench.rows import example

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in example()))
    return path


def test_the_report_as_json_is_the_report(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--json", str(rows)]) == 0
    assert json.loads(capsys.readouterr().out) == make_report(example())


def test_the_report_as_text(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", str(rows)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("forward\nheads")
    assert "A peer is faster in 1 of 3 rows" in out


def test_the_document_and_the_plots_are_written(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["plot", str(rows)]) == 0
    names = [
        "docs/benchmarks/forward-heads.png",
        "docs/benchmarks/forward-length.png",
        "docs/benchmarks/backward-heads.png",
    ]
    assert capsys.readouterr().out.splitlines() == names
    assert cli.main(["report", "--docs", str(rows)]) == 0
    assert "(benchmarks/forward-length.png)" in (tmp_path / "docs" / "benchmarks.md").read_text()


def test_the_plan_can_be_listed_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["run", "--list", "--parts", "backward", "--heads", "2:4", "--sequences", "8k in 2,1x8192"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "backward 2:4 8k in 2 (quarter ungated)",
        "backward 2:4 1x8192 (quarter ungated)",
        "backward 2:4 8k in 2 (model init)",
        "backward 2:4 1x8192 (model init)",
    ]


@pytest.mark.parametrize(
    ("arguments", "first_line"),
    [
        (["run", "--parts", "sideways"], "error[E-BENCH-CASE]: 'sideways' is no part of the benchmark"),
        (["run", "--list", "--heads", "3"], "error[E-BENCH-CASE]: '3' is not a pair of head counts"),
        (["report", "nowhere.jsonl"], "error[E-BENCH-ROWS]: there are no rows in nowhere.jsonl"),
    ],
)
def test_faults_are_the_users(arguments: list[str], first_line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 2
    assert capsys.readouterr().err.splitlines()[0] == first_line


def test_without_a_gpu_the_error_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("PATH", "")
    assert cli.main(["run"]) == 2
    assert capsys.readouterr().err.startswith("error[E-BENCH-GPU]: nvidia-smi finds no GPU to measure on\n")


def test_it_registers_with_the_command_line(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    register(parser.add_subparsers(dest="command"))
    options = parser.parse_args(["bench", "run", "--budget", "60", "--libs", "fla, flash_qla"])
    assert (options.budget, options.libs, options.parts) == (60.0, ("fla", "flash_qla"), PARTS)
    assert importlib.import_module(f"qlagen.cli.{options.module}").run is cli.run
    assert cli.run(parser.parse_args(["bench", "report", "--json", str(rows)])) == 0
    assert set(json.loads(capsys.readouterr().out)) == {"forward", "backward"}


def test_help_needs_neither_torch_nor_a_stage_of_the_compiler() -> None:
    program = "import sys; import qlagen.bench.arguments; print([m for m in sys.modules if m.startswith('qlagen.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout == "['qlagen.bench', 'qlagen.bench.arguments']\n"


def test_the_committed_document_is_what_the_committed_rows_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    committed = REPOSITORY / "docs" / "benchmarks.md"
    files = row_files(REPOSITORY / RESULTS)
    assert committed.exists() == bool(files)
    if files:
        plots = [f"benchmarks/{path.name}" for path in sorted((REPOSITORY / "docs" / "benchmarks").glob("*.png"))]
        records = [record for file in files for record in cli.read_records(file)]
        assert committed.read_text() == cli.make_document(records, plots)
