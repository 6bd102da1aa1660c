"""Typed construction of expressions: shapes, broadcasting and triangular structure.

One function per kind of expression (calls are in `qlagen.spec.calls`). Each checks its operands, says which rule they
break and how to mend it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from qlagen.errors import QlagenError, Span, did_you_mean
from qlagen.spec.functions import Structure
from qlagen.spec.model import Binary, Expression, Integer, Name, Negate, Shape, Transpose
from qlagen.spec.show import format_expression, format_shape

Operator = Literal["+", "-", "*", "@"]

MAX_EXPRESSION_DEPTH = 64
"""Operators on the longest path through an expression; ``a + b + c`` counts two."""


@dataclass(frozen=True)
class Symbol:
    """A name that an expression may use. `log_gate` marks a cumulative log gate."""

    shape: Shape
    structure: Structure = "full"
    log_gate: bool = False


@dataclass(frozen=True)
class Scope:
    """The names that one line of a table may use."""

    table: str
    """For messages, for example ``[stages]``."""
    symbols: Mapping[str, Symbol]
    line: str = ""
    """The name of the line itself."""
    later: frozenset[str] = frozenset()
    """Lines below it."""
    hints: Mapping[str, str] = field(default_factory=dict)
    """What to write instead of names that look right but belong to the other table."""
    step_rows: str = ""
    """Symbol of the number of rows per step in a chunk; empty where a token is one step."""


@dataclass(frozen=True)
class Typed:
    """An expression with what is known about it."""

    node: Expression
    depth: int = 1
    structure: Structure = "full"
    constant: bool = False
    """Made of integers only."""
    log_gate: bool = False
    exclusive: bool = False
    """A log gate before each token's own decay: ``before(G)``."""


def make_integer(value: int, span: Span) -> Typed:
    return Typed(Integer(value, ("1", "1"), span), constant=True)


def make_name(name: str, span: Span, scope: Scope) -> Typed:
    """Raises E-NAME and E-ORDER."""
    if name in scope.symbols:
        symbol = scope.symbols[name]
        return Typed(Name(name, symbol.shape, span), structure=symbol.structure, log_gate=symbol.log_gate)
    if name == scope.line:
        message = f"{name!r} refers to itself"
        raise QlagenError("E-ORDER", message, span=span, hints=["a line may use inputs, the state and lines above it"])
    if name in scope.later:
        message = f"{scope.line!r} uses {name!r} before it is defined"
        raise QlagenError("E-ORDER", message, span=span, hints=[f"move the line {name!r} above {scope.line!r}"])
    known = ", ".join(f"{known} {format_shape(symbol.shape)}" for known, symbol in scope.symbols.items())
    hints = [scope.hints[name]] if name in scope.hints else did_you_mean(name, scope.symbols)
    message = f"undefined name {name!r} in {scope.table}"
    raise QlagenError("E-NAME", message, span=span, notes=[f"defined here: {known}"], hints=hints)


def make_negate(operand: Typed, span: Span) -> Typed:
    check_no_log_gate(operand)
    node = Negate(operand.node, operand.node.shape, span)
    return limit_depth(Typed(node, operand.depth + 1, operand.structure, operand.constant))


def make_transpose(operand: Typed, span: Span) -> Typed:
    check_no_log_gate(operand)
    check_not_constant(operand, "transposed")
    rows, columns = operand.node.shape
    return limit_depth(Typed(Transpose(operand.node, (columns, rows), span), operand.depth + 1))


def make_binary(operator: Operator, left: Typed, right: Typed, span: Span) -> Typed:
    """Raises E-SHAPE, E-SCALE, E-LOGGATE and E-DEPTH."""
    for operand in (left, right):
        check_no_log_gate(operand)
        if operator != "*":
            check_not_constant(operand, {"+": "added", "-": "subtracted", "@": "used in a matrix product"}[operator])
    a, b = left.node.shape, right.node.shape
    shape = matmul_shape(a, b) if operator == "@" else broadcast_shape(a, b)
    if shape is None:
        raise _shape_error(operator, left.node, right.node, span)
    node = Binary(operator, left.node, right.node, shape, span)
    structure = _binary_structure(operator, left, right)
    constant = left.constant and right.constant
    return limit_depth(Typed(node, 1 + max(left.depth, right.depth), structure, constant))


def check_line(result: Typed) -> None:
    """A whole line must be a matrix: not a bare integer, nor a bare log gate."""
    check_no_log_gate(result)
    check_not_constant(result, "a line of its own")


def broadcast_shape(left: Shape, right: Shape) -> Shape | None:
    """The common shape when sides of 1 stretch, or None when there is none."""
    sides = [a if b in ("1", a) else b if a == "1" else None for a, b in zip(left, right, strict=True)]
    rows, columns = sides
    return None if rows is None or columns is None else (rows, columns)


def matmul_shape(left: Shape, right: Shape) -> Shape | None:
    return (left[0], right[1]) if left[1] == right[0] else None


def _binary_structure(operator: Operator, left: Typed, right: Typed) -> Structure:
    """Masks survive a Hadamard product with anything; sums and matrix products need both sides triangular."""
    pair = (left.structure, right.structure)
    if operator == "*":
        return "strict" if "strict" in pair else "lower" if "lower" in pair else "full"
    if "full" in pair:
        return "full"
    strict = "strict" in pair if operator == "@" else pair == ("strict", "strict")
    return "strict" if strict else "lower"


def limit_depth(typed: Typed) -> Typed:
    if typed.depth > MAX_EXPRESSION_DEPTH:
        message = f"the expression is more than {MAX_EXPRESSION_DEPTH} operators deep"
        hints = ["name a part of it on a line of its own"]
        raise QlagenError("E-DEPTH", message, span=typed.node.span, hints=hints)
    return typed


def check_no_log_gate(operand: Typed) -> None:
    if operand.log_gate:
        text = format_expression(operand.node)
        product = "decay" if operand.node.shape[1] == "1" else "gdot"
        atom = f"{product}({text})" if product == "decay" else f"{product}(X, Y, {text})"
        raise QlagenError(
            "E-LOGGATE",
            f"the cumulative log gate {text} may only be the argument of a gate function",
            span=operand.node.span,
            notes=["a free exponent could overflow; those of the gate functions are never above 0"],
            hints=[f"write {atom}, from_start({text}), to_end({text}) or total({text})"],
        )


def check_not_constant(operand: Typed, use: str) -> None:
    if operand.constant:
        message = f"the integer {short(operand.node)} may only multiply a matrix, not be {use}"
        raise QlagenError("E-SCALE", message, span=operand.node.span, hints=["write for example 2 * X"])


def _shape_error(operator: Operator, left: Expression, right: Expression, span: Span) -> QlagenError:
    a, b = left.shape, right.shape
    if operator == "@":
        rule = f"inner dimensions {a[1]} and {b[0]} differ"
        wanted = "@ multiplies [m, n] by [n, p]"
    else:
        rule = f"{format_shape(a)} and {format_shape(b)} do not broadcast"
        wanted = f"the sides of {operator} must be equal, or 1"
    notes = [f"left:  {short(left)} {format_shape(a)}", f"right: {short(right)} {format_shape(b)}", wanted]
    message = f"shapes do not fit {operator}: {rule}"
    return QlagenError("E-SHAPE", message, span=span, notes=notes, hints=_shape_hints(operator, left, right))


def _shape_hints(operator: Operator, left: Expression, right: Expression) -> list[str]:
    """Repairs that would type-check: scale instead of multiply, transpose one side, swap the sides."""
    a, b = left.shape, right.shape
    fits = matmul_shape if operator == "@" else broadcast_shape
    fixed = []
    if fits(a, (b[1], b[0])):
        fixed.append(Binary(operator, left, _transposed(right), a, left.span))
    if fits((a[1], a[0]), b):
        fixed.append(Binary(operator, _transposed(left), right, b, left.span))
    if operator == "@" and matmul_shape(b, a):
        fixed.append(Binary(operator, right, left, b, left.span))
    hints = [f"this would fit: {short(candidate)}" for candidate in fixed]
    if operator == "@" and "1" in (*a, *b) and broadcast_shape(a, b):
        hints.insert(0, "to scale rows, columns or everything, use *")
    return hints


def _transposed(node: Expression) -> Expression:
    """The transpose, written without a second ^T."""
    if isinstance(node, Transpose):
        return node.operand
    return Transpose(node, (node.shape[1], node.shape[0]), node.span)


def short(node: Expression, limit: int = 60) -> str:
    text = format_expression(node)
    return text if len(text) <= limit else text[: limit - 3] + "..."
