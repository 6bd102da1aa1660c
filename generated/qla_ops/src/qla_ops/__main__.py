"""``python -m qla_ops build``: builds kernels ahead of time. Needs tilelang and nvcc, no GPU."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

import qla_ops
from qla_ops.runtime.builder import Built
from qla_ops.runtime.choose import OPERATORS
from qla_ops.runtime.environment import cache_folder
from qla_ops.runtime.errors import BuildError
from qla_ops.runtime.inspecting import build_kernel
from qla_ops.runtime.loader import needed
from qla_ops.runtime.toolchain import missing_tools


def main(arguments: Sequence[str] | None = None) -> int:
    """0: everything is built. 1: a kernel failed. 2: bad usage, or the tools are missing."""
    options = _parser().parse_args(arguments)
    unknown = sorted(set(options.operator) - set(OPERATORS))
    if unknown:
        print(f"unknown operator {', '.join(unknown)}; allowed: {', '.join(sorted(OPERATORS))}", file=sys.stderr)
        return 2
    missing = missing_tools()
    if missing:
        print(f"kernels cannot be built here: {missing}", file=sys.stderr)
        return 2
    return _build(_targets(options), options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m qla_ops", description=f"qla_ops {qla_ops.__version__}")
    commands = parser.add_subparsers(dest="command", required=True)
    build = commands.add_parser("build", help="build kernels into the cache or another folder")
    build.add_argument("--all", action="store_true", help="every data type (bfloat16 alone without it)")
    build.add_argument("--operator", action="append", default=[], metavar="NAME", help="only this operator; repeatable")
    build.add_argument("--output", type=Path, metavar="DIR", help="folder to build into; default: the cache")
    build.add_argument("--jobs", type=int, default=1, metavar="N", help="kernels that are built at the same time")
    build.add_argument("--json", action="store_true", help="one JSON list on stdout")
    return parser


def _targets(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Kernel names and data types; a kernel that several operators share once."""
    chosen = [item for name, item in sorted(OPERATORS.items()) if not options.operator or name in options.operator]
    types = ("bfloat16", "float16") if options.all else ("bfloat16",)
    pairs = [pair for operator in chosen for data_type in types for pair in needed(operator, data_type)]
    return list(dict.fromkeys((kernel.name, data_type) for kernel, data_type in pairs))


def _build(targets: list[tuple[str, str]], options: argparse.Namespace) -> int:
    folder: Path = options.output or cache_folder()
    rows, failures = [], 0
    # A fresh process for each worker: the compiler's state does not survive a fork.
    pool = ProcessPoolExecutor(max(1, options.jobs), mp_context=multiprocessing.get_context("spawn"))
    with pool:
        waiting = {pool.submit(build_kernel, name, kind, folder): (name, kind) for name, kind in targets}
        for future in as_completed(waiting):
            try:
                built = future.result()
            except BuildError as fault:
                failures += 1
                print(fault, file=sys.stderr)
                continue
            rows.append({**asdict(built.report), "path": str(built.path), "bytes": built.path.stat().st_size})
            if not options.json:
                print(_line(built), flush=True)
    if options.json:
        print(json.dumps(sorted(rows, key=lambda row: (row["kernel"], row["data_type"])), indent=1))
    return 1 if failures else 0


def _line(built: Built) -> str:
    report = built.report
    faults = f"{report.spill_bytes} B spilled, {report.serialised_wgmma} serialised wgmma"
    return f"{report.kernel} {report.data_type}: {report.registers} registers, {faults}, {report.seconds:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
