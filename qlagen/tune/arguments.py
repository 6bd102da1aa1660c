"""The arguments of `qlagen tune`, apart from what they start: `--help` needs no stage of the compiler."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from qlagen.bench.arguments import RESULTS, words

BUDGET = 600.0
STALL_SECONDS = 60.0
"""No sign of life for this long means that a kernel hangs; everything is built before it is measured."""
ROWS = "16:64/1x32768,16:64/4x8192,16:32/1x32768,16:32/4x8192,2:8/1x32768"
"""Rows in which the GPU is full and rows in which it is not; an entry is measured in those that run its kernels."""
_TEXT = "find faster schedule parameters on this GPU and write them into the schedule file"
_DETAILS = f"""
Candidates are entries of the schedule file with one to three parameters changed. Those that the scheduler accepts are
built, checked against a float64 reference and timed in turn with the entry as it is. An entry is replaced when a
candidate is faster, over all rows that run its kernels, by more than the spread of its own measurements; every other
byte of the file stays. What became of each candidate is written to {RESULTS}/tune-GPU-DATE.jsonl.
"""


def register(subparsers: Any) -> argparse.ArgumentParser:
    """Add `tune` to the subparsers of `qlagen`; `qlagen.cli.tune` runs it."""
    parser: argparse.ArgumentParser = subparsers.add_parser("tune", help=_TEXT, description=f"{_TEXT}. {_DETAILS}")
    parser.set_defaults(module="tune")
    parser.add_argument("spec", nargs="?", type=Path, metavar="SPEC", help="spec file; default: the benchmark's")
    parser.add_argument("--part", action="append", default=[], metavar="NAME", help="only entries of [[NAME]]")
    parser.add_argument("--variant", action="append", default=[], metavar="NAME", help="only entries of this name")
    parser.add_argument("--budget", type=float, default=BUDGET, metavar="SECONDS", help=f"default: {BUDGET:g}")
    parser.add_argument("--rows", type=words, default=words(ROWS), metavar="LIST", help=f"default: {ROWS}")
    cpus = os.cpu_count() or 2
    parser.add_argument("--processes", type=int, default=max(1, cpus - 2), metavar="N", help="build in so many")
    parser.add_argument("--dry-run", action="store_true", help="list the candidates and stop; needs no GPU")
    parser.add_argument("--schedule", type=Path, metavar="FILE", help="default: schedules/TARGET.toml beside the spec")
    parser.add_argument("--target", default="sm_90a", metavar="NAME", help="for the default of --schedule")
    parser.add_argument("--results", type=Path, metavar="FILE", help=f"default: {RESULTS}/tune-GPU-DATE.jsonl")
    parser.add_argument("--date", help="the DATE of the file's name and of the comment; default: today")
    parser.add_argument("--work", type=Path, metavar="DIR", help="keep libraries and built kernels here")
    parser.add_argument("--stall", type=float, default=STALL_SECONDS, help="seconds after which a silent kernel hangs")
    parser.add_argument("--log", type=Path, metavar="FILE", help="what libraries print; default: standard error")
    return parser
