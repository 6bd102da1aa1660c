"""The functions of the expression language: name, arguments, result shape and meaning.

C is the chunk length. G is a cumulative log gate: row i is the sum of the log gate over tokens 0..i of the chunk, so
every entry is <= 0 and falls with i. The four gate functions are the only way to use it. All their exponents are <= 0,
so none can overflow; a free exponential does not exist in the language.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qlagen.spec.model import Shape

Structure = Literal["full", "lower", "strict"]
"""What is known to be zero: nothing, above the diagonal, or the diagonal too."""


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[str, ...]
    takes: Literal["square", "strict", "gate", "scalar_gate"]
    """``square``: C x C. ``strict``: C x C and strictly lower. ``gate``: a cumulative log gate [C, n].
    ``scalar_gate``: one with a single number a token, [C, 1]."""
    result: Shape
    """``n`` stands for the argument's number of columns."""
    structure: Structure
    """Structure of the result."""
    meaning: str

    def result_shape(self, argument: Shape) -> Shape:
        rows, columns = self.result
        return (rows, argument[1] if columns == "n" else columns)


_TABLE = (
    Function("inv_unit_lower", ("L",), "strict", ("C", "C"), "lower", "(I + L)^-1 of a strictly lower L"),
    Function("stril", ("X",), "square", ("C", "C"), "strict", "X_ij where i > j, else 0"),
    Function("tril", ("X",), "square", ("C", "C"), "lower", "X_ij where i >= j, else 0"),
    Function("decay", ("G",), "scalar_gate", ("C", "C"), "lower", "exp(G_i - G_j) where i >= j, else 0"),
    Function("from_start", ("G",), "gate", ("C", "n"), "full", "exp(G_i): decay from the chunk's start to token i"),
    Function("to_end", ("G",), "gate", ("C", "n"), "full", "exp(G_last - G_i): decay from token i to the chunk's end"),
    Function("total", ("G",), "gate", ("1", "n"), "full", "exp(G_last): decay over the whole chunk"),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}
