"""Register fragments by lifetime: a later value reuses a fragment of the same shape whose last reader has retired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from qlagen.schedule.issue import Line
from qlagen.schedule.model import Fragment, Step, Value
from qlagen.schedule.steps import RoleSteps


@dataclass(frozen=True)
class Allocation:
    """Fragments of one role in one order. `peak`, `area`: live registers per thread, at most and summed over lines."""

    fragments: tuple[Fragment, ...]
    fragment_of: Mapping[str, str]
    peak: int
    area: int


def allocate(role: RoleSteps, lines: Sequence[Line]) -> Allocation:
    """Linear scan over the groups of values that share registers, in order of their first write."""
    lives = _lifetimes(role, lines)
    members: dict[str, list[Value]] = {}
    for value in role.values:
        members.setdefault(value.group, []).append(value)
    slots: dict[str, list[str]] = {}
    busy: dict[str, int] = {}
    for group in sorted(lives, key=lambda g: (lives[g][0], g)):
        slot = next((s for s in slots if busy[s] < lives[group][0] and _alike(members[s][0], members[group][0])), group)
        slots.setdefault(slot, []).append(group)
        busy[slot] = lives[group][1]
    fragments = tuple(_fragment(role, slot, [v for g in groups for v in members[g]]) for slot, groups in slots.items())
    of = {value: fragment.name for fragment in fragments for value in fragment.values}
    live = [_live(lines, lives, members, position) for position in range(len(lines))]
    return Allocation(fragments, of, max(live, default=0), sum(live))


def _alike(first: Value, second: Value) -> bool:
    return (first.shape, first.dtype, first.transposed_view) == (second.shape, second.dtype, second.transposed_view)


def _fragment(role: RoleSteps, slot: str, values: Sequence[Value]) -> Fragment:
    first = values[0]
    names = tuple(value.name for value in values)
    carried = any(value.carried for value in values)
    return Fragment(
        f"{slot}_r", first.shape, first.dtype, first.registers, names, first.transposed_view, carried, role.name
    )


def _lifetimes(role: RoleSteps, lines: Sequence[Line]) -> dict[str, tuple[int, int]]:
    """First and last line at which a group's registers are needed; a product needs its operands until it retires."""
    group = {value.name: value.group for value in role.values}
    lives: dict[str, tuple[int, int]] = {}

    def touch(values: Iterable[str], position: int) -> None:
        for value in values:
            first, _ = lives.get(group[value], (position, position))
            lives[group[value]] = (first, position)

    flight: list[Step] = []
    for position, line in enumerate(lines):
        if line.step is None:
            retired, flight = flight[: len(flight) - line.groups], flight[len(flight) - line.groups :]
            for step in retired:
                touch(_registers(step), position)
        else:
            touch(_registers(line.step), position)
            if line.step.kind == "gemm":
                flight.append(line.step)
    for value in role.values:
        if value.carried and value.group in lives:
            lives[value.group] = (-1, len(lines))
    return lives


def _registers(step: Step) -> tuple[str, ...]:
    return step.reads if step.writes is None else (*step.reads, step.writes)


def _live(
    lines: Sequence[Line],
    lives: Mapping[str, tuple[int, int]],
    members: Mapping[str, Sequence[Value]],
    position: int,
) -> int:
    """Registers live at a line. An elementwise step turns dying operands into its result piece by piece: a group that
    it starts costs nothing extra there."""
    step = lines[position].step
    piecewise = step is not None and step.kind != "gemm"
    total = 0 if step is None else step.scratch_registers
    for group, (first, last) in lives.items():
        if first <= position <= last and not (piecewise and first == position):
            total += members[group][0].registers
    return total
