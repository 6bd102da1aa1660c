"""``qlagen verify``: the generated library against the float64 token recurrence."""

from __future__ import annotations

import argparse
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qlagen.algebra.cache import derive_cached
from qlagen.cli.output import print_lines, progress, spec_paths
from qlagen.errors import QlagenError
from qlagen.program.kernel_form import kernel_form
from qlagen.spec.load import load_specs
from qlagen.spec.model import OpSpec
from qlagen.verify.cases import SETS, cases_for
from qlagen.verify.library import verify_problem
from qlagen.verify.problem import Problem, make_problems
from qlagen.verify.report import Row, as_json, as_table, exit_status

DEFAULT_CASES = "quick"


def run(options: argparse.Namespace) -> int:
    """0 when everything is within budget, 1 when something is not or nothing was checked."""
    specs = load_specs(spec_paths(options.specs))
    library = import_library(options.library)
    rows: list[Row] = []
    with progress("verifying") as say:
        for spec in specs:
            rows += _verify(spec, library, options, say)
    print_lines(as_json(rows) if options.json else as_table(rows))
    return exit_status(rows)


def chosen_problems(
    spec: OpSpec, options: argparse.Namespace, default: str, say: Callable[[str], None]
) -> tuple[Problem, ...]:
    """Oracle and budgets of the cases that the arguments ask for and that apply to the spec."""
    found = cases_for(spec, SETS[options.cases or default])
    cases = [case for case in found if not options.case or any(text in case.name for text in options.case)]
    say(f"{spec.name}: oracle and budgets of {len(cases)} cases")
    return make_problems(spec, kernel_form(derive_cached(spec)), cases, options.seed, options.jobs)


def import_library(folder: Path) -> Any:
    """The module `qla_ops` of a generated library, whichever other one is installed. Raises E-LIBRARY."""
    source = folder.absolute() / "src"
    if not (source / "qla_ops" / "__init__.py").is_file():
        hints = ["run `qlagen build` first, or name the library with --library"]
        raise QlagenError("E-LIBRARY", f"{folder} holds no generated library", hints=hints)
    if str(source) not in sys.path:
        sys.path.insert(0, str(source))
    try:
        return importlib.import_module("qla_ops")
    except ImportError as fault:
        hints = ["install torch, for example with pip install 'qlagen[kernels]'"]
        raise QlagenError("E-LIBRARY", f"the library cannot be imported: {fault}", hints=hints) from fault


def _verify(spec: OpSpec, library: Any, options: argparse.Namespace, say: Callable[[str], None]) -> list[Row]:
    operator = getattr(library, f"chunk_{spec.name}", None)
    if operator is None:
        hints = ["build the library from the same specs"]
        raise QlagenError("E-LIBRARY", f"{options.library} has no chunk_{spec.name}", hints=hints)
    problems = chosen_problems(spec, options, DEFAULT_CASES, say)
    rows: list[Row] = []
    for index, problem in enumerate(problems):
        say(f"{spec.name}: {problem.case.name} ({index + 1} of {len(problems)})")
        implementation = _implementation(operator, problem, options)
        chosen = functools.partial(operator, impl=implementation)
        rows += verify_problem(chosen, problem, implementation, options.device)
    return rows


def _implementation(operator: Any, problem: Any, options: argparse.Namespace) -> str:
    """With ``auto`` the kernels wherever they can take the case."""
    if options.impl != "auto":
        return str(options.impl)
    from qlagen.verify.library import torch_arguments

    usable, _ = operator.can_use(**torch_arguments(problem, options.device))
    return "hopper" if usable else "reference"
