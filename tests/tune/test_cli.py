"""`qlagen tune` from its arguments to the file, without a GPU."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from qlagen.bench.cases import make_case
from qlagen.cli.main import main
from qlagen.cli.parser import make_parser
from qlagen.tune import cli
from tests.tune.entries import ROOT, SPEC, TEXT
from tests.tune.fakes import FakeBuilder, FakeClock, FakeMeasurer, Settings
from tests.tune.test_edit import changed_lines


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    path = tmp_path / "sm_90a.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A GPU on which two ring stages make the tile kernel faster; what was started is kept."""
    made: dict[str, Any] = {"ratio": 0.9}

    def ratio(settings: Settings) -> float:
        tile = settings["chunk_parallel 0"]
        return float(made["ratio"]) if tile.stages == 2 and tile.ctas_per_sm == 4 else 1.0

    def builder(spec: Path, operator: str, target: str, work: Path, processes: int) -> FakeBuilder:
        made["builder"] = FakeBuilder()
        made["arguments"] = (spec, operator, target, work, processes)
        return made["builder"]

    def measurer(start: Any, cases: Any) -> FakeMeasurer:
        made["cases"] = cases
        launches = dict.fromkeys(cases, (f"{SPEC.stem}_prepare_tile",))
        return FakeMeasurer(made["builder"], FakeClock(), launches, ratio)

    monkeypatch.setattr(cli, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(cli, "LibraryBuilder", builder)
    monkeypatch.setattr(cli, "ProcessMeasurer", measurer)
    return made


def tune(schedule: Path, *arguments: str) -> int:
    return main(["tune", str(SPEC), "--schedule", str(schedule), "--processes", "1", *arguments])


def test_a_winner_is_written(schedule: Path, fakes: dict[str, Any], tmp_path: Path) -> None:
    results = tmp_path / "new" / "tune.jsonl"
    options = ("--part", "chunk_parallel", "--rows", "16:64/4x128,2:8/1x64", "--date", "2026-11-30")
    assert tune(schedule, *options, "--results", str(results), "--work", str(tmp_path / "work")) == 0
    text = schedule.read_text()
    gone, come = changed_lines(TEXT, text)
    assert gone == ["stages = 1\n"]
    assert come == [
        "# Tuned on NVIDIA H200, 2026-11-30, before: stages = 1. Milliseconds of a call: 16:64/4x128 1 -> 0.9, "
        "2:8/1x64 1 -> 0.9\n",
        "stages = 2\n",
    ]
    assert fakes["arguments"] == (SPEC, SPEC.stem, "sm_90a", tmp_path / "work", 1)
    assert [case.name for case in fakes["cases"].values()] == [
        "forward 16:64 4x128 (quarter ungated)",
        "forward 2:8 1x64 (quarter ungated)",
    ]
    records = [json.loads(line) for line in results.read_text().splitlines()]
    assert records[0]["kind"] == "tune"
    assert (records[0]["gpu"], records[0]["rows"]) == ("NVIDIA H200", list(fakes["cases"]))
    assert records[-1]["outcome"] == "replaced"
    assert records[-1]["changes"] == {"stages": 2}
    assert {record["outcome"] for record in records[1:-1]} == {"refused", "measured", "measured again"}
    assert fakes["builder"].closed


def test_without_a_winner_the_file_stays(schedule: Path, fakes: dict[str, Any], tmp_path: Path) -> None:
    fakes["ratio"] = 1.0
    stamp = schedule.stat().st_mtime_ns
    assert tune(schedule, "--part", "chunk_parallel", "--results", str(tmp_path / "r.jsonl")) == 0
    assert (schedule.read_text(), schedule.stat().st_mtime_ns) == (TEXT, stamp)


def test_rows_with_other_gates() -> None:
    assert cli.read_job(make_parser().parse_args(["tune", str(SPEC), "--rows", "2:8/1x64/model init"])).cases[
        "2:8/1x64/model init"
    ] == make_case("forward", "2:8", "1x64", "model init")


def test_the_default_names_of_the_results(
    schedule: Path, fakes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert tune(schedule, "--part", "chunk_parallel", "--budget", "0", "--date", "2026-11-30") == 0
    assert (tmp_path / "benchmarks" / "results" / "tune-nvidia-h200-2026-11-30.jsonl").is_file()
    assert not fakes["arguments"][3].exists()


def test_a_dry_run_needs_no_gpu(schedule: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune(schedule, "--part", "chunk_parallel", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("chunk_parallel tile (entry 1): ")
    assert re.fullmatch(r"  \d+ clocks, \d+ bytes: as it is", lines[1])
    assert any(line.endswith("bytes: stages = 2") for line in lines)
    assert any(line.startswith("  refused: ctas_per_sm = 5: E-ESTIMATE: ") for line in lines)


ERRORS = {
    "no GPU": (
        (),
        "error[E-TUNE-GPU]: nvidia-smi finds no GPU to tune on\n  hint: run this on a machine with an NVIDIA",
    ),
    "no row": (
        ("--rows", "4x8192"),
        "error[E-BENCH-CASE]: '4x8192' is no row of the benchmark\n  note: rows are HEADS/",
    ),
    "bad heads": (("--rows", "3:4/4x8192"), "error[E-BENCH-CASE]: '3:4' is not a pair of head counts"),
    "no variant": (("--variant", "v62", "--dry-run"), "error[E-TUNE-ENTRY]: the schedule file has no variant 'v62'"),
    "no file": (("--schedule", "nowhere.toml"), "error[E-FILE]: cannot read the schedule file 'nowhere.toml'"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str, schedule: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments, text = ERRORS[name]
    monkeypatch.setattr(cli, "gpu_name", lambda: "")
    assert tune(schedule, *arguments) == 2
    assert text in capsys.readouterr().err


def test_an_operator_that_the_benchmark_does_not_have(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tune", str(ROOT / "specs" / "simple_gla.toml"), "--dry-run"]) == 2
    assert "error[E-TUNE-SPEC]: the benchmark cannot run simple_gla" in capsys.readouterr().err


def test_help_imports_no_stage() -> None:
    program = (
        "import contextlib, sys; from qlagen.cli import main\n"
        "with contextlib.suppress(SystemExit): main(['tune', '--help'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('qlagen.tune') or m == 'torch'))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "['qlagen.tune', 'qlagen.tune.arguments']"
    assert "--dry-run" in done.stdout
