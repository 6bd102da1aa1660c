"""Schedule files: the structural choices for one target, as `Options` records."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from qlagen.errors import QlagenError, did_you_mean
from qlagen.program.ir import Program
from qlagen.schedule.model import Options
from qlagen.schedule.target import load_target, target_names
from qlagen.spec.document import Document, read_document, read_text
from qlagen.spec.fields import Table

CARRIED = "carried"
CHUNK_PARALLEL = "chunk_parallel"
SEGMENT = "segment"
MOST_STAGES = 8
MOST_FORMS = 8
MOST_HEADS = 4
"""Warps of the role that has the heads."""
_CARRIED_REGISTERS = ("state", "auxiliary", "movers")
_PARALLEL_REGISTERS = ("tile", "movers")
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@dataclass(frozen=True)
class ScheduleFile:
    """All entries of one schedule file, in file order. Entries of one name are alternatives: the first that an
    operator's kernel fits is used. `value_tile` of chunk-parallel entries is 0: all of V."""

    file: str
    target: str
    carried: tuple[Options, ...]
    chunk_parallel: tuple[Options, ...]
    segment: tuple[Options, ...] = ()
    """Without one, programs for the maps of segments take the carried entries."""

    def variants(self, program: Program, dims: Mapping[str, int]) -> tuple[Options, ...]:
        """The first alternative of every variant that fits a program whose C, K and V have the sizes `dims`."""
        return tuple(options[0] for options in self.alternatives(program, dims))

    def alternatives(self, program: Program, dims: Mapping[str, int]) -> tuple[tuple[Options, ...], ...]:
        """Every variant whose value tile divides V (and K, which a segment's map has as further columns), with its
        alternatives. Raises E-VARIANT when there is none."""
        groups: dict[str, list[Options]] = {}
        for options in self._fitting(program, dims):
            groups.setdefault(options.name, []).append(options)
        return tuple(tuple(group) for group in groups.values())

    def _fitting(self, program: Program, dims: Mapping[str, int]) -> tuple[Options, ...]:
        if program.carry is None:
            return tuple(replace(options, value_tile=dims["V"]) for options in self.chunk_parallel)
        segment = program.segment is not None
        entries = self.segment if segment and self.segment else self.carried
        columns = [dims["V"], dims["K"]] if segment else [dims["V"]]
        fitting = tuple(entry for entry in entries if all(size % entry.value_tile == 0 for size in columns))
        if not fitting:
            sizes = " and ".join(f"{name} = {size}" for name, size in zip("VK", columns, strict=False))
            kind = SEGMENT if entries is self.segment else CARRIED
            message = f"{self.file}: no {kind} variant has a value tile that divides {sizes}"
            tiles = ", ".join(f"{options.name} ({options.value_tile})" for options in entries)
            raise QlagenError("E-VARIANT", message, notes=[f"value tiles: {tiles}"], hints=["add a variant"])
        return fitting


def load_options(path: str | Path) -> ScheduleFile:
    """Read a schedule file. Raises E-FILE when it cannot be read, and all that `parse_options` raises."""
    return parse_options(read_text(path, "schedule"), str(path))


def parse_options(text: str, file: str) -> ScheduleFile:
    """Parse a schedule file's text; `file` is the name that messages show. Raises E-TOML, E-TABLE, E-KEY, E-MISSING,
    E-TYPE, E-VALUE and E-DUPLICATE with the place in the file."""
    document = read_document(text, file)
    top = Table(document, (), document.data)
    _check_top(top)
    target = top.choice("target", target_names())
    carried = _variants(top, CARRIED, lambda table: _read_carried(table, target))
    parallel = _variants(top, CHUNK_PARALLEL, lambda table: _read_parallel(table, target))
    segment = _variants(top, SEGMENT, lambda table: _read_segment(table, target)) if SEGMENT in top.values else ()
    return ScheduleFile(file, target, carried, parallel, segment)


def _check_top(top: Table) -> None:
    """The target, both kinds of variants and perhaps those of segments, and nothing else."""
    needed = ("target", CARRIED, CHUNK_PARALLEL)
    allowed = (*needed, SEGMENT)
    for key in top.values:
        if key not in allowed:
            notes = [f"a schedule file has {', '.join(allowed)}"]
            hints = did_you_mean(key, allowed)
            raise QlagenError(
                "E-TABLE", f"unknown table or key {key!r}", span=top.key_span(key), notes=notes, hints=hints
            )
    for key in needed:
        if key not in top.values:
            notes = [f"a schedule file has {', '.join(allowed)}"]
            raise QlagenError("E-MISSING", f"{key!r} is missing", span=top.key_span(key), notes=notes)


def _variants(top: Table, key: str, read: Callable[[Table], Options]) -> tuple[Options, ...]:
    found: list[Options] = []
    for table in _tables(top, key):
        options = read(table)
        others = [other for other in found if other.name == options.name]
        if any(other.value_tile != options.value_tile for other in others):
            message = f"{key}: alternatives named {options.name!r} with different value tiles"
            raise QlagenError("E-DUPLICATE", message, span=table.value_span("name"), hints=["rename one"])
        found.append(options)
    return tuple(found)


def _tables(top: Table, key: str) -> list[Table]:
    """The entries of an array of tables."""
    entries = top.values[key]
    if not isinstance(entries, list) or not entries or not all(isinstance(entry, dict) for entry in entries):
        message = f"{key} must be an array of tables with one entry or more: [[{key}]]"
        raise QlagenError("E-TYPE", message, span=top.value_span(key))
    document: Document = top.document
    return [Table(document, (key, index), cast(dict[str, object], entry)) for index, entry in enumerate(entries)]


def _read_carried(table: Table, target: str) -> Options:
    required = ("name", "value_tile", "stages", "ahead", "output_stages", "registers")
    table.check_keys(required, ("ctas_per_sm", "persistent", "delays"))
    delays = table.integers("delays", 0, 64) if "delays" in table.values else ()
    return Options(
        name=_name(table),
        value_tile=_value_tile(table),
        stages=table.integer("stages", 1, MOST_STAGES),
        ahead=table.integer("ahead", 0, MOST_STAGES - 1),
        output_stages=table.integer("output_stages", 1, MOST_STAGES),
        registers=_registers(table, target, _CARRIED_REGISTERS),
        ctas_per_sm=table.integer("ctas_per_sm", 1, 8) if "ctas_per_sm" in table.values else 1,
        persistent="persistent" in table.values and table.boolean("persistent"),
        delays=tuple((f"#{number}", delay) for number, delay in enumerate(delays, 1)),
    )


def _read_segment(table: Table, target: str) -> Options:
    table.check_keys(("name", "value_tile", "stages", "ahead", "registers"), ("ctas_per_sm", "persistent", "form"))
    return Options(
        name=_name(table),
        value_tile=_value_tile(table),
        stages=table.integer("stages", 1, MOST_STAGES),
        ahead=table.integer("ahead", 0, MOST_STAGES - 1),
        output_stages=1,
        registers=_registers(table, target, _CARRIED_REGISTERS),
        ctas_per_sm=table.integer("ctas_per_sm", 1, 8) if "ctas_per_sm" in table.values else 1,
        persistent="persistent" in table.values and table.boolean("persistent"),
        form=table.integer("form", 1, MOST_FORMS) if "form" in table.values else 0,
    )


def _read_parallel(table: Table, target: str) -> Options:
    table.check_keys(("name", "stages", "output_stages", "ctas_per_sm", "mover_warps"), ("registers", "heads", "keys"))
    given = "registers" in table.values
    heads, keys = (table.integer(key, 1, MOST_HEADS) if key in table.values else 1 for key in ("heads", "keys"))
    if heads % keys:
        raise table.bad_value("keys", f"{keys} key heads cannot have equally many of {heads} value heads")
    return Options(
        name=_name(table),
        value_tile=0,
        stages=table.integer("stages", 1, MOST_STAGES),
        ahead=0,
        output_stages=table.integer("output_stages", 1, MOST_STAGES),
        registers=_registers(table, target, _PARALLEL_REGISTERS) if given else (),
        ctas_per_sm=table.integer("ctas_per_sm", 1, 8),
        mover_warps=table.integer("mover_warps", 2, 8),
        heads=heads,
        keys=keys,
    )


def _name(table: Table) -> str:
    name = table.string("name")
    if not _NAME.fullmatch(name):
        raise table.bad_value("name", f"{name!r} must be lower case letters, digits and _, starting with a letter")
    return name


def _value_tile(table: Table) -> int:
    value = table.integer("value_tile", 64, 256)
    if value % 64:
        raise table.bad_value("value_tile", f"must be a multiple of 64, got {value}")
    return value


def _registers(table: Table, target_name: str, roles: tuple[str, ...]) -> tuple[tuple[str, int], ...]:
    """Registers per thread of every role, as setmaxnreg takes them."""
    target = load_target(target_name)
    registers = table.table("registers")
    registers.check_keys(roles)
    found = []
    for role in roles:
        value = registers.integer(role, target.least_registers, target.most_registers)
        if value % target.register_granule:
            raise registers.bad_value(role, f"must be a multiple of {target.register_granule}, got {value}")
        found.append((role, value))
    return tuple(found)
