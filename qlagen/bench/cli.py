"""`qlagen bench run | report | plot`."""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qlagen.bench.arguments import DOCUMENT, PARTS, PLOTS, RESULTS, add_commands
from qlagen.bench.cases import DIRECTIONS, plan
from qlagen.bench.device import gpu_name, slug
from qlagen.bench.document import losses, make_document
from qlagen.bench.records import RecordFile, environments, read_records, row_files
from qlagen.bench.report import make_report
from qlagen.bench.session import Crew, Options, Session
from qlagen.bench.session_host import run_host
from qlagen.bench.tables import as_text, summary_table, times_table
from qlagen.bench.workers import ProcessWorker
from qlagen.errors import QlagenError

HOST_SECONDS = 60.0
"""The host's part starts only when this much time is left."""


def run(options: argparse.Namespace) -> int:
    """Run the chosen command. Gives the exit code; raises QlagenError for a fault of the user's."""
    commands = {"run": run_command, "report": report_command, "plot": plot_command}
    return commands[options.bench_command](options)


def run_command(options: argparse.Namespace) -> int:
    for part in options.parts:
        if part not in PARTS:
            raise QlagenError("E-BENCH-CASE", f"{part!r} is no part of the benchmark", notes=[f"parts: {PARTS}"])
    directions = [part for part in DIRECTIONS if part in options.parts]
    cases = plan(directions, options.heads, options.sequences, options.gates, options.operators)
    if options.list:
        print("\n".join(case.name for case in cases))
        return 0
    path = options.results or RESULTS / f"{slug(_gpu())}-{options.date or datetime.date.today()}.jsonl"
    settings = Options(
        names=options.libs,
        gated=not options.no_gate,
        budget=options.budget,
        retry=options.retry,
        again=options.again,
        processes=options.processes,
    )
    crew = Crew(lambda environment: ProcessWorker(environment, options.stall, log=options.log), _say)
    session = Session(settings, crew, RecordFile(path))
    try:
        session.open()
        session.run(cases)
        if "host" in options.parts and session.left() > HOST_SECONDS:
            run_host(session)
    finally:
        session.close()
    _say(f"{session.measured} rows measured; they are in {path}")
    return 0


def report_command(options: argparse.Namespace) -> int:
    records = _read(options.rows)
    report = make_report(records)
    if options.docs:
        plots = [path.relative_to(DOCUMENT.parent).as_posix() for path in sorted(PLOTS.glob("*.png"))]
        DOCUMENT.parent.mkdir(parents=True, exist_ok=True)
        DOCUMENT.write_text(make_document(records, plots), encoding="utf-8")
        _say(f"wrote {DOCUMENT}")
    if options.json:
        print(json.dumps(report, indent=1))
    elif not options.docs:
        for direction, found in report.items():
            print(f"{direction}\n{as_text(times_table(found, direction))}\n\n{as_text(summary_table(found))}\n")
        print(losses(report))
    return 0


def plot_command(options: argparse.Namespace) -> int:
    from qlagen.bench.plots import draw

    records = _read(options.rows)
    gpus = [record["gpu"] for record in environments(records).values() if "gpu" in record]
    for path in draw(make_report(records), options.output, gpus[-1] if gpus else ""):
        print(path)
    return 0


def _read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The records of the files, in order. Raises E-BENCH-ROWS when there are none."""
    chosen = list(paths) or row_files(RESULTS)
    records = [record for path in chosen for record in read_records(path)]
    if not any(record["kind"] == "time" for record in records):
        where = ", ".join(map(str, chosen)) or f"{RESULTS}/"
        raise QlagenError("E-BENCH-ROWS", f"there are no rows in {where}", hints=["run `qlagen bench run` on a GPU"])
    return records


def _gpu() -> str:
    name = gpu_name()
    if not name:
        hints = ["run this on a machine with an NVIDIA GPU and its driver"]
        raise QlagenError("E-BENCH-GPU", "nvidia-smi finds no GPU to measure on", hints=hints)
    return name


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m qlagen.bench`. Exit codes: 0 done, 2 a fault of the user's."""
    parser = argparse.ArgumentParser(prog="qlagen bench", description=__doc__)
    add_commands(parser)
    chosen = parser.parse_args(arguments)
    try:
        return run(chosen)
    except QlagenError as fault:
        _say(fault.render())
        return 2
