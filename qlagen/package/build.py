"""Builds the operator library: every spec through every stage, then the files that differ are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from qlagen.errors import QlagenError
from qlagen.package.compile import compile_operator, load_schedules
from qlagen.package.tree import library_files
from qlagen.package.write import BuildReport, write_tree
from qlagen.spec.model import OpSpec

TARGET = "sm_90a"


def build_library(
    specs: Iterable[OpSpec],
    out_dir: Path,
    check: bool = False,
    *,
    target: str = TARGET,
    schedules: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> BuildReport:
    """Generates the library for `specs` in `out_dir`; with `check` only says which files are stale.

    `schedules` is the folder of schedule files, by default the one beside each spec. `progress` is told what comes
    next. Raises what the stages raise, E-OUTPUT when the folder cannot be written, E-EMPTY without a spec.
    """
    compiled = tuple(
        compile_operator(spec, target, load_schedules(spec, target, schedules), progress) for spec in specs
    )
    if not compiled:
        raise QlagenError("E-EMPTY", "there is no spec to build a library from", hints=["name spec files"])
    return write_tree(library_files(compiled), out_dir, check=check)
