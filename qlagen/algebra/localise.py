"""Which stage is to blame when the chunk stages are not the token recurrence.

A stage is a suspect when some other value of it alone would make every output right. That value is sought exactly:
outputs are affine in almost every stage, so it solves linear equations over a prime field. It may depend on what the
stage depends on, and on up to two inputs more in case the fault is that they are missing. All other inputs are redrawn
and one value has to serve both draws: the more are redrawn, the stronger the evidence. With a single fault, the guilty
stage is among the suspects, unless outputs are not affine in it or it lacks more than two inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
"""Size of K and V while a fault is narrowed down; C is at most one less, so that products with keys lose nothing. With
several steps per token they are larger, for the same reason."""
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
    small = _small_sizes(spec, min(max(chunk, 3), SMALL - 1))
    found = suspects(spec, small)
    apart = ("", "") if found else (_repairs(spec, small, 0), _repairs(spec, small, 1))
    blamed = found[0].name if found else apart[first.state]
    where = f"{'row' if first.state else 'token'} {first.row}, column {first.column}"
    result = f"the next state (stage {spec.state_output})" if first.state else f"the output o (stage {spec.output})"
    message = (
        f"stage {blamed!r} is wrong: with a chunk of {chunk} token{'s' if chunk > 1 else ''}, {result} is not what "
        f"[recurrence] gives; first difference at {where}"
    )
    other = spec.output if first.state else spec.state_output
    notes = [f"stage {other!r} differs too" if first.both else f"stage {other!r} is right"]
    if found:
        notes.append(_explain(found))
    elif first.both:
        notes.append(f"more than one stage is wrong: {apart[0]!r} for the output and {apart[1]!r} for the next state")
    notes.append(f"exact arithmetic at C={sizes['C']}, " + ", ".join(f"{d}={n}" for d, n in spec.dims))
    hints = [f"correct stage {blamed!r}, or [recurrence] if the stages are what you mean"]
    return QlagenError("E-PROOF", message, span=spec.stage(blamed).span, notes=notes, hints=hints)


def _explain(found: tuple[Suspect, ...]) -> str:
    blamed = found[0]
    needs = f", one that depends on {' and '.join(blamed.missing)}," if blamed.missing else ""
    others = [repr(s.name) for s in found[1:] if not s.missing]
    also = f"; so would another value of {' or '.join(others)}" if others else ""
    return f"another value of {blamed.name!r} alone{needs} would make all outputs right{also}"


def _repairs(spec: OpSpec, sizes: Mapping[str, int], part: int) -> str:
    """The stage whose other value is most likely to make one result right: that result's own stage if none is known."""
    found = suspects(spec, sizes, (part,))
    return found[0].name if found else (spec.output, spec.state_output)[part]


def _small_sizes(spec: OpSpec, chunk: int) -> dict[str, int]:
    rows = chunk * min(dict(spec.dims).get(spec.steps, 1), SMALL)
    return spec.sizes(chunk, {d: min(n, SMALL if d == spec.steps else max(SMALL, rows + 1)) for d, n in spec.dims})


def _smallest_chunk(spec: OpSpec, form: Form, sizes: Mapping[str, int], mismatch: Mismatch) -> tuple[int, Mismatch]:
    """The shortest chunk that shows the fault, and its first difference."""
    generator = np.random.default_rng(_SEED)
    for chunk in range(1, SMALL + 1):
        found = find_mismatch(spec, form, _small_sizes(spec, chunk), generator)
        if found is not None:
            return chunk, found
    return sizes["C"], mismatch


def suspects(spec: OpSpec, sizes: Mapping[str, int], parts: tuple[int, ...] = (0, 1)) -> tuple[Suspect, ...]:
    """Every stage of which another value alone would repair the results in `parts` (0: the output, 1: the next
    state), the most likely first."""
    generator = np.random.default_rng(_SEED)
    trial = _Trial(spec, sizes, PrimeField(draw_prime(generator)), parts)
    stages = build_form(spec).stages
    found = (_suspect(trial, index, *stage, generator) for index, stage in enumerate(stages))
    return tuple(sorted((s for s in found if s is not None), key=lambda s: s.rank))


@dataclass(frozen=True)
class _Trial:
    """What one search for suspects is about."""

    spec: OpSpec
    sizes: Mapping[str, int]
    field: PrimeField
    parts: tuple[int, ...]

    def draw(self, generator: np.random.Generator, kept: Collection[str] = (), base: Point | None = None) -> Point:
        return draw_point(self.spec, self.sizes, self.field.prime, generator, kept, base)

    def values(self, nodes: tuple[Node, ...], env: Mapping[str, Array]) -> list[Array]:
        return evaluate(nodes, env, self.sizes["C"], self.field, sizes=self.sizes)

    def truth(self, point: Point) -> Array:
        results = run_recurrence(self.spec, point, self.sizes, self.field)
        return np.concatenate([results[part].ravel() for part in self.parts])

    def have(self, form: Form, env: Mapping[str, Array]) -> Array:
        roots = (form.output, form.state)
        return np.concatenate([x.ravel() for x in self.values(tuple(roots[part] for part in self.parts), env)])


def _suspect(trial: _Trial, index: int, name: str, node: Node, generator: np.random.Generator) -> Suspect | None:
    form = build_form(trial.spec, {name: input_node(_UNKNOWN, node.shape)})
    shape = [trial.sizes[d] for d in node.shape]
    base = trial.draw(generator)
    system = _affine_system(trial, form, base, shape)
    others = [n for n in base.values if n not in depends_on(node)]
    for missing in (m for count in range(MISSING + 1) for m in combinations(others, count)):
        redrawn = trial.draw(generator, depends_on(node) | set(missing), base)
        value = _common_solution(system, _affine_system(trial, form, redrawn, shape), trial.field.prime)
        if value is not None:
            present = trial.values((node,), base.values)[0]
            multiple = _is_multiple(value.reshape(shape), present, trial.field.prime)
            return Suspect(name, index, multiple, missing, len(others) - len(missing))
    return None


_System = tuple[Array, Array]


def _common_solution(first: _System | None, second: _System | None, prime: int) -> Array | None:
    """A value with which the results are right at both points, or None."""
    if first is None or second is None:
        return None
    return solve_modular(np.concatenate([first[0], second[0]]), np.concatenate([first[1], second[1]]), prime)


def _affine_system(trial: _Trial, form: Form, point: Point, shape: list[int]) -> _System | None:
    """Matrix and target of the equations that make the results right at a point; None when the results are not affine
    in the unknown."""

    def results(value: Array) -> Array:
        return trial.have(form, {**point.values, _UNKNOWN: value.reshape(shape)})

    entries, prime = shape[0] * shape[1], trial.field.prime
    constant = results(np.zeros(entries, dtype=np.int64))
    units = np.eye(entries, dtype=np.int64)
    matrix = np.stack([(results(unit) - constant) % prime for unit in units], axis=1)
    probe = np.arange(2, entries + 2, dtype=np.int64) ** 2
    predicted = (trial.field.product(matrix, probe[:, None])[:, 0] + constant) % prime
    affine = np.array_equal(results(probe), predicted)
    return (matrix, (trial.truth(point) - constant) % prime) if affine else None


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
