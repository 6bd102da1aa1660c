"""Emitted texts of the three specs' kernels, and small edits of them."""

from __future__ import annotations

import ast
from dataclasses import replace
from functools import cache

from qlagen.emit.kernel import emit_kernel
from qlagen.schedule.build import build_schedule
from qlagen.schedule.model import Schedule
from tests.schedule import cases

SPEC_DIGEST = "0123456789ab"
KERNELS = cases.KERNELS


@cache
def emitted(operator: str, program: str, variant: str) -> str:
    return emit_kernel(cases.kernel(operator, program, variant), SPEC_DIGEST)


@cache
def persistent(operator: str, program: str, variant: str) -> tuple[str, Schedule]:
    """A carried kernel on a persistent grid, as text and schedule."""
    schedule = cases.kernel(operator, program, variant)
    options = replace(schedule.options, persistent=True)
    built = build_schedule(schedule.program, dict(schedule.dims), options, cases.target())
    return emit_kernel(built, SPEC_DIGEST), built


def schedule_of(kernel: tuple[str, str, str]) -> Schedule:
    return cases.kernel(*kernel)


def constants(text: str) -> dict[str, object]:
    """Module-level literals of a kernel file."""
    found = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def prim_func(text: str) -> ast.FunctionDef:
    """The kernel's function inside `build`."""
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef) and n.decorator_list]
    assert len(functions) == 1
    return functions[0]
