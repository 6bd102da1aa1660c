"""The file of rows: JSON lines, only ever added to. The newest line of a key counts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from qlagen.errors import QlagenError

Record = dict[str, Any]
TUNE_PREFIX = "tune-"
ROWS = ("time", "refused", "unsupported")
"""Kinds of records that say what became of an implementation in a case."""
_CASE = ("operator", "direction", "heads", "sequences", "gates")
"""Rows of the main operator do not name it."""


def read_records(path: Path) -> list[Record]:
    """Every line of a file; none when there is no file. Raises E-BENCH-ROWS for a line that is not a record.

    A last line that was cut off, as by a machine taken away in the middle of writing, is dropped.
    """
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    whole, rest = lines[:-1], lines[-1]
    records = [_parse(path, number, line) for number, line in enumerate(whole, 1) if line.strip()]
    try:
        return [*records, _parse(path, len(lines), rest)] if rest.strip() else records
    except QlagenError:
        return records


def _parse(path: Path, number: int, line: str) -> Record:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as fault:
        record = fault
    if not isinstance(record, dict) or "kind" not in record:
        message = f"{path}:{number} is not a row of measurements"
        hints = ["give a file that `qlagen bench run` wrote, or delete the line"]
        raise QlagenError("E-BENCH-ROWS", message, hints=hints)
    return record


def row_files(folder: Path) -> list[Path]:
    """The files of a folder that `qlagen bench run` writes, by name; those of `qlagen tune` are no rows."""
    return sorted(path for path in folder.glob("*.jsonl") if not path.name.startswith(TUNE_PREFIX))


class RecordFile:
    """The rows of one file, in memory and on disk at once: every row is on disk as soon as it is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.records = read_records(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Rewritten once, so that a cut-off last line does not run into the next one.
        text = "".join(_line(record) for record in self.records)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")

    def add(self, record: Record) -> None:
        self.records.append(record)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(record))


def latest(records: Iterable[Record]) -> dict[tuple[str, ...], Record]:
    """The newest row of each case and implementation (see `row_key`), a time or why there is none."""
    return {row_key(row, row["implementation"]): row for row in records if row["kind"] in ROWS}


def side_by_side(records: Iterable[Record], ours: str) -> Iterator[Record]:
    """Of each case the newest rows of one environment, the last one with a time of `ours` if there is one: a library
    is compared only with what ran on the same machine with the same versions."""
    runs: dict[tuple[str, ...], dict[str, dict[str, Record]]] = {}
    for row in records:
        if row["kind"] in ROWS:
            found = runs.setdefault(row_key(row, ""), {})
            together = found.pop(row["environment"], {})
            found[row["environment"]] = together | {row["implementation"]: row}
    for found in runs.values():
        timed = [rows for rows in found.values() if rows.get(ours, {"kind": ""})["kind"] == "time"]
        yield from (timed or list(found.values()))[-1].values()


def row_key(fields: Mapping[str, Any], implementation: str) -> tuple[str, ...]:
    """(operator, direction, heads, sequences, gates, implementation) of a record or a case's fields."""
    return (*(fields.get(name, "") for name in _CASE), implementation)


def latest_of(records: Iterable[Record], kind: str) -> Iterator[Record]:
    """The newest record of a kind for each implementation and case, in the order of the file."""
    newest: dict[tuple[Any, ...], Record] = {}
    for record in records:
        if record["kind"] == kind:
            newest[tuple(record.get(name) for name in (*_CASE, "implementation", "cache"))] = record
    return iter(newest.values())


def environments(records: Iterable[Record]) -> dict[str, Record]:
    """The environment records by their name."""
    return {record["environment"]: record for record in records if record["kind"] == "environment"}


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, sort_keys=False, separators=(", ", ": ")) + "\n"
