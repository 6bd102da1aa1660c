"""A whole run over real processes: pipes, compiling beside measuring, a process that dies, and the report."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from qlagen.bench.cases import Case
from qlagen.bench.records import RecordFile, read_records
from qlagen.bench.report import make_report
from qlagen.bench.session import Crew, Options, Session
from qlagen.bench.workers import ProcessWorker

CASES = [Case("forward", 1, 2, f"{n}x8", (8,) * n, "quarter ungated") for n in (1, 2)]


def test_a_run_over_processes(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "log"

    def start(environment: Mapping[str, str]) -> ProcessWorker:
        return ProcessWorker(environment, 60.0, (sys.executable, "-m", "tests.bench.fake_worker"), log)

    session = Session(Options(processes=2), Crew(start, said.append), RecordFile(tmp_path / "rows.jsonl"))
    session.open()
    session.run(CASES)
    session.close()
    records = read_records(tmp_path / "rows.jsonl")
    kinds = [(r["sequences"], r["implementation"], r["kind"]) for r in records if r["kind"] in ("time", "refused")]
    assert kinds == [
        ("1x8", "wrong", "refused"),
        ("1x8", "good", "time"),
        ("1x8", "dies", "time"),
        ("2x8", "wrong", "refused"),
        ("2x8", "dies", "refused"),
        ("2x8", "wrong", "refused"),
        ("2x8", "good", "time"),
    ]
    reasons = {record["reason"] for record in records if record["kind"] == "refused"}
    assert "the process died (exit code 9)" in reasons
    assert any(reason.startswith("wrong final_state") for reason in reasons)
    assert list(make_report(records, "good")["forward"]["rows"][0]["ms"]) == ["dies", "good"]
    assert "noise on standard output\nmore noise\n" in log.read_text().replace("noise on standard output\n\n", "")
    assert said[0] == "2 of 2 rows to measure, with good, wrong, dies"
