"""Identities between decay atoms of a scalar gate, as identities of their exponents.

On entry (i, j) of the lower triangle, i >= j, an atom is exp of a linear form in G_i, G_j and G_last. Two products of
atoms are equal when the forms add up to the same sum. `qlagen.algebra.exact` proves every line here with sympy.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

GateAtom = Literal["decay", "from_start_row", "from_start_column", "to_end_row", "to_end_column", "total"]
"""``from_start_row`` is exp(G_i), it scales row i; ``from_start_column`` is exp(G_j), it scales column j."""

EXPONENTS: dict[GateAtom, tuple[int, int, int]] = {
    "decay": (1, -1, 0),
    "from_start_row": (1, 0, 0),
    "from_start_column": (0, 1, 0),
    "to_end_row": (-1, 0, 1),
    "to_end_column": (0, -1, 1),
    "total": (0, 0, 1),
}
"""Coefficients of G_i, G_j and G_last."""


@dataclass(frozen=True)
class GateIdentity:
    """The product of the atoms on the left is the product of those on the right, where i >= j."""

    name: str
    left: tuple[GateAtom, ...]
    right: tuple[GateAtom, ...]


IDENTITIES = (
    GateIdentity("absorb to_end", ("decay", "to_end_row"), ("to_end_column",)),
    GateIdentity("absorb from_start", ("decay", "from_start_column"), ("from_start_row",)),
    GateIdentity("merge gates", ("from_start_row", "to_end_row"), ("total",)),
)
