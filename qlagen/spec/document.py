"""A spec file's text, its TOML data and the place of every key, value and character in it.

`tomllib` gives data without places. The scanner here runs after it, on text already known to be valid TOML, and
records where things are, so that an error inside an expression points at the character in the file.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from qlagen.errors import QlagenError, Span

PathInFile = tuple[str | int, ...]
"""Keys and array indices that lead from the top of a TOML document to a value."""

MAX_FILE_CHARACTERS = 262_144
MAX_VALUE_DEPTH = 16


@dataclass(frozen=True)
class Place:
    """Offsets into the text: of a key, of its value and of each character of a string value."""

    key: tuple[int, int]
    value: tuple[int, int]
    characters: tuple[int, ...] = ()


@dataclass(frozen=True)
class Document:
    file: str
    text: str
    data: dict[str, object]
    places: Mapping[PathInFile, Place]

    def span(self, start: int, end: int) -> Span:
        """The span of text[start:end], cut at the end of its first line."""
        return span_of(self.file, self.text, start, end)

    def key_span(self, path: PathInFile) -> Span:
        """The span of a key or table header; the file's first character when the path is not in the file."""
        place = self.places.get(path)
        return self.span(*place.key) if place else self.span(0, 1)

    def value_span(self, path: PathInFile) -> Span:
        place = self.places.get(path)
        return self.span(*place.value) if place else self.span(0, 1)

    def source(self, path: PathInFile, text: str) -> SourceText:
        """A string value with the places of its characters."""
        place = self.places.get(path, Place((0, 1), (0, 1)))
        exact = len(place.characters) == len(text)
        return SourceText(self, text, place.characters if exact else (), place.value)


@dataclass(frozen=True)
class SourceText:
    """A string of a document. `span` maps offsets in the string to the file."""

    document: Document
    text: str
    characters: tuple[int, ...]
    value: tuple[int, int]

    def span(self, start: int, end: int) -> Span:
        if not self.characters:
            return self.document.span(*self.value)
        if start >= len(self.characters):
            return self.document.span(self.characters[-1] + 1, self.characters[-1] + 2)
        return self.document.span(self.characters[start], self.characters[max(start, end - 1)] + 1)


def span_of(file: str, text: str, start: int, end: int) -> Span:
    """The span of text[start:end] in a file with that text, cut at the end of its first line."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", start)
    last = len(text) if last < 0 else last
    length = max(1, min(end, last) - start)
    return Span(file, text.count("\n", 0, start) + 1, start - first + 1, length, text[first:last])


def read_text(path: str | Path, kind: str) -> str:
    """The text of a `kind` file (``spec``, ``schedule``). Raises E-FILE when it cannot be read or is not UTF-8."""
    file = str(path)
    try:
        return Path(path).read_bytes().decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"the file is not UTF-8 text: byte {error.start} is {error.object[error.start]:#04x}"
        raise QlagenError("E-FILE", message, span=Span(file, 1, 1)) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise QlagenError("E-FILE", f"cannot read the {kind} file {file!r}: {reason}") from None


def read_document(text: str, file: str) -> Document:
    """Parse TOML text and locate everything in it. Raises E-SIZE, E-TOML and E-DEPTH."""
    text = text.replace("\r\n", "\n")
    if len(text) > MAX_FILE_CHARACTERS:
        message = f"the file has {len(text)} characters, at most {MAX_FILE_CHARACTERS} are allowed"
        raise QlagenError("E-SIZE", message, span=Span(file, 1, 1))
    try:
        data = tomllib.loads(text)
    except RecursionError:
        raise _too_deep(Span(file, 1, 1)) from None
    except ValueError as error:
        raise _syntax_error(str(error), text, file) from None
    return Document(file, text, data, _Scanner(text, file).scan())


def _too_deep(span: Span) -> QlagenError:
    message = f"TOML arrays and inline tables may be nested at most {MAX_VALUE_DEPTH} deep"
    return QlagenError("E-DEPTH", message, span=span)


def _syntax_error(message: str, text: str, file: str) -> QlagenError:
    """E-TOML with the place that tomllib's message names."""
    start = len(text.rstrip())
    found = re.search(r" \(at (?:line (\d+), column (\d+)|end of document)\)$", message)
    if found:
        message = message[: found.start()]
        if found[1]:
            lines = text.split("\n")
            start = sum(len(line) + 1 for line in lines[: int(found[1]) - 1]) + int(found[2]) - 1
    hints = ["each key may be given once in a table"] if "overwrite" in message or "twice" in message else []
    message = f"not valid TOML: {message[:1].lower()}{message[1:]}"
    return QlagenError("E-TOML", message, span=span_of(file, text, min(start, len(text)), start + 1), hints=hints)


_ESCAPE_LENGTH = {"u": 6, "U": 10, "x": 4}
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_SPACE = re.compile(r"[ \t]*")
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)*")
_BARE_VALUE = re.compile(r"[^,\]}#\n]*")
_LINE_CONTINUATION = re.compile(r"\\[ \t]*\n[ \t\n]*")


class _Scanner:
    """Walks valid TOML text once and records places. On text that it does not understand it stops early:
    places are then missing and errors point at the file's start, which is honest and never a crash."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.at = 0
        self.places: dict[PathInFile, Place] = {}
        self.array_lengths: dict[PathInFile, int] = {}

    def scan(self) -> dict[PathInFile, Place]:
        base: PathInFile = ()
        self._skip(_BLANK)
        while self.at < len(self.text):
            start = self.at
            if self._peek("["):
                base = self._header()
            else:
                self._key_value(base, 0)
            if self.at == start:
                break
            self._skip(_BLANK)
        return self.places

    def _peek(self, text: str) -> bool:
        return self.text.startswith(text, self.at)

    def _skip(self, pattern: re.Pattern[str]) -> str:
        match = pattern.match(self.text, self.at)
        skipped = match[0] if match else ""
        self.at += len(skipped)
        return skipped

    def _header(self) -> PathInFile:
        start = self.at
        array = self._peek("[[")
        self.at += 2 if array else 1
        path = self._keys(())
        self.at += 2 if array else 1
        if array:
            count = self.array_lengths.get(path, 0)
            self.array_lengths[path] = count + 1
            self.places.setdefault(path, Place((start, self.at), (start, self.at)))
            path = (*path, count)
        self.places[path] = Place((start, self.at), (start, self.at))
        return path

    def _keys(self, base: PathInFile) -> PathInFile:
        """A dotted key; every prefix that has no place yet gets this one."""
        path = base
        while True:
            self._skip(_SPACE)
            start = self.at
            if len(path) > MAX_VALUE_DEPTH:
                raise _too_deep(span_of(self.file, self.text, start, start + 1))
            path = (*path, self._key())
            self.places.setdefault(path, Place((start, self.at), (start, self.at)))
            self._skip(_SPACE)
            if not self._peek("."):
                return path
            self.at += 1

    def _key(self) -> str:
        if self._peek('"') or self._peek("'"):
            start = self.at
            self._string()
            # A quoted key is decoded by the TOML reader itself: no second implementation of escapes.
            return next(iter(tomllib.loads(self.text[start : self.at] + "=0")))
        return self._skip(_BARE_KEY)

    def _key_value(self, base: PathInFile, depth: int) -> None:
        start = self.at
        path = self._keys(base)
        key_end = len(self.text[start : self.at].rstrip()) + start
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path, (start, key_end), depth)

    def _value(self, path: PathInFile, key: tuple[int, int] | None, depth: int) -> None:
        start = self.at
        if depth > MAX_VALUE_DEPTH:
            raise _too_deep(span_of(self.file, self.text, start, start + 1))
        characters: tuple[int, ...] = ()
        if self._peek('"') or self._peek("'"):
            characters = self._string()
        elif self._peek("["):
            self._array(path, depth)
        elif self._peek("{"):
            self._inline_table(path, depth)
        else:
            self.at = start + len(self._skip(_BARE_VALUE).rstrip())
        self.places[path] = Place(key or (start, self.at), (start, self.at), characters)

    def _array(self, path: PathInFile, depth: int) -> None:
        self.at += 1
        index = 0
        self._skip(_BLANK)
        start = -1
        while start < self.at < len(self.text) and not self._peek("]"):
            start = self.at
            self._value((*path, index), None, depth + 1)
            index += 1
            self._separator()
        self.at += 1

    def _inline_table(self, path: PathInFile, depth: int) -> None:
        self.at += 1
        self._skip(_BLANK)
        start = -1
        while start < self.at < len(self.text) and not self._peek("}"):
            start = self.at
            self._key_value(path, depth + 1)
            self._separator()
        self.at += 1

    def _separator(self) -> None:
        self._skip(_BLANK)
        if self._peek(","):
            self.at += 1
        self._skip(_BLANK)

    def _string(self) -> tuple[int, ...]:
        """Step over a string of any of the four kinds; the offset of each of its decoded characters."""
        quote = self.text[self.at]
        long = self._peek(quote * 3)
        end = quote * 3 if long else quote
        self.at += len(end)
        if long and self._peek("\n"):
            self.at += 1
        offsets: list[int] = []
        while self.at < len(self.text):
            if self._peek(end):
                # Up to two quotes may stand directly before the closing three.
                while long and self._peek(quote * 4):
                    offsets.append(self.at)
                    self.at += 1
                break
            continuation = _LINE_CONTINUATION.match(self.text, self.at) if long and quote == '"' else None
            if continuation:
                self.at = continuation.end()
                continue
            offsets.append(self.at)
            escape = quote == '"' and self._peek("\\")
            self.at += _ESCAPE_LENGTH.get(self.text[self.at + 1 : self.at + 2], 2) if escape else 1
        self.at += len(end)
        return tuple(offsets)
