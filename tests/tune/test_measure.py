"""Two libraries beside each other: the worker's protocol and the process that leads, with fakes on the CPU."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from qlagen.bench.cases import make_case
from qlagen.bench.inputs import Inputs
from qlagen.bench.measure import Event
from qlagen.bench.worker import Request
from qlagen.bench.workers import ProcessWorker, WorkerLostError
from qlagen.errors import QlagenError
from qlagen.tune.build import fault_of, import_path
from qlagen.tune.measure import Comparison, ProcessMeasurer, RefusedError, RowTimes
from qlagen.tune.worker import Rows
from tests.bench.fakes import Fake, make_bench

CASES = {
    label: make_case("forward", "1:2", label.split("/")[1], "quarter ungated") for label in ("1:2/1x70", "1:2/2x64")
}
ROWS = list(CASES)


class Library(Fake):
    """A library in a folder, as the worker sees it."""

    def __init__(self, folder: Path, fault: Callable[[dict[str, Any]], Any] | None = None) -> None:
        super().__init__("qla_ops", fault)
        self.library = SimpleNamespace(__file__=str(folder / "qla_ops" / "__init__.py"))

    def kernels(self, inputs: Inputs) -> list[str]:
        return ["prepare", "narrow" if len(inputs.case.lengths) == 1 else "wide"]


class Local:
    """Answers in this process; `dies` names a task at which the process is lost."""

    def __init__(self, library: Fake, milliseconds: float, dies: str = "") -> None:
        self.bench = make_bench({"qla_ops": library}, {"qla_ops": milliseconds})
        self.rows, self.dies, self.closed = Rows(), dies, False
        self.asked: list[str] = []

    def ask(self, request: Request) -> Iterator[Event]:
        self.asked.append(request["task"])
        if request["task"] == self.dies:
            raise WorkerLostError("the process died (signal 11)")
        try:
            yield from self.rows.handle(request, self.bench)
        except Exception as fault:
            raise RuntimeError(f"{type(fault).__name__}: {fault}") from fault

    def close(self) -> None:
        self.closed = True


def wrong(results: dict[str, Any]) -> None:
    results["o"][0, 3, 1] += 1


class Farm:
    """Starts workers by their folder's name, and keeps them."""

    def __init__(self, **milliseconds: float) -> None:
        self.milliseconds = milliseconds
        self.started: list[str] = []
        self.faults: dict[str, Any] = {}
        self.dies: dict[str, str] = {}
        self.workers: list[Local] = []

    def __call__(self, source: Path) -> Local:
        name = source.name
        self.started.append(name)
        library = Library(source, self.faults.get(name))
        self.workers.append(Local(library, self.milliseconds[name], self.dies.get(name, "")))
        return self.workers[-1]


def measurer(farm: Farm, tmp_path: Path) -> ProcessMeasurer:
    found = ProcessMeasurer(farm, CASES)
    assert found.kernels(tmp_path / "base") == {ROWS[0]: ("prepare", "narrow"), ROWS[1]: ("prepare", "wide")}
    return found


def test_two_libraries_take_turns(tmp_path: Path) -> None:
    farm = Farm(base=2.0, new=1.5)
    found = measurer(farm, tmp_path)
    comparison = found.compare(tmp_path / "new", ROWS, 3)
    assert farm.started == ["base", "new"]
    assert comparison.ratio == pytest.approx(0.75, rel=0.02)
    for label in ROWS:
        row = comparison.rows[label]
        assert (len(row.current), len(row.candidate)) == (3, 3)
        assert row.before == pytest.approx(2e-3, rel=0.02)
        assert row.after == pytest.approx(1.5e-3, rel=0.02)
    base, new = farm.workers
    assert new.asked == ["open", *["sample"] * 4, "close"] * 2
    assert base.asked == ["kernels", "open", "open", *["sample"] * 8]
    assert (base.closed, new.closed) == (False, True)
    found.compare(tmp_path / "new", ROWS[:1], 1)
    assert base.asked[-2:] == ["sample"] * 2
    found.close()
    assert all(worker.closed for worker in farm.workers)


def test_a_slow_library_need_not_run_all_rows(tmp_path: Path) -> None:
    farm = Farm(base=2.0, new=2.2)
    found = measurer(farm, tmp_path)
    assert list(found.compare(tmp_path / "new", ROWS, 1, 1.05).rows) == ROWS[:1]
    assert list(found.compare(tmp_path / "new", ROWS, 1, 1.2).rows) == ROWS


def test_a_process_may_be_started_ahead(tmp_path: Path) -> None:
    farm = Farm(base=2.0, new=1.5, next=1.0)
    found = measurer(farm, tmp_path)
    found.expect(tmp_path / "next")
    found.expect(tmp_path / "next")
    found.compare(tmp_path / "new", ROWS[:1], 1)
    found.compare(tmp_path / "next", ROWS[:1], 1)
    assert farm.started == ["base", "next", "new"]
    found.expect(tmp_path / "new")
    found.close()
    assert all(worker.closed for worker in farm.workers)


def test_wrong_results_are_refused_before_they_are_timed(tmp_path: Path) -> None:
    farm = Farm(base=2.0, new=0.1)
    farm.faults["new"] = wrong
    with pytest.raises(RefusedError, match=r"^1:2/1x70: wrong o: relative error "):
        measurer(farm, tmp_path).compare(tmp_path / "new", ROWS, 3)
    assert farm.workers[1].asked == ["open"]
    assert farm.workers[1].closed


@pytest.mark.parametrize("task", ["open", "sample"])
def test_a_lost_process_is_refused(task: str, tmp_path: Path) -> None:
    farm = Farm(base=2.0, new=0.1, good=1.0)
    farm.dies["new"] = task
    found = measurer(farm, tmp_path)
    with pytest.raises(RefusedError, match=r"^1:2/1x70: the process died \(signal 11\)$"):
        found.compare(tmp_path / "new", ROWS, 3)
    assert found.compare(tmp_path / "good", ROWS, 3).ratio < 1


def test_the_present_library_is_started_again(tmp_path: Path) -> None:
    """A candidate can take the other process with it: that is the candidate's fault."""
    farm = Farm(base=2.0, new=0.1)
    found = measurer(farm, tmp_path)
    farm.workers[0].dies = "sample"
    with pytest.raises(RefusedError, match="the process with the library as it is was lost"):
        found.compare(tmp_path / "new", ROWS, 3)
    assert found.compare(tmp_path / "new", ROWS, 3).ratio < 1
    assert farm.started == ["base", "new", "base", "new"]


def test_a_present_library_that_is_wrong(tmp_path: Path) -> None:
    farm = Farm(base=2.0, new=0.1)
    farm.faults["base"] = wrong
    with pytest.raises(QlagenError, match="the library as it is fails in the row 1:2/1x70: wrong o") as caught:
        measurer(farm, tmp_path).compare(tmp_path / "new", ROWS, 3)
    assert caught.value.code == "E-TUNE-BASE"


def test_another_library_than_the_one_that_was_built(tmp_path: Path) -> None:
    farm = Farm(base=2.0, other=1.0)
    with pytest.raises(QlagenError, match="cannot measure") as caught:
        ProcessMeasurer(lambda source: farm(tmp_path / "other"), CASES).kernels(tmp_path / "base")
    assert caught.value.code == "E-TUNE-GPU"
    assert caught.value.notes == (f"it imports the library in {tmp_path}/other instead of {tmp_path}/base",)


def test_a_machine_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def start(source: Path) -> ProcessWorker:
        environment = {"CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": import_path()}
        return ProcessWorker(environment, 120, (sys.executable, "-m", "qlagen.tune.worker"))

    found = ProcessMeasurer(start, CASES)
    with pytest.raises(QlagenError) as caught:
        found.kernels(tmp_path)
    found.close()
    assert caught.value.code == "E-TUNE-GPU"
    assert "--dry-run" in caught.value.render()


def test_ratio_and_noise() -> None:
    comparison = Comparison(
        {"a": RowTimes((1.0, 1.0, 2.0), (0.5, 0.5, 1.0)), "b": RowTimes((1.0, 1.0, 1.0), (2.0, 2.2, 1.8))}
    )
    assert comparison.ratio == pytest.approx(1.0)
    assert comparison.noise == pytest.approx((1.1**0.5 - 0.9**0.5) / 2)
    assert comparison.rows["b"].ratio == 2.0


def test_one_slow_round_of_nine_is_no_noise() -> None:
    """As a GPU at its power limit has it. Two values that take turns are noise."""
    slow = Comparison({"a": RowTimes((1.0,) * 9, (0.98,) * 8 + (1.3,))})
    assert (slow.ratio, slow.noise) == (0.98, pytest.approx(0.0))
    turns = Comparison({"a": RowTimes((1.0,) * 9, (0.97, 0.99) * 4 + (0.98,))})
    assert turns.noise == pytest.approx(0.02)
    assert Comparison({"a": RowTimes((1.0,), (0.98,))}).noise == 0.0


def test_what_the_compiler_says() -> None:
    clean = {"spill_bytes": 0, "serialised_wgmma": 0}
    rows = [{"kernel": "a", **clean}, {"kernel": "b", "spill_bytes": 8, "serialised_wgmma": 3}]
    assert fault_of(json.dumps(rows), ("a",)) == ""
    assert fault_of(json.dumps(rows), ("a", "b")) == (
        "b spills 8 bytes; b has 3 wgmma that wait for one another (C75xx)"
    )


def test_import_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["/x", "/y"]))
    first, x, y, own = import_path(Path("/library")).split(os.pathsep)
    assert (first, x, y) == ("/library", "/x", "/y")
    assert (Path(own) / "qlagen" / "tune" / "build.py").is_file()
