"""How a lower triangular [C, C] tile lies in global memory: strips of rows, each as wide as its last row needs."""

from __future__ import annotations

import math
from dataclasses import dataclass

STRIP_ROWS = 32
"""Rows of a strip. With 32 of 64, three quarters of a tile are moved. Half as many would move five eighths, in twice
as many boxes of half as wide rows."""


@dataclass(frozen=True)
class Strip:
    """Rows `first`, `first` + 1, ... of a tile, `rows` of them, without what lies above the diagonal's last entry in
    them: `columns` entries each, row after row.

    In the memory of a tile, seen as lines of `columns` entries, the strip starts with line `line`. So every strip is a
    box of a dense tensor, whose strides are multiples of one another as tensor maps want it. A box of whole rows of
    the tile reaches beyond such a tensor's columns: there TMA loads zeros and stores nothing.
    """

    first: int
    rows: int
    columns: int
    line: int


def strips(size: int) -> tuple[Strip, ...]:
    """The strips of a [`size`, `size`] tile, from the top, one behind the other."""
    rows = _strip_rows(size)
    return tuple(Strip(i * rows, rows, (i + 1) * rows, i * rows // 2) for i in range(size // rows))


def packed_entries(size: int) -> int:
    """Entries that a tile takes: those of its strips, filled up to whole rows of each of them."""
    rows = _strip_rows(size)
    widths = range(rows, size + 1, rows)
    whole = math.lcm(*widths)
    return -(-rows * sum(widths) // whole) * whole


def _strip_rows(size: int) -> int:
    """One strip where strips of an even number of rows do not fill a tile."""
    return STRIP_ROWS if size % STRIP_ROWS == 0 else size
