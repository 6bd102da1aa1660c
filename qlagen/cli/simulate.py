"""``qlagen simulate``: the generated kernels in the CPU emulator against the float64 token recurrence."""

from __future__ import annotations

import argparse
import importlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from qlagen.cli.output import print_lines, progress, spec_paths
from qlagen.cli.verify import chosen_problems, import_library
from qlagen.errors import QlagenError
from qlagen.spec.load import load_specs
from qlagen.spec.model import OpSpec
from qlagen.verify.emulator import STANDARD_MODES, Mode
from qlagen.verify.report import Row, as_json, as_table, exit_status
from qlagen.verify.simulate import SEGMENT
from qlagen.verify.simulate_cases import Variant, simulate_variant

DEFAULT_CASES = "small"


def run(options: argparse.Namespace) -> int:
    """0 when everything is within budget, 1 when something is not or nothing was checked."""
    specs = load_specs(spec_paths(options.specs))
    import_library(options.library)
    rows: list[Row] = []
    with progress("simulating") as say:
        for spec in specs:
            rows += _simulate(spec, options, say)
    print_lines(as_json(rows) if options.json else as_table(rows))
    return exit_status(rows)


def _simulate(spec: OpSpec, options: argparse.Namespace, say: Callable[[str], None]) -> list[Row]:
    known = variants(spec.name)
    if not known:
        print(f"{spec.name}: it has no kernels, only a portable implementation", file=sys.stderr)
        return []
    chosen = [v for v in known if not options.kernel or any(text in v.name for text in options.kernel)]
    if not chosen:
        names = ", ".join(variant.name for variant in known)
        message = f"{spec.name} has no kernel variant named like {', '.join(options.kernel)}"
        raise QlagenError("E-KERNEL", message, notes=[f"variants: {names}"])
    problems = chosen_problems(spec, options, DEFAULT_CASES, say)
    modes = (Mode(),) if options.eager else STANDARD_MODES
    return [row for variant in chosen for row in simulate_variant(variant, problems, modes, say)]


def variants(operator: str) -> list[Variant]:
    """Every choice of one kernel for each launch of an operator of the imported library: with whole sequences, and with
    each kernel that makes segments of them; none for an operator that has no kernels. Raises E-LIBRARY."""
    found: Any = importlib.import_module("qla_ops.runtime.choose").OPERATORS.get(operator)
    if found is None:
        hints = ["build the library from the same specs"]
        raise QlagenError("E-LIBRARY", f"the library has no operator {operator!r}", hints=hints)
    whole = [p.variants for p in found.programs if p.variants[0].kind != SEGMENT]
    launches = list(itertools.product(*whole)) if whole else []
    for program in found.programs:
        if program.variants[0].kind == SEGMENT:
            last = itertools.cycle(whole[-1])
            first = tuple(kernels[0] for kernels in whole[:-1])
            launches += [(*first, kernel, forward) for kernel, forward in zip(program.variants, last, strict=False)]
    file: Callable[[Any], Path] = importlib.import_module("qla_ops.runtime.builder").kernel_file
    return [
        Variant("+".join(kernel.module.split(".")[-1] for kernel in kernels), tuple(map(file, kernels)))
        for kernels in launches
    ]
