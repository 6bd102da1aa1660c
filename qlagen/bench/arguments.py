"""The arguments of `qlagen bench`, apart from what they start: `--help` needs no stage of the compiler."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

RESULTS = Path("benchmarks/results")
DOCUMENT = Path("docs/benchmarks.md")
PLOTS = Path("docs/benchmarks")
PARTS = ("forward", "backward", "host")
STALL_SECONDS = 150.0
"""No sign of life for this long means that a kernel hangs. Tuning a library's kernels takes half of it."""


def register(subparsers: Any) -> argparse.ArgumentParser:
    """Add `bench` to the subparsers of `qlagen`; `qlagen.cli.bench` runs what was chosen."""
    text = "time the emitted library beside its peers on this GPU"
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "bench", help=text, description=text[0].upper() + text[1:] + "."
    )
    parser.set_defaults(module="bench")
    add_commands(parser)
    return parser


def add_commands(parser: argparse.ArgumentParser) -> None:
    """`run`, `report` and `plot`; which one is in `bench_command`."""
    commands = parser.add_subparsers(dest="bench_command", required=True, metavar="COMMAND")
    _add_run(commands.add_parser("run", help="measure rows, the most informative first; go on where a file stops"))
    report = commands.add_parser("report", help="tables, ratios and geometric means from rows")
    report.add_argument("--json", action="store_true", help="machine-readable output on stdout")
    report.add_argument("--docs", action="store_true", help=f"write {DOCUMENT}")
    plot = commands.add_parser("plot", help="PNG plots from rows")
    plot.add_argument("--output", type=Path, default=PLOTS, metavar="DIR", help=f"default: {PLOTS}")
    for command in (report, plot):
        command.add_argument("rows", type=Path, nargs="*", metavar="FILE", help=f"rows; default: all of {RESULTS}")


def _add_run(run: argparse.ArgumentParser) -> None:
    run.add_argument("--results", type=Path, metavar="FILE", help=f"the rows; default: {RESULTS}/GPU-DATE.jsonl")
    run.add_argument("--date", help="the DATE of the file's name; default: today")
    run.add_argument("--parts", type=words, default=PARTS, help=f"default: {','.join(PARTS)}")
    run.add_argument("--libs", type=words, default=(), help="implementations; default: all that are here")
    run.add_argument("--operators", type=words, default=(), help="operators with rows; default: the grid's")
    run.add_argument("--heads", type=words, default=(), help="such as 2:8,16:64; default: the grid's")
    run.add_argument("--sequences", type=words, default=(), help="such as 1x32768,4x8192; default: the grid's")
    run.add_argument("--gates", type=words, default=(), help="kinds of gates; default: the grid's")
    run.add_argument("--budget", type=float, metavar="SECONDS", help="stop in time, with the best rows done")
    run.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="compile in so many")
    run.add_argument("--stall", type=float, default=STALL_SECONDS, help="seconds after which a silent kernel hangs")
    run.add_argument("--log", type=Path, metavar="FILE", help="what libraries print; default: standard error")
    run.add_argument("--no-gate", action="store_true", help="write times without checking the results")
    run.add_argument("--retry", action="store_true", help="measure again what was refused")
    run.add_argument("--again", action="store_true", help="measure again what the file has")
    run.add_argument("--list", action="store_true", help="print the rows in their order and stop")


def words(text: str) -> tuple[str, ...]:
    """What commas separate, without empty places."""
    return tuple(word.strip() for word in text.split(",") if word.strip())
