"""What an iteration only stores is stored in the next one, behind its first product.

At the end of an iteration nothing is in flight: writing a tile to shared memory there, with its fence and its
announcement, would add to the chain from one state to the next. Behind the next first product it costs nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from qlagen.schedule.issue import Line
from qlagen.schedule.model import Step
from qlagen.schedule.steps import RoleSteps


def defer_puts(role: RoleSteps, lines: Sequence[Line]) -> tuple[Line, ...]:
    """The lines with the puts at their end moved behind the first product, one iteration later, where its registers
    allow: if it takes those of the tile, the tile is converted to its stored type before."""
    first = next((n for n, line in enumerate(lines) if line.step is not None and line.step.kind == "gemm"), None)
    stored = {write.ring for write in role.writes if write.store is not None}
    puts = _trailing_puts(lines, stored)
    if first is None or not puts:
        return tuple(lines)
    groups = {value.name: value.group for value in role.values}
    overwritten = {groups[line.step.writes] for line in lines[: first + 1] if line.step and line.step.writes}
    kept = list(lines[: len(lines) - len(puts)])
    later = []
    for put in puts:
        if overwritten.intersection(groups[read] for read in put.reads):
            conversion, put = _converted(put, groups)
            kept.append(Line(conversion))
        later.append(Line(put, lag=1))
    kept[first + 1 : first + 1] = later
    return tuple(kept)


def _trailing_puts(lines: Sequence[Line], stored: set[str]) -> list[Step]:
    """Puts of tiles that only a mover reads, behind the last wait for products."""
    found: list[Step] = []
    for line in reversed(lines):
        step = line.step
        if step is None or step.kind != "put" or step.ring_out not in stored or step.rings or step.writes is None:
            break
        found.insert(0, step)
    return found


def _converted(put: Step, groups: Mapping[str, str]) -> tuple[Step, Step]:
    """A put as the conversion in registers and the put of its result."""
    assert put.writes is not None
    conversion = replace(
        put, kind="turn", name=put.writes, ring_out=None, cost=put.cost // 2, note=f"{put.reads[0]} as it is stored"
    )
    return conversion, replace(put, reads=(put.writes,), writes=None, cost=put.cost // 2)
