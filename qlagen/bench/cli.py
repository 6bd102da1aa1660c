"""`qlagen bench run | report | plot`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qlagen.bench.cases import DIRECTIONS, plan
from qlagen.bench.device import slug
from qlagen.bench.document import losses, make_document
from qlagen.bench.records import RecordFile, environments, read_records
from qlagen.bench.report import make_report
from qlagen.bench.session import Crew, Options, Session
from qlagen.bench.session_host import run_host
from qlagen.bench.tables import as_text, summary_table, times_table
from qlagen.bench.workers import STALL_SECONDS, ProcessWorker
from qlagen.errors import QlagenError

RESULTS = Path("benchmarks/results")
PARTS = (*DIRECTIONS, "host")
HOST_SECONDS = 60.0
"""The host's part starts only when this much time is left."""


def register(subparsers: Any) -> None:
    """Add `bench` to the subparsers of `qlagen`. The chosen command is `arguments.handler(arguments) -> exit code`."""
    bench = subparsers.add_parser("bench", help="time the emitted library beside its peers on this GPU")
    add_commands(bench)


def add_commands(parser: argparse.ArgumentParser) -> None:
    commands = parser.add_subparsers(dest="bench_command", required=True)
    run = commands.add_parser("run", help="measure rows, the most informative first; go on where a file stops")
    _add_run_arguments(run)
    run.set_defaults(handler=run_command)
    report = commands.add_parser("report", help="tables, ratios and geometric means from rows")
    report.add_argument("--json", action="store_true", help="the report as JSON on standard output")
    report.add_argument("--docs", type=Path, metavar="FILE", help="write the Markdown document there")
    report.set_defaults(handler=report_command)
    plots = commands.add_parser("plot", help="PNG plots from rows")
    plots.add_argument("--out", type=Path, default=Path("docs/benchmarks"), help="folder for the plots")
    plots.set_defaults(handler=plot_command)
    for command in (report, plots):
        command.add_argument("rows", type=Path, nargs="*", help=f"files of rows; the newest of {RESULTS} without")


def _add_run_arguments(run: argparse.ArgumentParser) -> None:
    run.add_argument("--results", type=Path, metavar="FILE", help=f"rows go there; {RESULTS}/GPU-DATE.jsonl without")
    run.add_argument("--date", help="the DATE of the file's name; today without")
    run.add_argument("--parts", type=_words, default=PARTS, help=f"any of {','.join(PARTS)}")
    run.add_argument("--libs", type=_words, default=(), help="implementations to run; all that are here without")
    run.add_argument("--heads", type=_words, default=(), help="as in 2:8,16:64; the grid's without")
    run.add_argument("--sequences", type=_words, default=(), help="as in 1x32768,4x8192; the grid's without")
    run.add_argument("--gates", type=_words, default=(), help="kinds of gates; the grid's without")
    run.add_argument("--budget", type=float, metavar="SECONDS", help="stop in time, with the best rows done")
    run.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="compile in so many")
    run.add_argument("--stall", type=float, default=STALL_SECONDS, help="seconds after which a silent kernel hangs")
    run.add_argument("--no-gate", action="store_true", help="write times without checking the results")
    run.add_argument("--retry", action="store_true", help="measure again what was refused")
    run.add_argument("--again", action="store_true", help="measure again what the file has")
    run.add_argument("--list", action="store_true", help="print the rows in their order and stop")


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def run_command(arguments: argparse.Namespace) -> int:
    for part in arguments.parts:
        if part not in PARTS:
            raise QlagenError("E-BENCH-CASE", f"{part!r} is no part of the benchmark", notes=[f"parts: {PARTS}"])
    directions = [part for part in DIRECTIONS if part in arguments.parts]
    cases = plan(directions, arguments.heads, arguments.sequences, arguments.gates)
    if arguments.list:
        print("\n".join(case.name for case in cases))
        return 0
    path = arguments.results or RESULTS / f"{slug(_gpu_name())}-{arguments.date or datetime.date.today()}.jsonl"
    options = Options(
        names=arguments.libs,
        gated=not arguments.no_gate,
        budget=arguments.budget,
        retry=arguments.retry,
        again=arguments.again,
        processes=arguments.processes,
    )
    crew = Crew(lambda environment: ProcessWorker(environment, arguments.stall), _say)
    session = Session(options, crew, RecordFile(path))
    try:
        session.open()
        session.run(cases)
        if "host" in arguments.parts and session.left() > HOST_SECONDS:
            run_host(session)
    finally:
        session.close()
    _say(f"{session.measured} rows measured; they are in {path}")
    return 0


def report_command(arguments: argparse.Namespace) -> int:
    records = _read(arguments.rows)
    report = make_report(records)
    if arguments.docs:
        plots = sorted(path.name for path in (arguments.docs.parent / "benchmarks").glob("*.png"))
        text = make_document(records, [f"benchmarks/{name}" for name in plots])
        arguments.docs.parent.mkdir(parents=True, exist_ok=True)
        arguments.docs.write_text(text, encoding="utf-8")
        _say(f"wrote {arguments.docs}")
    if arguments.json:
        print(json.dumps(report, indent=1))
    elif not arguments.docs:
        for direction, found in report.items():
            print(f"{direction}\n{as_text(times_table(found, direction))}\n\n{as_text(summary_table(found))}\n")
        print(losses(report))
    return 0


def plot_command(arguments: argparse.Namespace) -> int:
    from qlagen.bench.plots import draw

    records = _read(arguments.rows)
    gpus = [record["gpu"] for record in environments(records).values() if "gpu" in record]
    for path in draw(make_report(records), arguments.out, gpus[-1] if gpus else ""):
        print(path)
    return 0


def _read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The records of the files, in order. Raises E-BENCH-ROWS when there are none."""
    chosen = list(paths) or sorted(RESULTS.glob("*.jsonl"))[-1:]
    records = [record for path in chosen for record in read_records(path)]
    if not any(record["kind"] == "time" for record in records):
        where = ", ".join(map(str, chosen)) or f"{RESULTS}/"
        raise QlagenError("E-BENCH-ROWS", f"there are no rows in {where}", hints=["run `qlagen bench run` on a GPU"])
    return records


def _gpu_name() -> str:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return answer.strip().splitlines()[0]
    except (OSError, subprocess.SubprocessError, IndexError):
        hints = ["run this on a machine with an NVIDIA GPU and its driver"]
        raise QlagenError("E-BENCH-GPU", "nvidia-smi finds no GPU to measure on", hints=hints) from None


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m qlagen.bench`. Exit codes: 0 done, 2 a fault of the user's."""
    parser = argparse.ArgumentParser(prog="qlagen bench", description=__doc__)
    add_commands(parser)
    chosen = parser.parse_args(arguments)
    try:
        return int(chosen.handler(chosen))
    except QlagenError as fault:
        _say(fault.render())
        return 2
