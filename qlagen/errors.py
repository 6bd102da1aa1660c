"""The one error type of qlagen, with a place in a file, notes and hints, and its text form."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """A place in a file: 1-based line and column, and the length of the marked text."""

    file: str
    line: int
    column: int
    length: int = 1
    text: str = ""
    """The source line, for the caret display; empty when unknown."""


class QlagenError(Exception):
    """A fault that a user can cause. It says what was got, what is allowed and what to do.

    `code` is stable and documented (for example ``E-SHAPE``); tests pin the rendered message.
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        span: Span | None = None,
        notes: Iterable[str] = (),
        hints: Iterable[str] = (),
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.span = span
        self.notes = tuple(notes)
        self.hints = tuple(hints)

    def __str__(self) -> str:
        return self.render()

    def render(self) -> str:
        """The message as printed: place, code, text, the marked source line, notes and hints."""
        place = f"{self.span.file}:{self.span.line}:{self.span.column}: " if self.span else ""
        lines = [f"{place}error[{self.code}]: {self.message}"]
        if self.span and self.span.text:
            lines += [f"  | {row}" for row in _excerpt(self.span)]
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  hint: {hint}" for hint in self.hints]
        return "\n".join(lines)


_EXCERPT_WIDTH = 120


def _excerpt(span: Span) -> tuple[str, str]:
    """The source line and a row of carets below its marked part; a long line is cut around the mark."""
    start = span.column - 1
    first = max(0, min(start - _EXCERPT_WIDTH // 2, len(span.text) - _EXCERPT_WIDTH))
    last = first + _EXCERPT_WIDTH
    before, after = "..." if first else "", "..." if last < len(span.text) else ""
    prefix = (before + span.text[first:start]).ljust(len(before) + start - first)
    # Tabs stay tabs, so that the carets line up whatever their width.
    indent = "".join("\t" if character == "\t" else " " for character in prefix)
    length = max(1, min(span.length, last - start))
    return before + span.text[first:last] + after, indent + "^" * length


def did_you_mean(got: str, allowed: Iterable[str]) -> tuple[str, ...]:
    """A hint naming the closest allowed word, or nothing when none is close."""
    close = difflib.get_close_matches(got, sorted(allowed), n=1, cutoff=0.6)
    return (f"did you mean {close[0]!r}?",) if close else ()
