"""Recursive-descent parser of the expression language.

    sum     = product { ("+" | "-") product }
    product = unary { ("*" | "@") unary }           both left-associative and equally strong
    unary   = "-" unary | postfix
    postfix = primary { "^T" }
    primary = NAME | INTEGER | NAME "(" sum { "," sum } ")" | "(" sum ")"

Nothing is evaluated. Types are checked as the tree is built, see `qlagen.spec.typing` and
`qlagen.spec.calls`.
"""

from __future__ import annotations

from typing import Literal

from qlagen.errors import QlagenError, Span
from qlagen.spec.calls import find_function, make_call
from qlagen.spec.document import SourceText
from qlagen.spec.functions import FUNCTIONS
from qlagen.spec.tokens import Token, tokenize
from qlagen.spec.typing import (
    MAX_EXPRESSION_DEPTH,
    Scope,
    Typed,
    check_line,
    make_binary,
    make_integer,
    make_name,
    make_negate,
    make_transpose,
)


def parse_expression(source: SourceText, scope: Scope) -> Typed:
    """Parse and type one line of a table; raises QlagenError with the place in the file."""
    return _Parser(source, scope).parse()


class _Parser:
    def __init__(self, source: SourceText, scope: Scope) -> None:
        self.source = source
        self.scope = scope
        self.tokens = tokenize(source)
        self.index = 0
        self.nesting = 0

    def parse(self) -> Typed:
        if self._peek().kind == "end":
            raise self._error("the expression is empty")
        result = self._sum()
        if self._peek().kind != "end":
            raise self._error(f"expected an operator or the end, got {self._got()}", self._product_hint())
        check_line(result)
        return result

    def _peek(self) -> Token:
        return self.tokens[self.index]

    def _at(self, symbol: str) -> bool:
        return self._peek().kind == "symbol" and self._peek().text == symbol

    def _take(self) -> Token:
        token = self._peek()
        self.index += 1
        return token

    def _got(self) -> str:
        return "the end of the expression" if self._peek().kind == "end" else repr(self._peek().text)

    def _product_hint(self) -> str:
        return "multiply with * or @" if self._peek().kind in ("name", "integer") or self._at("(") else ""

    def _error(self, message: str, hint: str = "") -> QlagenError:
        span = self.source.span(self._peek().start, self._peek().end)
        return QlagenError("E-SYNTAX", message, span=span, hints=[hint] if hint else [])

    def _span(self, first: Token) -> Span:
        """From a token to the last one taken."""
        return self.source.span(first.start, self.tokens[self.index - 1].end)

    def _sum(self) -> Typed:
        first = self._peek()
        left = self._product()
        while self._at("+") or self._at("-"):
            operator: Literal["+", "-"] = "+" if self._take().text == "+" else "-"
            right = self._product()
            left = make_binary(operator, left, right, self._span(first))
        return left

    def _product(self) -> Typed:
        first = self._peek()
        left = self._unary()
        while self._at("*") or self._at("@"):
            operator: Literal["*", "@"] = "*" if self._take().text == "*" else "@"
            right = self._unary()
            left = make_binary(operator, left, right, self._span(first))
        return left

    def _unary(self) -> Typed:
        first = self._peek()
        self.nesting += 1
        if self.nesting > MAX_EXPRESSION_DEPTH:
            message = f"the expression is nested more than {MAX_EXPRESSION_DEPTH} deep"
            span = self.source.span(first.start, first.end)
            raise QlagenError("E-DEPTH", message, span=span, hints=["name a part of it on a line of its own"])
        if self._at("-"):
            self._take()
            operand = self._unary()
            result = make_negate(operand, self._span(first))
        else:
            result = self._postfix()
        self.nesting -= 1
        return result

    def _postfix(self) -> Typed:
        first = self._peek()
        result = self._primary()
        while self._peek().kind == "transpose":
            self._take()
            result = make_transpose(result, self._span(first))
        return result

    def _primary(self) -> Typed:
        if self._at("("):
            self._take()
            result = self._sum()
            self._close()
            return result
        if self._peek().kind == "integer":
            token = self._take()
            return make_integer(int(token.text), self._span(token))
        if self._peek().kind != "name":
            raise self._error(f"expected a name, an integer, '-' or '(', got {self._got()}")
        token = self._take()
        return self._call(token) if self._at("(") else self._name(token)

    def _name(self, token: Token) -> Typed:
        if token.text in FUNCTIONS and token.text not in self.scope.symbols:
            raise self._error(f"the function {token.text} needs its argument in parentheses, got {self._got()}")
        return make_name(token.text, self._span(token), self.scope)

    def _call(self, name: Token) -> Typed:
        name_span = self._span(name)
        if name.text in self.scope.symbols:
            raise self._error(f"{name.text} is not a function", "multiply with * or @")
        find_function(name.text, name_span, self.scope)
        self._take()
        arguments = [] if self._at(")") else [self._sum()]
        while arguments and self._at(","):
            self._take()
            arguments.append(self._sum())
        self._close()
        return make_call(name.text, name_span, arguments, self._span(name), self.scope)

    def _close(self) -> None:
        if not self._at(")"):
            raise self._error(f"expected ')', got {self._got()}", self._product_hint())
        self._take()
