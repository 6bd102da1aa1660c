"""Which entries of a schedule file an operator uses, and what to try in the place of each."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, replace
from typing import cast

from qlagen.emit.constants import kernel_name
from qlagen.errors import QlagenError, did_you_mean
from qlagen.schedule.build import build_schedule
from qlagen.schedule.model import Options, Schedule
from qlagen.schedule.options import ScheduleFile
from qlagen.schedule.target import Target
from qlagen.spec.document import read_document
from qlagen.tune.edit import Registers, Value, format_value

Change = tuple[str, Value]
Axes = tuple[tuple[Change, ...], ...]
"""The changes to try, those of one key together."""
REGISTER_STEPS = (-2, -1, 0, 1, 2)
"""Granules by which the registers of a role may move in one candidate."""
_NOT_TRIED = ("value_tile",)
"""It says what an entry is for, not how it is done."""
_MOST = 240
"""Candidates of one entry with several changes that are looked at."""
_DELAYS, _REGISTERS = "delays", "registers"


@dataclass(frozen=True)
class Entry:
    """One entry that an operator's kernels are made from. `index` counts the entries of its part from 0."""

    part: str
    index: int
    name: str
    values: Mapping[str, Value]
    """As the file has them, the name aside."""
    siblings: tuple[Mapping[str, Value], ...]
    """The other entries of the same part and name."""
    schedules: tuple[Schedule, ...]
    """What the operator's programs become with it."""

    @property
    def kernels(self) -> tuple[str, ...]:
        """Names of the kernels that are made from it."""
        return tuple(map(kernel_name, self.schedules))

    @property
    def main(self) -> Schedule:
        """Of the programs that share the entry, that with the most to order."""
        return max(self.schedules, key=lambda schedule: len(schedule.ranked))

    @property
    def label(self) -> str:
        return f"{self.part} {self.name} (entry {self.index + 1})"


@dataclass(frozen=True)
class Candidate:
    """An entry with some of its keys changed; none for the entry as it is."""

    changes: tuple[Change, ...] = ()

    def __str__(self) -> str:
        return ", ".join(f"{key} = {format_value(value)}" for key, value in self.changes) or "as it is"


def parts(file: ScheduleFile) -> dict[str, tuple[Options, ...]]:
    """The arrays of tables of a schedule file, by name."""
    named = {field.name: getattr(file, field.name) for field in fields(file)}
    return {name: value for name, value in named.items() if isinstance(value, tuple)}


def find_entries(
    text: str,
    file: ScheduleFile,
    schedules: Sequence[Sequence[Schedule]],
    only_parts: Sequence[str] = (),
    only_names: Sequence[str] = (),
) -> tuple[Entry, ...]:
    """The entries that the schedules of an operator were made with, in file order.

    Raises E-TUNE-ENTRY for a part or name that the file does not have, and when none of the wanted ones is used.
    """
    known = parts(file)
    _check_known("part", only_parts, tuple(known))
    _check_known("variant", only_names, tuple({options.name for entries in known.values() for options in entries}))
    data = read_document(text, file.file).data
    found = []
    for part, entries in known.items():
        raw = [_read(values) for values in cast(list[dict[str, object]], data.get(part, []))]
        for index, options in enumerate(entries):
            if (only_parts and part not in only_parts) or (only_names and options.name not in only_names):
                continue
            made = tuple(schedule for group in schedules for schedule in group if _is_from(schedule, options))
            siblings = (raw[i] for i, other in enumerate(entries) if i != index and other.name == options.name)
            if made:
                found.append(Entry(part, index, options.name, raw[index], tuple(siblings), made))
    if not found:
        hints = ["`qlagen show SPEC --stage schedule` shows the variants that an operator has"]
        raise QlagenError("E-TUNE-ENTRY", "the operator uses none of the entries that are to be tuned", hints=hints)
    return tuple(found)


def _check_known(kind: str, wanted: Sequence[str], known: Sequence[str]) -> None:
    for name in wanted:
        if name not in known:
            notes = [f"{kind}s: {', '.join(sorted(known))}"]
            message = f"the schedule file has no {kind} {name!r}"
            raise QlagenError("E-TUNE-ENTRY", message, notes=notes, hints=did_you_mean(name, known))


def _is_from(schedule: Schedule, options: Options) -> bool:
    return schedule.options == at_tile(options, schedule.options.value_tile)


def at_tile(options: Options, value_tile: int) -> Options:
    """The options as a program gets them: with its value tile where the entry has none."""
    return options if options.value_tile else replace(options, value_tile=value_tile)


def _read(values: Mapping[str, object]) -> dict[str, Value]:
    """TOML values other than names, in hashable form."""
    found: dict[str, object] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found[key] = tuple(value.items())
        elif not isinstance(value, str):
            found[key] = tuple(value) if isinstance(value, list) else value
    return cast(dict[str, Value], found)


def simple_candidates(entry: Entry, axes: Axes) -> tuple[Candidate, ...]:
    """One change each, and the other entries of the same name as a whole.

    Not all of them can be written in the file or scheduled: `check` says which can.
    """
    singles = [Candidate((change,)) for axis in axes for change in axis]
    others = (
        Candidate(tuple((key, value) for key, value in sibling.items() if entry.values.get(key) != value))
        for sibling in entry.siblings
    )
    return tuple(dict.fromkeys((*singles, *others)))


def combined_candidates(axes: Axes) -> tuple[Candidate, ...]:
    """Two changes of different keys, then three, up to a bound."""
    products = (itertools.product(*chosen) for size in (2, 3) for chosen in itertools.combinations(axes, size))
    return tuple(itertools.islice(map(Candidate, itertools.chain.from_iterable(products)), _MOST))


def make_axes(entry: Entry, dims: Mapping[str, int], target: Target) -> Axes:
    """For each key the changes to try."""
    found: dict[str, list[Value]] = {}
    for key, value in (dict(entry.values) | {k: v for k, v in _defaults().items() if k not in entry.values}).items():
        if isinstance(value, bool):
            found[key] = [not value]
        elif isinstance(value, int):
            found[key] = [number for number in (value - 1, value + 1) if number >= 0]
    if _REGISTERS in entry.values:
        found[_REGISTERS] = list(_register_splits(entry, target))
    found[_DELAYS] = list(_delays(entry, dims, target))
    for key, values in found.items():
        values += [sibling[key] for sibling in entry.siblings if key in sibling]
        found[key] = [value for value in dict.fromkeys(values) if value != entry.values.get(key)]
    kept = ((key, values) for key, values in found.items() if key not in _NOT_TRIED and values)
    return tuple(tuple((key, value) for value in values) for key, values in kept)


def _defaults() -> dict[str, Value]:
    """Numbers and switches that an entry may leave out."""
    known = ((field.name, field.default) for field in fields(Options) if field.default is not MISSING)
    return {name: value for name, value in known if isinstance(value, int)}


def _register_splits(entry: Entry, target: Target) -> Iterator[Registers]:
    """Splits near the present one that leave nothing which a role could still have."""
    present = cast(Registers, entry.values[_REGISTERS])
    schedule, granule = entry.main, target.register_granule
    threads = {role.name: 32 * role.warps for role in schedule.roles if role.kind == "compute"}
    rest = schedule.threads - sum(threads.values())
    weights = [threads.get(name, rest) for name, _ in present]
    pool = target.register_pool(schedule.threads, schedule.options.ctas_per_sm)
    for steps in itertools.product(REGISTER_STEPS, repeat=len(present)):
        numbers = [number + step * granule for (_, number), step in zip(present, steps, strict=True)]
        left = pool - sum(number * weight for number, weight in zip(numbers, weights, strict=True))
        raisable = (weight for weight, step in zip(weights, steps, strict=True) if step < REGISTER_STEPS[-1])
        wasted = left >= granule * min(raisable, default=pool)
        in_range = all(target.least_registers <= number <= target.most_registers for number in numbers)
        if left >= 0 and not wasted and in_range:
            yield tuple((name, number) for (name, _), number in zip(present, numbers, strict=True))


def _delays(entry: Entry, dims: Mapping[str, int], target: Target) -> Iterator[tuple[int, ...]]:
    """The issue orders that the scheduler ranked; the first of them is taken without a pin."""
    schedule = entry.main
    if schedule.options.delays:
        schedule = build_schedule(schedule.program, dims, replace(schedule.options, delays=()), target)
    if len(schedule.ranked) > 1:
        yield from (tuple(delay for _, delay in order.delays) for order in schedule.ranked)
