"""One operator through all stages: spec, derivation, plan, schedules, kernel texts and the portable program."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from qlagen.algebra.cache import derive_cached
from qlagen.algebra.derivation import Derivation
from qlagen.emit.kernel import emit_kernel
from qlagen.emit.portable import emit_portable
from qlagen.errors import QlagenError
from qlagen.package.kernel_files import KernelFile, read_kernel_file
from qlagen.program.ir import Plan
from qlagen.program.kernels import UNSUPPORTED
from qlagen.program.plan import build_plan, plan_programs
from qlagen.schedule.model import Schedule
from qlagen.schedule.options import ScheduleFile, load_options
from qlagen.schedule.target import load_target
from qlagen.schedule.variants import build_schedules, fastest_schedules
from qlagen.spec.model import OpSpec

DIGEST_LENGTH = 16
"""Hexadecimal digits of a hash in a banner."""


@dataclass(frozen=True)
class CompiledOperator:
    """Everything of one operator that the library needs."""

    spec: OpSpec
    derivation: Derivation
    plan: Plan
    schedules: tuple[tuple[Schedule, ...], ...]
    """For each launch its variants; empty for a library of portable implementations only."""
    kernels: tuple[tuple[KernelFile, ...], ...]
    """For each schedule its kernel file."""
    portable: str
    """Text of the portable module."""
    target: str
    obstacle: str = ""
    """Why kernels cannot run the operator; empty when they can."""


def compile_operator(
    spec: OpSpec, target: str, schedules: ScheduleFile, progress: Callable[[str], None] = lambda _: None
) -> CompiledOperator:
    """Runs the stages; `progress` is told what comes next. An operator that kernels cannot run yet has none.

    Raises QlagenError with the code of the refusing stage.
    """
    progress(f"{spec.name}: derive")
    derivation = derive_cached(spec)
    progress(f"{spec.name}: plan and schedule")
    try:
        plan = build_plan(derivation)
    except QlagenError as fault:
        if fault.code != UNSUPPORTED:
            raise
        portable = emit_portable(derivation)
        return CompiledOperator(spec, derivation, plan_programs(derivation), (), (), portable, target, fault.message)
    scheduled = schedule_plan(plan, target, schedules)
    progress(f"{spec.name}: emit")
    kernels = tuple(tuple(_emit(schedule, spec, target) for schedule in variants) for variants in scheduled)
    return CompiledOperator(spec, derivation, plan, scheduled, kernels, emit_portable(derivation), target)


def schedule_plan(plan: Plan, target: str, schedules: ScheduleFile) -> tuple[tuple[Schedule, ...], ...]:
    """For each launch, in order, the schedules of all variants that fit it: of the plan's programs and, before the last
    one, of the fastest of its segment forms, where there are any."""
    facts, dims = load_target(target), dict(plan.dims)
    launches = [build_schedules(program, dims, schedules, facts) for program in plan.programs]
    segments = fastest_schedules(plan.segment_forms, dims, schedules, facts)
    launches[-1:-1] = [segments] if segments else []
    return tuple(launches)


def load_schedules(spec: OpSpec, target: str, folder: Path | None = None) -> ScheduleFile:
    """The schedule file of a target: ``<target>.toml`` in `folder`, by default ``schedules`` beside the spec."""
    chosen = folder if folder is not None else Path(spec.file).parent / "schedules"
    return load_options(chosen / f"{target}.toml")


def _emit(schedule: Schedule, spec: OpSpec, target: str) -> KernelFile:
    return read_kernel_file(emit_kernel(schedule, spec.digest[:DIGEST_LENGTH], target), spec.name)
