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
            lines.append(f"  | {self.span.text}")
            lines.append("  | " + " " * (self.span.column - 1) + "^" * max(1, self.span.length))
        lines += [f"  note: {note}" for note in self.notes]
        lines += [f"  hint: {hint}" for hint in self.hints]
        return "\n".join(lines)


def did_you_mean(got: str, allowed: Iterable[str]) -> tuple[str, ...]:
    """A hint naming the closest allowed word, or nothing when none is close."""
    close = difflib.get_close_matches(got, sorted(allowed), n=1, cutoff=0.6)
    return (f"did you mean {close[0]!r}?",) if close else ()
