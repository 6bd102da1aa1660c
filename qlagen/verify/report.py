"""Verdicts as rows: one for each case and output, as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from qlagen.verify.compare import Place, nonzero_past_end, output_errors, state_errors, worst_chunk
from qlagen.verify.problem import Problem

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """`error` and `budget` are those of the place where the error is the largest part of its budget."""

    spec: str
    case: str
    implementation: str
    output: str
    error: float
    budget: float
    ok: bool
    place: Place | None = None
    note: str = ""
    """What went wrong when there is no error to measure."""


def judge(problem: Problem, implementation: str, output: Array, state: Array | None) -> list[Row]:
    """Rows for o [B, T, Hv, V] and the final state [N, Hv, K, V] (None when it was not asked for)."""
    rows = [_judge_output(problem, implementation, output)]
    if state is not None:
        rows.append(_judge_state(problem, implementation, state))
    return rows


def _judge_output(problem: Problem, implementation: str, output: Array) -> Row:
    if output.shape != problem.output.shape:
        return failure(problem, implementation, "o", f"shape {output.shape}, not {problem.output.shape}")
    spans = problem.spans
    wrong = nonzero_past_end(output, spans)
    if wrong is not None:
        return failure(problem, implementation, "o", "must be zero", Place(None, wrong))
    errors = output_errors(output, problem.output, spans, problem.case.dtype)
    place = _worst(errors, problem.output_budget)
    if place is not None and place.sequence is not None:
        chunk = worst_chunk(output, problem.output, spans[place.sequence], place.head, problem.spec.chunk[0])
        place = Place(place.sequence, place.head, chunk)
    return _row(problem, implementation, "o", errors, problem.output_budget, place)


def _judge_state(problem: Problem, implementation: str, state: Array) -> Row:
    if state.shape != problem.state.shape:
        return failure(problem, implementation, "final_state", f"shape {state.shape}, not {problem.state.shape}")
    errors = state_errors(state, problem.state)
    place = _worst(errors, problem.state_budget)
    return _row(problem, implementation, "final_state", errors, problem.state_budget, place)


def failure(problem: Problem, implementation: str, output: str, note: str, place: Place | None = None) -> Row:
    """A row for an output that is wrong beyond measure, or could not be compared."""
    return Row(problem.spec.name, problem.case.name, implementation, output, math.inf, 0.0, False, place, note)


def _worst(errors: Array, budget: Array) -> Place | None:
    if not errors.size:
        return None
    sequence, head = np.unravel_index(int(np.argmax(errors / budget)), errors.shape)
    return Place(int(sequence), int(head))


def _row(problem: Problem, implementation: str, output: str, errors: Array, budget: Array, place: Place | None) -> Row:
    at = (0, 0) if place is None or place.sequence is None else (place.sequence, place.head)
    error, allowed = (float(errors[at]), float(budget[at])) if errors.size else (0.0, 0.0)
    return Row(problem.spec.name, problem.case.name, implementation, output, error, allowed, error <= allowed, place)


def as_json(rows: Iterable[Row]) -> str:
    """A JSON list of {spec, case, implementation, output, error, budget, ok, sequence, head, chunk, note}.

    `error` is null when an output is not finite or could not be compared.
    """
    return json.dumps([_fields(row) for row in rows], indent=1)


def _fields(row: Row) -> dict[str, object]:
    place = row.place
    return {
        "spec": row.spec,
        "case": row.case,
        "implementation": row.implementation,
        "output": row.output,
        "error": row.error if math.isfinite(row.error) else None,
        "budget": row.budget,
        "ok": row.ok,
        "sequence": place.sequence if place else None,
        "head": place.head if place else None,
        "chunk": place.chunk if place else None,
        "note": row.note,
    }


COLUMNS = ("spec", "case", "implementation", "output", "error", "budget", "", "worst")


def as_table(rows: Sequence[Row]) -> str:
    """The rows in columns, and a last line that counts them."""
    cells = [COLUMNS, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(COLUMNS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    failed = sum(not row.ok for row in rows)
    return "\n".join([*lines, f"{len(rows) - failed} within budget, {failed} not"])


def _cells(row: Row) -> tuple[str, ...]:
    worst = ", ".join(filter(None, (str(row.place) if row.place else "", row.note)))
    error, budget = f"{row.error:.2e}", f"{row.budget:.2e}"
    return (row.spec, row.case, row.implementation, row.output, error, budget, "ok" if row.ok else "FAILED", worst)


def exit_status(rows: Sequence[Row]) -> int:
    """0 when all is within budget, 1 when something is not or nothing was checked."""
    return 0 if rows and all(row.ok for row in rows) else 1
