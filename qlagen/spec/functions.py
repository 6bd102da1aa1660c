"""The functions of the expression language: name, arguments, result shape and meaning.

C is the chunk length. G is a cumulative log gate, of one value per token or of one per channel: row i is the sum of the
log gate over tokens 0..i of the chunk, so every entry is <= 0 and falls with i. ``before(G)`` is the same gate before
each token's own decay: row i is G_(i-1), and row 0 is zero. What reads the state before it decays is gated so.

The gate functions are the only way to use a log gate. All their exponents are <= 0, so none can overflow; a free
exponential does not exist in the language. ``decay`` and ``gdot`` take G or before(G) for the rows i; the columns j
always have G itself, and with before(G) the diagonal is left out, because its exponent would be positive.

An operator with several steps per token (``[spec].steps``, say M of them) has M rows a token in what it gives for each
step: CM rows a chunk, token after token. ``each`` and ``last`` go from rows per token to rows per step and back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Structure = Literal["full", "lower", "strict"]
"""What is known to be zero: nothing, above the diagonal, or the diagonal too."""

Takes = Literal[
    "square", "strict", "gate", "running_gate", "scalar_gate", "channel_gate", "channels", "tokens", "steps"
]
"""``square``: [r, r], where r is C or the rows per step. ``strict``: the same, and strictly lower.
``running_gate``: a cumulative log gate [r, n]. ``gate``: that, or before(...) of one. ``scalar_gate``: such a gate with
one number a row, [r, 1]. ``channel_gate``: such a gate with a number for each channel, [r, n].
``channels``: a matrix of the shape of the call's channel gate. ``tokens``: anything with a row per token, [C, n], a
cumulative log gate too. ``steps``: anything but a log gate with a row per step, [CM, n]."""

GATES: tuple[Takes, ...] = ("gate", "running_gate", "scalar_gate", "channel_gate")


@dataclass(frozen=True)
class Function:
    name: str
    parameters: tuple[str, ...]
    takes: tuple[Takes, ...]
    """What each argument must be."""
    result: tuple[Literal["rows", "tokens", "steps", "one"], Literal["rows", "columns"]]
    """The result's sides: as many as the last argument has ``rows`` or ``columns``, the chunk's ``tokens`` or
    ``steps``, or one."""
    structure: Structure
    """Structure of the result; strict instead of lower when its gate is before(G)."""
    meaning: str


_TABLE = (
    Function("inv_unit_lower", ("L",), ("strict",), ("rows", "rows"), "lower", "(I + L)^-1 of a strictly lower L"),
    Function("stril", ("X",), ("square",), ("rows", "rows"), "strict", "X_ij where i > j, else 0"),
    Function("tril", ("X",), ("square",), ("rows", "rows"), "lower", "X_ij where i >= j, else 0"),
    Function("decay", ("G",), ("scalar_gate",), ("rows", "rows"), "lower", "exp(G_i - G_j) where i >= j, else 0"),
    Function(
        "gdot",
        ("X", "Y", "G"),
        ("channels", "channels", "channel_gate"),
        ("rows", "rows"),
        "lower",
        "the sum over channels c of X_ic Y_jc exp(G_ic - G_jc) where i >= j, else 0",
    ),
    Function(
        "from_start",
        ("G",),
        ("gate",),
        ("rows", "columns"),
        "full",
        "exp(G_i): decay from the chunk's start to token i",
    ),
    Function(
        "to_end",
        ("G",),
        ("running_gate",),
        ("rows", "columns"),
        "full",
        "exp(G_last - G_i): decay from token i to the chunk's end",
    ),
    Function("total", ("G",), ("running_gate",), ("one", "columns"), "full", "exp(G_last): decay over the whole chunk"),
    Function(
        "before", ("G",), ("running_gate",), ("rows", "columns"), "full", "the gate before each token's decay: G_(i-1)"
    ),
    Function("each", ("X",), ("tokens",), ("steps", "columns"), "full", "every row of X for each step of its token"),
    Function("last", ("X",), ("steps",), ("tokens", "columns"), "full", "the rows of X at each token's last step"),
)

FUNCTIONS: dict[str, Function] = {function.name: function for function in _TABLE}

OF_STEPS = ("each", "last")
"""Functions that only an operator with several steps per token has."""
