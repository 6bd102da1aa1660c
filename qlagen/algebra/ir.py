"""Typed, hash-consed matrix expressions: equal expressions are the same object, so sharing is free.

Normal form: transposes sit at leaves; `multiply` is an n-ary broadcasting Hadamard product; `add` is n-ary with
integer coefficients; `matmul` is binary. There is no free exponential: the decay atoms of a cumulative log gate ``G``
(`from_start`, `to_end`, `total`, `decay`) all have exponents <= 0, so an unsafe exponent cannot be written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from qlagen.spec.model import Shape

Op = Literal[
    "input",  # value = its chunk symbol (Q, K, V, beta, G, S, scale)
    "mask",  # value = "lower" (i >= j), "strict" (i > j)
    "transpose",
    "matmul",
    "multiply",
    "add",  # coefficients go with args
    "row_sum",  # sum over columns: [R, X] -> [R, 1]
    "column_sum",
    "inverse",  # (I + L)^-1 of a strictly lower L
    "from_start",  # exp(G)
    "to_end",  # exp(G_last - G)
    "total",  # exp(G_last), [1, 1] for a scalar gate
    "decay",  # [i >= j] exp(G_i - G_j)
]


@dataclass(frozen=True, eq=False)
class Node:
    """One expression. Compare with ``is``. `key` is the canonical text: it orders commutative operands,
    so that the form does not depend on what was built before."""

    op: Op
    args: tuple[Node, ...]
    shape: Shape
    value: str = ""
    coefficients: tuple[int, ...] = ()
    key: str = ""
