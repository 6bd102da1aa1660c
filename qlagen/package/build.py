"""Builds the operator library: every spec through every stage, then the files that differ are written."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from qlagen.errors import QlagenError
from qlagen.package.compile import CompiledOperator, compile_operator
from qlagen.package.tree import library_files
from qlagen.package.write import BuildReport, write_tree
from qlagen.spec.model import OpSpec


def build_library(
    specs: Iterable[OpSpec],
    out_dir: Path,
    check: bool = False,
    *,
    target: str = "sm_90a",
    progress: Callable[[str], None] = lambda _: None,
) -> BuildReport:
    """Generates the library for `specs` in `out_dir`; with `check` only says which files are stale.

    `progress` is told each operator's name before it is compiled. Raises what the stages raise, E-OUTPUT when the
    folder cannot be written, E-EMPTY without a spec.
    """
    compiled: list[CompiledOperator] = []
    for spec in specs:
        progress(spec.name)
        compiled.append(compile_operator(spec, target))
    if not compiled:
        raise QlagenError("E-EMPTY", "there is no spec to build a library from", hints=["name spec files"])
    return write_tree(library_files(tuple(compiled)), out_dir, check=check)
