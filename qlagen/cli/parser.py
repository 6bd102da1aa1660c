"""The arguments of every command."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeAlias

from qlagen import __version__
from qlagen.bench import arguments as bench
from qlagen.tune import arguments as tune

SPECS = Path("specs")
LIBRARY = Path("generated/qla_ops")
TARGET = "sm_90a"
STAGES = ("spec", "algebra", "program", "schedule", "kernel", "portable")
CASE_SETS = ("small", "quick", "portable", "gpu")


def make_parser() -> argparse.ArgumentParser:
    """The parser; each command sets `module`, the module of this package whose `run` it is."""
    parser = argparse.ArgumentParser(
        prog="qlagen", description="A kernel compiler for chunked linear-attention operators."
    )
    parser.add_argument("--version", action="version", version=f"qlagen {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for add in (_check, _explain, _show, _build, _verify, _simulate, _targets):
        add(commands)
    bench.register(commands)
    tune.register(commands)
    return parser


_Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _command(commands: _Commands, name: str, module: str, text: str) -> argparse.ArgumentParser:
    parser = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
    parser.set_defaults(module=module)
    return parser


def _specs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("specs", nargs="*", type=Path, metavar="SPEC", help=f"spec files; default: {SPECS}/*.toml")


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="machine-readable output on stdout")


def _target(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--target", default=TARGET, metavar="NAME", help=f"target GPU; default: {TARGET}")
    parser.add_argument(
        "--schedules", type=Path, metavar="DIR", help="schedule files; default: schedules/ beside the spec"
    )


def _check(commands: _Commands) -> None:
    parser = _command(commands, "check", "check", "parse and type specs, and prove that stages equal the recurrence")
    _specs(parser)
    _json(parser)


def _explain(commands: _Commands) -> None:
    text = "say which rewrites an operator's form came from, and what each saved"
    parser = _command(commands, "explain", "inspect", text)
    parser.add_argument("specs", nargs=1, type=Path, metavar="SPEC", help="spec file")
    parser.add_argument("--backward", action="store_true", help="the backward pass as well")
    parser.add_argument("--group", type=_count, default=1, metavar="R", help="value heads per key head; default: 1")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="plot the Pareto sets into this file")
    parser.add_argument("--latex", action="store_true", help="print the chosen forms as LaTeX instead")
    _target(parser)
    _json(parser)


def _count(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no count: it must be 1 or more")
    return number


def _show(commands: _Commands) -> None:
    parser = _command(commands, "show", "inspect", "print a stage of the compiler as text")
    parser.add_argument("specs", nargs=1, type=Path, metavar="SPEC", help="spec file")
    parser.add_argument("--stage", choices=STAGES, default="program", help="default: program")
    parser.add_argument("--kernel", metavar="NAME", help="of schedules and kernels only this one, such as forward_v64")
    _target(parser)
    _json(parser)


def _build(commands: _Commands) -> None:
    parser = _command(commands, "build", "build", "generate the operator library from specs")
    _specs(parser)
    parser.add_argument("--output", type=Path, default=LIBRARY, metavar="DIR", help=f"the library; default: {LIBRARY}")
    parser.add_argument(
        "--check", action="store_true", help="write nothing; list stale files and exit 1 if there are any"
    )
    _target(parser)
    _json(parser)


def _library(parser: argparse.ArgumentParser) -> None:
    _specs(parser)
    parser.add_argument(
        "--library", type=Path, default=LIBRARY, metavar="DIR", help=f"generated library; default: {LIBRARY}"
    )
    parser.add_argument("--cases", choices=CASE_SETS, help="the set of cases")
    parser.add_argument(
        "--case", action="append", default=[], metavar="TEXT", help="only cases whose name has this in it"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the inputs; default: 0")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="cases prepared at the same time; default: 1")
    _json(parser)


def _verify(commands: _Commands) -> None:
    text = "compare the generated library with the float64 token recurrence"
    parser = _command(commands, "verify", "verify", text)
    _library(parser)
    parser.add_argument(
        "--impl", choices=("auto", "hopper", "reference"), default="auto", help="default: what runs there"
    )
    parser.add_argument("--device", default="cpu", metavar="NAME", help="torch device; default: cpu")


def _simulate(commands: _Commands) -> None:
    text = "run the generated kernels in the CPU emulator and compare them with the float64 token recurrence"
    parser = _command(commands, "simulate", "simulate", text)
    _library(parser)
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="only variants with this in the name"
    )
    parser.add_argument("--eager", action="store_true", help="one order of execution only, the fastest check")


def _targets(commands: _Commands) -> None:
    parser = _command(commands, "targets", "targets", "list the targets, and what is compiled into kernels for each")
    _json(parser)
