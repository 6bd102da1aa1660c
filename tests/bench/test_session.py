"""A run with local workers: resuming, the budget's order, compiling first, and what a lost process costs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from qlagen.bench.cases import Case
from qlagen.bench.measure import TURNS, Bench
from qlagen.bench.records import RecordFile, read_records
from qlagen.bench.session import Crew, Options, Session
from qlagen.bench.session_host import run_host
from qlagen.bench.workers import LocalWorker, WorkerLostError
from qlagen.errors import QlagenError
from tests.bench.fakes import Fake, make_bench

CASES = [Case("forward", 1, 2, f"{n}x8", (8,) * n, "quarter ungated") for n in (3, 1, 2)]


class Clock:
    """Every measured row takes ten seconds, every compiled set of kernels three."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(LocalWorker):
    def __init__(self, bench: Bench, clock: Clock, log: list[tuple[str, ...]]) -> None:
        super().__init__(bench)
        self.clock, self.log = clock, log

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        seconds = {"measure": 10.0, "compile": 3.0}.get(request["task"], 0.0)
        self.clock.now += seconds
        if seconds:
            self.log.append((request["task"], request.get("implementation", ""), request["case"]["sequences"]))
        yield from super().ask(request)


class Run:
    """Everything of one run, to look at afterwards."""

    def __init__(self, path: Path, bench: Bench, **options: Any) -> None:
        self.clock, self.log, self.said = Clock(), [], []
        self.starts: list[Mapping[str, str]] = []
        self.bench = bench
        crew = Crew(self.start, self.said.append, self.clock)
        self.session = Session(Options(**options), crew, RecordFile(path))
        self.session.open()

    def start(self, environment: Mapping[str, str]) -> LocalWorker:
        self.starts.append(environment)
        return Timed(self.bench, self.clock, self.log)

    def measured(self) -> list[str]:
        return [label for task, _, label in self.log if task == "measure"]


def rows(path: Path, kind: str = "time") -> list[tuple[str, str]]:
    return [(r["sequences"], r["implementation"]) for r in read_records(path) if r["kind"] == kind]


def test_rows_come_in_order_and_on_disk(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rows.jsonl"
    run = Run(path, make_bench({"a": Fake("a"), "b": Fake("b")}))
    run.session.run(CASES)
    assert rows(path) == [("3x8", "a"), ("3x8", "b"), ("1x8", "a"), ("1x8", "b"), ("2x8", "a"), ("2x8", "b")]
    assert {record["environment"] for record in read_records(path)} == {"cpu"}


def test_the_budget_takes_the_first_rows_and_another_run_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    bench = make_bench({"a": Fake("a")})
    first = Run(path, bench, budget=25.0, processes=0)
    first.session.run(CASES)
    assert first.measured() == ["3x8", "1x8"]
    assert first.said[-1] == "out of time: 1 rows left for another run"
    second = Run(path, bench, budget=100.0, processes=0)
    second.session.run(CASES)
    assert second.measured() == ["2x8"]
    third = Run(path, bench)
    third.session.run(CASES)
    assert third.measured() == []


def test_a_new_version_or_a_new_peer_measures_the_row_again_together(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    Run(path, make_bench({"a": Fake("a")})).session.run(CASES[:1])
    with_peer = make_bench({"a": Fake("a"), "b": Fake("b")})
    Run(path, with_peer).session.run(CASES[:1])
    assert rows(path) == [("3x8", "a"), ("3x8", "a"), ("3x8", "b")]

    class Newer(Fake):
        def version(self) -> str:
            return "2"

    Run(path, make_bench({"a": Newer("a"), "b": Fake("b")})).session.run(CASES[:1])
    assert len(rows(path)) == 5


def test_refused_rows_are_tried_again_only_when_asked(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    bench = make_bench({"bad": Fake("bad", lambda results: results["o"].zero_())})
    for options, expected in (({}, ["3x8"]), ({}, []), ({"retry": True}, ["3x8"]), ({"again": True}, ["3x8"])):
        run = Run(path, bench, **options)
        run.session.run(CASES[:1])
        assert run.measured() == expected
    assert rows(path) == []
    assert rows(path, "refused") == [("3x8", "bad")] * 3


def test_compiling_comes_first_once_per_key_on_the_smallest_case(tmp_path: Path) -> None:
    class Keyed(Fake):
        def compile_key(self, case: Case) -> str:
            return "few" if len(case.lengths) < 3 else "many"

    class InProcess(Fake):
        compiles = "process"
        environment = {"TUNE": "0"}  # noqa: RUF012

    run = Run(tmp_path / "rows.jsonl", make_bench({"a": Keyed("a"), "b": InProcess("b")}), processes=2)
    run.session.run(CASES)
    compiled = [entry for entry in run.log if entry[0] == "compile"]
    assert sorted(compiled) == [("compile", "a", "1x8"), ("compile", "a", "3x8"), ("compile", "b", "1x8")]
    assert [entry[0] for entry in run.log] == ["compile"] * 3 + ["measure"] * 3
    assert run.starts[0] == {}
    assert all(environment == {"TUNE": "0"} for environment in run.starts[1:])


def test_what_is_not_compiled_in_its_share_of_the_time_waits_for_the_next_wave(tmp_path: Path) -> None:
    class Keyed(Fake):
        def compile_key(self, case: Case) -> str:
            return case.label

    run = Run(tmp_path / "rows.jsonl", make_bench({"a": Keyed("a")}), processes=1, budget=40.0)
    # Half of 40 s is room for seven sets of 3 s; with 11 cases the last four wait.
    cases = [Case("forward", 1, 2, f"{n}x4", (4,) * n, "quarter ungated") for n in range(1, 12)]
    run.session.run(cases)
    tasks = [entry[0] for entry in run.log]
    assert tasks == ["compile"] * 7 + ["measure"]
    assert run.said[-1] == "out of time: 10 rows left for another run"


def test_a_compilation_that_fails_is_said_and_the_row_measured(tmp_path: Path) -> None:
    class Fails(Fake):
        def before_compiling(self) -> None:
            raise OSError("no compiler")

    run = Run(tmp_path / "rows.jsonl", make_bench({"a": Fails("a")}), processes=1)
    run.session.run(CASES[:1])
    assert "compiling a for forward 1:2 3x8 (quarter ungated) failed: OSError: no compiler" in run.said
    assert rows(run.session.file.path) == [("3x8", "a")]


def test_a_process_that_is_lost_costs_the_one_that_was_running(tmp_path: Path) -> None:
    run = Run(tmp_path / "rows.jsonl", make_bench({"good": Fake("good"), "bad": Fake("bad")}), processes=0)
    run.session.worker = _Losing(run.bench, run.clock, run.log)
    run.session.run(CASES[:2])
    path = run.session.file.path
    assert rows(path) == [("3x8", "good"), ("1x8", "good"), ("1x8", "bad")]
    [refused] = [record for record in read_records(path) if record["kind"] == "refused"]
    assert (refused["implementation"], refused["sequences"]) == ("bad", "3x8")
    assert refused["reason"] == "hung: no sign of life for 150 s"


class _Losing(Timed):
    """Dies in the middle of the implementation `bad`."""

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for event in super().ask(request):
            yield event
            if event == {"event": "begin", "implementation": "bad"}:
                raise WorkerLostError("hung: no sign of life for 150 s")


def test_a_process_that_is_lost_while_all_take_turns_costs_the_guilty_one_alone(tmp_path: Path) -> None:
    run = Run(tmp_path / "rows.jsonl", make_bench({"good": Fake("good"), "bad": Fake("bad")}), processes=0)
    run.session.worker = _LosingInTurns(run.bench, run.clock, run.log)
    run.session.crew.start = lambda environment: _LosingInTurns(run.bench, run.clock, run.log)
    run.session.run(CASES[:1])
    path = run.session.file.path
    assert rows(path) == [("3x8", "good")]
    [refused] = [record for record in read_records(path) if record["kind"] == "refused"]
    assert (refused["implementation"], refused["reason"]) == ("bad", "an illegal memory access")


class _LosingInTurns(Timed):
    """Dies when all take turns, as long as `bad` is among them."""

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for event in super().ask(request):
            yield event
            if event == {"event": "begin", "implementation": TURNS} and "bad" in request["implementations"]:
                raise WorkerLostError("an illegal memory access")


def test_only_what_is_asked_for_runs(tmp_path: Path) -> None:
    bench = make_bench({"a": Fake("a"), "b": Fake("b")})
    run = Run(tmp_path / "rows.jsonl", bench, names=("b",))
    run.session.run(CASES[:1])
    assert rows(run.session.file.path) == [("3x8", "b")]
    with pytest.raises(QlagenError) as fault:
        Run(tmp_path / "rows.jsonl", bench, names=("bb",))
    assert fault.value.render() == (
        "error[E-BENCH-LIB]: there is no implementation 'bb'\n  note: known: a, b\n  hint: did you mean 'b'?"
    )


def test_nothing_to_run_says_why(tmp_path: Path) -> None:
    class Absent(Fake):
        def version(self) -> str:
            raise ImportError("No module named 'a'")

    with pytest.raises(QlagenError) as fault:
        Run(tmp_path / "rows.jsonl", make_bench({"a": Absent("a")}))
    assert fault.value.notes == ("a: ImportError: No module named 'a'",)


def test_the_host_is_measured_with_cold_and_warm_caches(tmp_path: Path) -> None:
    run = Run(tmp_path / "rows.jsonl", make_bench({"a": Fake("a")}))
    run.session.worker = _Small(run.bench, run.clock, run.log)
    run.session.crew.start = lambda environment: _Small(run.bench, run.clock, run.log, run.starts, environment)
    run_host(run.session)
    found = read_records(run.session.file.path)
    hosts = [record for record in found if record["kind"] == "host"]
    assert [record["heads"] for record in hosts] == ["1:2", "1:2"]
    assert all(record["enqueue_us"] > 0 for record in hosts)
    first = [record for record in found if record["kind"] == "first call"]
    assert [(record["cache"], record["at_once"]) for record in first] == [("cold", 1), ("warm", 1)]
    assert all(record["call_s"] > 0 for record in first)
    [size] = [record for record in found if record["kind"] == "size"]
    assert size["installed_mib"] > 1
    cold, warm = run.starts[-2:]
    assert cold == warm
    assert cold["TRITON_CACHE_DIR"] == cold["TILELANG_CACHE_DIR"] != ""


class _Small(Timed):
    """Replaces the rows of the host's part by tiny ones."""

    def __init__(self, bench: Bench, clock: Clock, log: list[Any], starts: Any = None, environment: Any = None) -> None:
        super().__init__(bench, clock, log)
        if starts is not None:
            starts.append(environment)

    def ask(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        small = {"direction": "forward", "heads": "1:2", "sequences": "1x8", "gates": "model init"}
        if "cases" in request:
            request = {**request, "cases": [small] * len(request["cases"])}
        if "case" in request:
            request = {**request, "case": small}
        yield from super().ask(request)
