"""Which stage is to blame when the chunk stages are not the token recurrence.

A stage is a suspect when some other value of it alone would make every output right. That value is sought exactly:
outputs are affine in almost every stage, so it solves linear equations over a prime field. It may depend on what the
stage depends on, and on up to two inputs more in case the fault is that they are missing. All other inputs are redrawn
and one value has to serve all draws: the more are redrawn, the stronger the evidence. With a single fault, the guilty
stage is among the suspects, unless outputs are not affine in it or it lacks more than two inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from qlagen.algebra.build import build_form
from qlagen.algebra.derivation import Form
from qlagen.algebra.evaluate import evaluate
from qlagen.algebra.fields import Array, PrimeField
from qlagen.algebra.ir import Node, depends_on, input_node
from qlagen.algebra.trial import Mismatch, Point, draw_point, draw_prime, find_mismatch, run_recurrence
from qlagen.errors import QlagenError
from qlagen.spec.model import OpSpec

SMALL = 4
"""Size of K and V while a fault is narrowed down; C is at most one less, so that products with keys lose nothing."""
DRAWS = 3
MISSING = 2
"""Most inputs that a guilty stage may lack."""
_UNKNOWN = "?"
_SEED = 20


@dataclass(frozen=True)
class Suspect:
    """`multiple`: the repaired value is a fixed number times the present one, so a sign or factor where the stage is
    used may be the fault instead. `missing`: inputs that the repaired value needs and the stage does not depend on.
    `redrawn`: how many inputs were redrawn."""

    name: str
    index: int
    multiple: bool
    missing: tuple[str, ...]
    redrawn: int

    @property
    def rank(self) -> tuple[int, ...]:
        """Small for the likely: evidence first. Of equals the later stage: an earlier one would have to mean more than
        it says."""
        return (self.multiple, -self.redrawn, len(self.missing), -self.index)


def proof_error(spec: OpSpec, form: Form, sizes: Mapping[str, int], mismatch: Mismatch) -> QlagenError:
    """The error for a form that differs from the recurrence, pointing at the stage that is most likely wrong."""
    chunk, first = _smallest_chunk(spec, form, sizes, mismatch)
    found = suspects(spec, _small_sizes(spec, min(max(chunk, 3), SMALL - 1)))
    blamed = found[0].name if found else (spec.state_output if first.state else spec.output)
    where = (
        f"token {first.row}, column {first.column}" if not first.state else f"row {first.row}, column {first.column}"
    )
    result = f"the next state (stage {spec.state_output})" if first.state else f"the output o (stage {spec.output})"
    message = (
        f"stage {blamed!r} is wrong: with a chunk of {chunk} token{'s' if chunk > 1 else ''}, {result} is not what "
        f"[recurrence] gives; first difference at {where}"
    )
    other = spec.output if first.state else spec.state_output
    notes = [f"stage {other!r} differs too" if first.both else f"stage {other!r} is right"]
    notes.append(_explain(found, blamed))
    notes.append(f"exact arithmetic at C={sizes['C']}, " + ", ".join(f"{d}={n}" for d, n in spec.dims))
    hints = [f"correct stage {blamed!r}, or [recurrence] if the stages are what you mean"]
    return QlagenError("E-PROOF", message, span=spec.stage(blamed).span, notes=notes, hints=hints)


def _explain(found: tuple[Suspect, ...], blamed: str) -> str:
    if not found:
        return "no change of a single stage makes all outputs right: more than one stage is wrong"
    needs = f", one that depends on {' and '.join(found[0].missing)}," if found[0].missing else ""
    others = [repr(s.name) for s in found[1:] if not s.missing]
    also = f"; so would another value of {' or '.join(others)}" if others else ""
    return f"another value of {blamed!r} alone{needs} would make all outputs right{also}"


def _small_sizes(spec: OpSpec, chunk: int) -> dict[str, int]:
    return {"1": 1, "C": chunk, **{d: min(n, SMALL) for d, n in spec.dims}}


def _smallest_chunk(spec: OpSpec, form: Form, sizes: Mapping[str, int], mismatch: Mismatch) -> tuple[int, Mismatch]:
    """The shortest chunk that shows the fault, and its first difference."""
    generator = np.random.default_rng(_SEED)
    for chunk in range(1, SMALL + 1):
        found = find_mismatch(spec, form, _small_sizes(spec, chunk), generator)
        if found is not None:
            return chunk, found
    return sizes["C"], mismatch


def suspects(spec: OpSpec, sizes: Mapping[str, int]) -> tuple[Suspect, ...]:
    """Every stage of which another value alone would repair all outputs, the most likely first."""
    generator = np.random.default_rng(_SEED)
    stages = build_form(spec).stages
    found = (_suspect(spec, index, *stage, sizes, generator) for index, stage in enumerate(stages))
    return tuple(sorted((s for s in found if s is not None), key=lambda s: s.rank))


def _suspect(
    spec: OpSpec, index: int, name: str, node: Node, sizes: Mapping[str, int], generator: np.random.Generator
) -> Suspect | None:
    field = PrimeField(draw_prime(generator))
    base = draw_point(spec, sizes, field.prime, generator)
    others = [n for n in base.values if n not in depends_on(node)]
    for missing in (m for count in range(MISSING + 1) for m in combinations(others, count)):
        kept = depends_on(node) | set(missing)
        points = [base, *(draw_point(spec, sizes, field.prime, generator, kept, base) for _ in range(DRAWS - 1))]
        value = _repaired(spec, name, node, points, sizes, field)
        if value is not None:
            present = evaluate((node,), base.values, sizes["C"], field)[0]
            multiple = _is_multiple(value, present, field.prime)
            return Suspect(name, index, multiple, missing, len(others) - len(missing))
    return None


def _repaired(
    spec: OpSpec, name: str, node: Node, points: list[Point], sizes: Mapping[str, int], field: PrimeField
) -> Array | None:
    """The value of a stage with which the outputs are right at all points, or None."""
    unknown = input_node(_UNKNOWN, node.shape)
    form = build_form(spec, {name: unknown})
    shape = [sizes[d] for d in node.shape]
    rows, targets = [], []
    for point in points:
        system = _affine_system(form, point, shape, sizes, field)
        if system is None:
            return None
        matrix, constant = system
        want = np.concatenate([x.ravel() for x in run_recurrence(spec, point, sizes["C"], field)])
        rows.append(matrix)
        targets.append((want - constant) % field.prime)
    solution = solve_modular(np.concatenate(rows), np.concatenate(targets), field.prime)
    return None if solution is None else solution.reshape(shape)


def _affine_system(
    form: Form, point: Point, shape: list[int], sizes: Mapping[str, int], field: PrimeField
) -> tuple[Array, Array] | None:
    """Outputs = matrix @ unknown + constant at a point; None when they are not affine in the unknown."""

    def outputs(value: Array) -> Array:
        env = {**point.values, _UNKNOWN: value.reshape(shape)}
        return np.concatenate([x.ravel() for x in evaluate((form.output, form.state), env, sizes["C"], field)])

    entries = shape[0] * shape[1]
    constant = outputs(np.zeros(entries, dtype=np.int64))
    units = np.eye(entries, dtype=np.int64)
    matrix = np.stack([(outputs(unit) - constant) % field.prime for unit in units], axis=1)
    probe = np.arange(2, entries + 2, dtype=np.int64) ** 2
    predicted = (field.product(matrix, probe[:, None])[:, 0] + constant) % field.prime
    return (matrix, constant) if np.array_equal(outputs(probe), predicted) else None


def solve_modular(matrix: Array, target: Array, prime: int) -> Array | None:
    """A solution of matrix @ x = target modulo a prime, or None when there is none; free unknowns are zero."""
    table = np.concatenate([matrix, target[:, None]], axis=1) % prime
    pivots: list[int] = []
    for column in range(matrix.shape[1]):
        row = len(pivots)
        nonzero = np.flatnonzero(table[row:, column])
        if not len(nonzero):
            continue
        table[[row, row + nonzero[0]]] = table[[row + nonzero[0], row]]
        table[row] = table[row] * pow(int(table[row, column]), -1, prime) % prime
        for other in range(len(table)):
            if other != row and table[other, column]:
                table[other] = (table[other] - table[other, column] * table[row]) % prime
        pivots.append(column)
    if np.any(table[len(pivots) :, -1]):
        return None
    solution = np.zeros(matrix.shape[1], dtype=np.int64)
    solution[pivots] = table[: len(pivots), -1]
    return solution


def _is_multiple(value: Array, present: Array, prime: int) -> bool:
    half = (prime + 1) // 2
    return any(np.array_equal(value, factor * present % prime) for factor in (-2, -1, 2, half, prime - half))
