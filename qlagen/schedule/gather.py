"""Vectors of a map that stands right behind a wait for products: to registers before the wait, where there is room.

Read in place, each entry would be fetched from shared memory while nothing is in flight, and the loads would wait for
each other where the map leaves few registers for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from qlagen.program.dims import refs
from qlagen.program.ir import Ref
from qlagen.schedule.fragments import allocate
from qlagen.schedule.issue import Line
from qlagen.schedule.model import Step, Value
from qlagen.schedule.order import Order
from qlagen.schedule.steps import RoleSteps


def gather_vectors(role: RoleSteps, order: Order, turned: bool, room: int) -> tuple[RoleSteps, Order]:
    """The order with vectors gathered before waits, and the role with their values. `turned`: the role's tiles are
    transposes of the program's matrices; `room`: registers that fragments may take. Maps come first behind which
    fewer products are in flight; each is kept as it is where the registers do not suffice."""
    names = [line.step.name for line in order.lines if line.step is not None and line.step.kind == "map"]
    waits = {name: groups for name in names if (groups := _awaited(order.lines, name)) is not None}
    for name in sorted(waits, key=lambda name: waits[name]):
        changed, values = _gathered(role, order.lines, name, turned)
        larger = replace(role, values=(*role.values, *values))
        allocation = allocate(larger, changed)
        if values and allocation.peak <= room:
            role, order = larger, replace(order, lines=changed, allocation=allocation)
    return role, order


def _position(lines: Sequence[Line], name: str) -> int:
    return next(n for n, line in enumerate(lines) if line.step is not None and line.step.name == name)


def _awaited(lines: Sequence[Line], name: str) -> int | None:
    """How many products the wait right before a step leaves in flight; None if there is no such wait."""
    before = lines[max(0, _position(lines, name) - 1)]
    return before.groups if before.step is None else None


def _gathered(
    role: RoleSteps, lines: Sequence[Line], name: str, turned: bool
) -> tuple[tuple[Line, ...], tuple[Value, ...]]:
    """The lines with the vectors of one map gathered before the wait in front of it, and these vectors' values."""
    at = _position(lines, name)
    step = lines[at].step
    assert step is not None
    assert step.expr is not None
    vectors = [ref for ref in dict.fromkeys(refs(step.expr)) if ref.along in ("rows", "columns")]
    values = {ref.name: _value(role, step, ref, turned) for ref in vectors if ref.name in step.rings}
    gathers = [
        Step("gather", value.name, rings=(ring,), writes=value.name, origin=step.origin, note=f"{ring} for {name}")
        for ring, value in values.items()
    ]
    looked_up = {ring for _, ring in step.lookups}
    changed = replace(
        step,
        reads=(*step.reads, *(value.name for value in values.values())),
        rings=tuple(ring for ring in step.rings if ring not in values or ring in looked_up),
        vectors=tuple((ring, value.name) for ring, value in values.items()),
    )
    kept = (*lines[: at - 1], *map(Line, gathers), lines[at - 1], Line(changed), *lines[at + 1 :])
    return kept, tuple(values.values())


def _value(role: RoleSteps, step: Step, ref: Ref, turned: bool) -> Value:
    """A vector along the rows or the columns of accumulators: a thread has entries of two rows, or of two columns in
    each eight."""
    assert step.writes is not None
    tile = next(value for value in role.values if value.name == step.writes)
    rows, columns = tile.shape[::-1] if tile.transposed_view else tile.shape
    along_rows = (ref.along == "rows") != turned
    shape = (rows, 1) if along_rows else (1, columns)
    registers = 32 * rows // role.threads * 2 if along_rows else columns // 4
    name = _fresh(f"{ref.name}_{step.name}", (value.name for value in role.values))
    return Value(name, name, shape, "float32", registers)


def _fresh(name: str, taken: Iterable[str]) -> str:
    known = set(taken)
    while name in known:
        name += "_"
    return name
