"""Reading tables of a document: unknown and missing keys, TOML types, ranges of numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from qlagen.errors import QlagenError, Span, did_you_mean
from qlagen.spec.document import Document, PathInFile

_TYPE_NAMES = {
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    list: "an array",
    dict: "a table",
}


def type_name(value: object) -> str:
    return _TYPE_NAMES.get(type(value), "a date or time")


@dataclass(frozen=True)
class Table:
    """One table of the file. Every reader raises a QlagenError that points at the key or value."""

    document: Document
    path: PathInFile
    values: Mapping[str, object]

    @property
    def title(self) -> str:
        return f"[{'.'.join(map(str, self.path))}]"

    def key_span(self, key: str) -> Span:
        return self.document.key_span((*self.path, key))

    def value_span(self, key: str, *indices: int) -> Span:
        return self.document.value_span((*self.path, key, *indices))

    def check_keys(self, required: Sequence[str], optional: Sequence[str] = ()) -> None:
        """Raises E-KEY for a key that is neither and E-MISSING for a required one that is absent."""
        allowed = [*required, *optional]
        for key in self.values:
            if key not in allowed:
                raise QlagenError(
                    "E-KEY",
                    f"unknown key {key!r} in {self.title}",
                    span=self.key_span(key),
                    notes=[f"allowed here: {', '.join(allowed)}"],
                    hints=did_you_mean(key, allowed),
                )
        for key in required:
            if key not in self.values:
                message = f"the key {key!r} is missing in {self.title}"
                notes = [f"required here: {', '.join(required)}"]
                raise QlagenError("E-MISSING", message, span=self.document.key_span(self.path), notes=notes)

    def table(self, key: str) -> Table:
        value = self.values[key]
        if not isinstance(value, dict):
            raise self._wrong_type(key, value, "a table")
        return Table(self.document, (*self.path, key), cast(dict[str, object], value))

    def string(self, key: str) -> str:
        value = self.values[key]
        if not isinstance(value, str):
            raise self._wrong_type(key, value, "a string")
        return value

    def choice(self, key: str, allowed: Sequence[str]) -> str:
        value = self.string(key)
        if value not in allowed:
            raise self.bad_value(key, f"{value!r} is not one of {', '.join(allowed)}", did_you_mean(value, allowed))
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        return self._integer(key, self.values[key], low, high)

    def boolean(self, key: str) -> bool:
        value = self.values[key]
        if not isinstance(value, bool):
            raise self._wrong_type(key, value, "true or false")
        return value

    def integers(self, key: str, low: int, high: int) -> tuple[int, ...]:
        items = self._array(key, "integers")
        return tuple(self._integer(key, item, low, high, index) for index, item in enumerate(items))

    def strings(self, key: str) -> tuple[str, ...]:
        strings = []
        for index, item in enumerate(self._array(key, "strings")):
            if not isinstance(item, str):
                raise self._wrong_type(key, item, "a string", index)
            strings.append(item)
        return tuple(strings)

    def bad_value(self, key: str, message: str, hints: Iterable[str] = (), index: int | None = None) -> QlagenError:
        span = self.value_span(key) if index is None else self.value_span(key, index)
        return QlagenError("E-VALUE", f"{_label(key, index)}: {message}", span=span, hints=hints)

    def _array(self, key: str, of: str) -> list[object]:
        value = self.values[key]
        if not isinstance(value, list):
            raise self._wrong_type(key, value, f"an array of {of}")
        return cast(list[object], value)

    def _integer(self, key: str, value: object, low: int, high: int, index: int | None = None) -> int:
        if not isinstance(value, int) or isinstance(value, bool):
            raise self._wrong_type(key, value, "an integer", index)
        if not low <= value <= high:
            shown = str(value) if abs(value) < 10**18 else "a huge number"
            raise self.bad_value(key, f"must lie between {low} and {high}, got {shown}", (), index)
        return value

    def _wrong_type(self, key: str, value: object, wanted: str, index: int | None = None) -> QlagenError:
        span = self.value_span(key) if index is None else self.value_span(key, index)
        return QlagenError("E-TYPE", f"{_label(key, index)} must be {wanted}, got {type_name(value)}", span=span)


def _label(key: str, index: int | None) -> str:
    return key if index is None else f"{key}[{index}]"
