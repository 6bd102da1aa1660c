"""All schedules of one program: every variant of a schedule file, each by the first of its alternatives that fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from qlagen.errors import QlagenError
from qlagen.program.ir import Program
from qlagen.schedule.build import build_schedule
from qlagen.schedule.model import Options, Schedule
from qlagen.schedule.options import ScheduleFile
from qlagen.schedule.target import Target

BUDGETS = ("E-SHARED", "E-ESTIMATE", "E-REGISTERS", "E-MOVERS", "E-TILE", "E-HEADS")
"""Codes that say that a program does not fit some options, not that it cannot be scheduled."""
FORMS = ("E-ORIENT", "E-PLACE", "E-VARIANT")
"""Codes that say that a program cannot be scheduled in this form, or for these sizes."""


def build_schedules(
    program: Program, dims: Mapping[str, int], file: ScheduleFile, target: Target
) -> tuple[Schedule, ...]:
    """The schedules of a program, in the file's order. A variant none of whose alternatives fits is left out.

    Raises E-VARIANT when no value tile divides V, the first alternative's own error when no variant fits at all, and
    every error of `build_schedule` that other options would not cure.
    """
    built = []
    refusals: list[QlagenError] = []
    for alternatives in file.alternatives(program, dims):
        schedule = _first_that_fits(program, dims, alternatives, target, refusals)
        if schedule is not None:
            built.append(schedule)
    if not built:
        raise refusals[0]
    return tuple(built)


def fastest_schedules(
    forms: Sequence[Program], dims: Mapping[str, int], file: ScheduleFile, target: Target
) -> tuple[Schedule, ...]:
    """For every variant the schedule of that form, of several for the same, which takes the fewest clocks per
    iteration and CTA of an SM in the model, earlier ones in case of doubt; or of the form that the file's entry names.

    Empty when no form can be scheduled; raises errors of `build_schedule` that neither other options nor another form
    would cure.
    """
    found: dict[str, Schedule] = {}
    for number, form in enumerate(forms, 1):
        for schedule in _schedules_of_form(form, number, dims, file, target):
            best = found.get(schedule.options.name)
            if best is None or pace(schedule) < pace(best):
                found[schedule.options.name] = schedule
    return tuple(found.values())


def _schedules_of_form(
    form: Program, number: int, dims: Mapping[str, int], file: ScheduleFile, target: Target
) -> tuple[Schedule, ...]:
    entries = tuple(entry for entry in file.segment if entry.form in (0, number))
    if file.segment and not entries:
        return ()
    try:
        return build_schedules(form, dims, replace(file, segment=entries), target)
    except QlagenError as error:
        if error.code not in (*BUDGETS, *FORMS):
            raise
        return ()


def pace(schedule: Schedule) -> float:
    """Clocks per iteration of a CTA, when an SM has as many as fit."""
    return schedule.busiest_clocks / schedule.options.ctas_per_sm


def _first_that_fits(
    program: Program,
    dims: Mapping[str, int],
    alternatives: Iterable[Options],
    target: Target,
    refusals: list[QlagenError],
) -> Schedule | None:
    for options in alternatives:
        try:
            return build_schedule(program, dims, options, target)
        except QlagenError as error:
            if error.code not in BUDGETS:
                raise
            refusals.append(_with_variant(program, options, error))
    return None


def _with_variant(program: Program, options: Options, error: QlagenError) -> QlagenError:
    message = f"program {program.name} of {program.operator}, variant {options.name}: {error.message}"
    return QlagenError(error.code, message, span=error.span, notes=error.notes, hints=error.hints)
