"""The tokens of the expression language."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from qlagen.errors import QlagenError
from qlagen.spec.document import SourceText

MAX_EXPRESSION_CHARACTERS = 4096
MAX_INTEGER_DIGITS = 6

NAME_PATTERN = r"[A-Za-z_][A-Za-z0-9_]*'?"
_TOKEN = re.compile(
    rf"(?P<name>{NAME_PATTERN})|(?P<integer>[0-9]+)|(?P<transpose>\^T(?![A-Za-z0-9_']))|(?P<symbol>[-+*@(),])"
)
_SPACE = re.compile(r"[ \t\n]*")

_HINTS = {
    "/": 'there is no division; declare a number in [inputs], whose default may be such as "K^-1/2"',
    ".": "numbers are integers, and names have no dots",
    "^": "only the transpose ^T is allowed after ^",
    "'": "a prime may only end a name",
    "=": 'one line of the table is one value: write NAME = "expression"',
}


@dataclass(frozen=True)
class Token:
    """`start` and `end` are offsets into the expression's text; `kind` ``end`` closes the list."""

    kind: Literal["name", "integer", "transpose", "symbol", "end"]
    text: str
    start: int
    end: int


def tokenize(source: SourceText) -> list[Token]:
    """Split an expression. Raises E-SIZE and E-LEX."""
    text = source.text
    if len(text) > MAX_EXPRESSION_CHARACTERS:
        message = f"the expression has {len(text)} characters, at most {MAX_EXPRESSION_CHARACTERS} are allowed"
        raise QlagenError("E-SIZE", message, span=source.span(0, 1), hints=["name a part of it on a line of its own"])
    tokens: list[Token] = []
    at = _after_space(text, 0)
    while at < len(text):
        match = _TOKEN.match(text, at)
        if not match:
            raise _bad_character(source, at)
        token = _token(match)
        if token.kind == "integer" and len(token.text) > MAX_INTEGER_DIGITS:
            message = f"the integer has {len(token.text)} digits, at most {MAX_INTEGER_DIGITS} are allowed"
            raise QlagenError("E-SIZE", message, span=source.span(token.start, token.end))
        tokens.append(token)
        at = _after_space(text, match.end())
    return [*tokens, Token("end", "", len(text), len(text))]


def _after_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _token(match: re.Match[str]) -> Token:
    text, start, end = match[0], match.start(), match.end()
    match match.lastgroup:
        case "name":
            return Token("name", text, start, end)
        case "integer":
            return Token("integer", text, start, end)
        case "transpose":
            return Token("transpose", text, start, end)
        case _:
            return Token("symbol", text, start, end)


def _bad_character(source: SourceText, at: int) -> QlagenError:
    character = source.text[at]
    return QlagenError(
        "E-LEX",
        f"the character {character!r} is not part of the expression language",
        span=source.span(at, at + 1),
        notes=["allowed are names, integers, + - * @ ( ) , and the transpose ^T"],
        hints=[_HINTS[character]] if character in _HINTS else [],
    )
