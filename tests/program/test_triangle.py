"""Lower triangular tiles in global memory."""

from __future__ import annotations

import numpy as np
import pytest

from qlagen.program.triangle import packed_entries, strips


@pytest.mark.parametrize("size", [64, 96, 128, 40])
def test_strips_hold_the_triangle_and_no_entry_twice(size: int) -> None:
    held = np.zeros((size, size), dtype=bool)
    taken = np.zeros(packed_entries(size), dtype=int)
    for strip in strips(size):
        held[strip.first : strip.first + strip.rows, : strip.columns] = True
        taken.reshape(-1, strip.columns)[strip.line : strip.line + strip.rows] += 1
    assert held[np.tri(size, dtype=bool)].all()
    assert taken.max() == 1
    assert taken.sum() == held.sum()


def test_three_quarters_of_a_chunk_of_64() -> None:
    assert packed_entries(64) == 3072
    assert [(s.first, s.rows, s.columns, s.line) for s in strips(64)] == [(0, 32, 32, 0), (32, 32, 64, 16)]


def test_what_strips_do_not_fill_lies_as_it_is() -> None:
    assert packed_entries(40) == 1600
    assert [(s.first, s.rows, s.columns, s.line) for s in strips(40)] == [(0, 40, 40, 0)]
