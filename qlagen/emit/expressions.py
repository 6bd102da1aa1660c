"""Elementwise expressions as TileLang text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from qlagen.program.ir import Apply, ElementExpr, Gate, Number, Ref

Leaf = Callable[[Ref], str]

_SYMBOL = {"mul": "*", "add": "+", "sub": "-"}


def render(expr: ElementExpr, leaf: Leaf) -> str:
    """The expression with `leaf` giving the text of a named value; only needed parentheses are written."""
    if isinstance(expr, Ref):
        return leaf(expr)
    if isinstance(expr, Number):
        return f"{float(expr.value)}"
    left, right = render(expr.left, leaf), render(expr.right, leaf)
    if expr.operator == "mul":
        left, right = _group(expr.left, left), _group(expr.right, right)
    elif expr.operator == "sub":
        right = _group(expr.right, right)
    return f"{left} {_SYMBOL[expr.operator]} {right}"


def _group(expr: ElementExpr, text: str) -> str:
    sums = isinstance(expr, Apply) and expr.operator != "mul"
    negative = isinstance(expr, Number) and expr.value < 0
    return f"({text})" if sums or negative else text


def factors(expr: ElementExpr) -> tuple[ElementExpr, ...]:
    """The factors of the outermost product, in order; the expression itself when it is none."""
    if isinstance(expr, Apply) and expr.operator == "mul":
        return (*factors(expr.left), *factors(expr.right))
    return (expr,)


def product(parts: Sequence[ElementExpr], leaf: Leaf) -> str:
    """The text of a product of `parts`; 1 when there are none."""
    if len(parts) == 1:
        return render(parts[0], leaf)
    return " * ".join(_group(part, render(part, leaf)) for part in parts) if parts else "1.0"


def strictest(gates: Sequence[Gate]) -> str | None:
    """Which entries the decay and mask factors keep: ``>`` below the diagonal, ``>=`` with it, None for all."""
    kinds = {gate.kind for gate in gates}
    if "strict" in kinds:
        return ">"
    return ">=" if kinds & {"lower", "decay"} else None


def broken(text: str, width: int = 88) -> tuple[str, ...]:
    """The expression in one line if it fits `width`, else a line for each operand of its outermost operators."""
    if len(text) <= width:
        return (text,)
    lines, depth, start = [], 0, 0
    for place, sign in enumerate(text):
        depth += (sign in "([") - (sign in ")]")
        if depth == 0 and place > start and text[place : place + 3] in (" * ", " + ", " - "):
            lines.append(text[start:place])
            start = place + 1
    return (*lines, text[start:])
