"""Schedules of the three specs' kernels, built once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from qlagen.algebra.cache import derive_cached
from qlagen.program.ir import Load, Program
from qlagen.program.plan import build_plan
from qlagen.schedule.build import build_schedule
from qlagen.schedule.model import Options, Role, Schedule
from qlagen.schedule.options import ScheduleFile, load_options
from qlagen.schedule.target import Target, load_target
from qlagen.schedule.variants import fastest_schedules
from qlagen.spec.load import load_spec
from qlagen.spec.model import OpSpec
from tests.program.examples import DIMS, PLANS

ROOT = Path(__file__).parents[2]


def _parallel(program: Program) -> tuple[str, ...]:
    several = any(isinstance(o, Load) and o.tensor.head == "key" for o in program.operations)
    return ("tile", "single", *(("twin", "pair") if several else ()))


KERNELS = [
    (operator, program.name, variant)
    for operator, plan in PLANS.items()
    for program in plan.programs
    for variant in (_parallel(program) if program.carry is None else ("v128", "v64"))
] + [(operator, "segment", variant) for operator in PLANS for variant in ("v128", "v64")]
"""Operator, program and variant of every kernel. `single` is the first alternative that does one head at a time."""


@cache
def schedule_file() -> ScheduleFile:
    return load_options(ROOT / "specs" / "schedules" / "sm_90a.toml")


@cache
def target() -> Target:
    return load_target("sm_90a")


def program(operator: str, name: str) -> Program:
    """A program by name; of a segment's program the first form."""
    if name == "segment":
        return segment_form(operator, 1)
    return next(p for p in PLANS[operator].programs if p.name == name)


@cache
def spec(operator: str) -> OpSpec:
    return load_spec(ROOT / "specs" / f"{operator}.toml")


@cache
def segment_forms(operator: str) -> tuple[Program, ...]:
    """The programs for the maps of an operator's segments."""
    return build_plan(derive_cached(spec(operator))).segment_forms


def segment_form(operator: str, number: int) -> Program:
    """One of them, counted from 1."""
    return segment_forms(operator)[number - 1]


def variant(name: str) -> Options:
    """Options by variant name, for V = 128."""
    file = schedule_file()
    single = (replace(o, name="single") for o in file.chunk_parallel if o.heads == 1)
    options = next(o for o in (*file.carried, *file.chunk_parallel, *single) if o.name == name)
    return options if options.value_tile else replace(options, value_tile=128)


@cache
def kernel(operator: str, name: str, variant_name: str) -> Schedule:
    """As the schedule file has it; of a segment's program the fastest form."""
    if name == "segment":
        made = fastest_schedules(segment_forms(operator), dict(DIMS), schedule_file(), target())
        return next(schedule for schedule in made if schedule.options.name == variant_name)
    return build(program(operator, name), variant_name)


def build(program: Program, variant_name: str, dims: Mapping[str, int] | None = None, **changes: object) -> Schedule:
    """A schedule of any program with a named variant, some of its options changed."""
    options = replace(variant(variant_name), **changes)  # type: ignore[arg-type]
    return build_schedule(program, dims or dict(DIMS), options, target())


def role(schedule: Schedule, name: str) -> Role:
    return next(role for role in schedule.roles if role.name == name)


def order(schedule: Schedule, name: str) -> list[str]:
    """A role's body in short: step names (products with a star), wait(n), ?barrier, !barrier, fence, sync, ring."""
    return [
        {
            "step": f"{i.step.name}{'*' if i.step.kind == 'gemm' else ''}" if i.step else "",
            "wait_groups": f"wait({i.groups})",
            "wait": f"?{i.barrier}",
            "arrive": f"!{i.barrier}",
        }.get(i.kind, i.ring or i.kind)
        for i in role(schedule, name).body
    ]
