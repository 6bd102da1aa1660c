"""Changes of one entry in a schedule file's text. Every byte that is not changed stays, comments included."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import cast

from qlagen.errors import QlagenError
from qlagen.spec.document import Document, PathInFile, read_document

Registers = tuple[tuple[str, int], ...]
Value = int | tuple[int, ...] | Registers
"""A number, true or false, a list of numbers, or a table of numbers as (key, number) pairs."""

MARK = "# Tuned on "
_INDENT = "#   "
_WIDTH = 120
_SOLID = "\xa0"
"""Stands for a space at which no line ends."""


def edit_entry(
    text: str, file: str, part: str, index: int, changes: Mapping[str, Value], comment: Sequence[str] = ()
) -> str:
    """The text with new values of some keys of entry number `index` of ``[[part]]``; keys that it lacks are added.

    The lines of `comment` are put below the entry's header, in the place of those of an earlier edit. Raises
    E-TUNE-EDIT when the entry is written in another way than key by key, and what `read_document` raises.
    """
    if "\r" in text.replace("\r\n", "") or ("\r\n" in text and text.count("\n") != text.count("\r\n")):
        raise QlagenError("E-TUNE-EDIT", f"{file} has lines that end in different ways", hints=["convert the file"])
    document = read_document(text, file)
    replaced = dict(_edits(document, (part, index), changes))
    if comment:
        replaced |= _comment_edit(document, (part, index), comment)
    edited = document.text
    for (start, end), new in sorted(replaced.items(), reverse=True):
        edited = edited[:start] + new + edited[end:]
    _check(read_document(edited, file), document, (part, index), changes)
    return edited.replace("\n", "\r\n") if "\r\n" in text else edited


def comment_lines(head: str, parts: Sequence[str]) -> tuple[str, ...]:
    """A comment that a later edit will find again: `head`, then the parts, none of them broken by a line."""
    solid = ", ".join(part.replace(" ", _SOLID) for part in parts)
    lines = textwrap.wrap(f"{MARK}{head} {solid}", _WIDTH, subsequent_indent=_INDENT, break_on_hyphens=False)
    return tuple(line.replace(_SOLID, " ") for line in lines)


def format_value(value: Value) -> str:
    """As TOML."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if value and isinstance(value[0], tuple):
        return "{ " + ", ".join(f"{key} = {number}" for key, number in _pairs(value)) + " }"
    return "[" + ", ".join(map(str, value)) + "]"


_Edits = dict[tuple[int, int], str]


def _edits(document: Document, entry: PathInFile, changes: Mapping[str, Value]) -> _Edits:
    found: _Edits = {}
    added = ""
    present = _values(document, entry)
    for key, value in changes.items():
        place = document.places.get((*entry, key))
        if place is None and key in present:
            raise _cannot_edit(document, entry)
        if place is None:
            added += f"{key} = {format_value(value)}\n"
        else:
            found[place.value] = format_value(value)
    if added:
        places = (document.places.get((*entry, key)) for key in present)
        last = max(place.value[1] for place in places if place is not None)
        end = document.text.find("\n", last) + 1
        if end:
            found[end, end] = added
        else:
            found[len(document.text), len(document.text)] = "\n" + added
    return found


def _comment_edit(document: Document, entry: PathInFile, comment: Sequence[str]) -> _Edits:
    """Below the header's line, over the lines of an earlier comment."""
    text = document.text
    start = text.find("\n", document.places[entry].key[1]) + 1
    end = start
    while text.startswith(MARK if end == start else _INDENT, end):
        end = text.find("\n", end) + 1
    return {(start, end): "".join(f"{line}\n" for line in comment)}


def _values(document: Document, entry: PathInFile) -> dict[str, object]:
    part, index = entry
    return cast(list[dict[str, object]], document.data[str(part)])[int(index)]


def _check(edited: Document, before: Document, entry: PathInFile, changes: Mapping[str, Value]) -> None:
    """The edited text means what it should: the changes and nothing else."""
    part, index = str(entry[0]), int(entry[1])
    wanted = {key: value for key, value in before.data.items() if key != part}
    entries = [dict(values) for values in cast(list[dict[str, object]], before.data[part])]
    entries[index] |= {key: _plain(value) for key, value in changes.items()}
    if edited.data != {**wanted, part: entries}:
        raise _cannot_edit(before, entry)


def _cannot_edit(document: Document, entry: PathInFile) -> QlagenError:
    message = f"entry {int(entry[1]) + 1} of [[{entry[0]}]] cannot be edited in place"
    hints = ["write each of its keys on a line of its own, and registers as an inline table"]
    return QlagenError("E-TUNE-EDIT", message, span=document.key_span(entry), hints=hints)


def _plain(value: Value) -> object:
    if isinstance(value, tuple):
        return dict(_pairs(value)) if value and isinstance(value[0], tuple) else list(value)
    return value


def _pairs(value: object) -> Registers:
    return cast(Registers, value)
