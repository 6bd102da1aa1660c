"""The tables against a NumPy truth made sequence by sequence."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from qla_ops.runtime import metadata
from qla_ops.runtime.metadata import Tables, equal_length_tables, packed_tables

CHUNK = 64
CPU = torch.device("cpu")

PACKED = {
    "one": ([0, 200], 200),
    "ragged": ([0, 57, 59, 64], 64),
    "one-token tail": ([0, 8191, 8192], 8192),
    "padding": ([0, 211, 985], 1000),
    "empty first, middle, last": ([0, 0, 65, 65, 65, 130, 130], 130),
    "all empty": ([0, 0, 0], 7),
    "whole chunks": ([0, 64, 192], 192),
    "many short": (list(range(0, 2050 * 16 + 1, 16)), 2050 * 16),
    "none": ([0], 9),
}


def truth(offsets: list[int], slots: int) -> dict[str, list[int]]:
    """Walks the sequences."""
    chunk_offsets, first, rows = [0], [], []
    for start, end in itertools.pairwise(offsets):
        starts = list(range(start, end, CHUNK))
        first += starts
        rows += [min(CHUNK, end - s) for s in starts]
        chunk_offsets.append(len(first))
    unused = slots - len(first)
    assert unused >= 0
    return {
        "cu_seqlens": offsets,
        "chunk_offsets": chunk_offsets,
        "chunk_first": first + [0] * unused,
        "chunk_rows": rows + [0] * unused,
    }


def check(tables: Tables, expected: dict[str, list[int]]) -> None:
    for name, values in expected.items():
        table = getattr(tables, name)
        assert table.dtype == torch.int32, name
        assert table.is_contiguous(), name
        np.testing.assert_array_equal(table.numpy(), np.array(values), err_msg=name)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", PACKED)
def test_packed(name: str, dtype: torch.dtype) -> None:
    offsets, tokens = PACKED[name]
    tables = packed_tables(torch.tensor(offsets, dtype=dtype), tokens, CHUNK)
    assert tables.chunk_count == tokens // CHUNK + len(offsets) - 1
    check(tables, truth(offsets, tables.chunk_count))


WRONG = {
    "start late": ([5, 30, 70], [0, 30, 70]),
    "fall back": ([0, 60, 20, 70], [0, 60, 60, 70]),
    "past the end": ([0, 90, 200], [0, 70, 70]),
    "negative": ([0, -3, 70], [0, 0, 70]),
    "far past the end": ([0, 2**40, 2**40], [0, 70, 70]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_offsets_lead_nowhere(name: str) -> None:
    """Whatever the offsets, no table points outside the tokens or the slots."""
    given, put_right = WRONG[name]
    tables = packed_tables(torch.tensor(given), 70, CHUNK)
    check(tables, truth(put_right, tables.chunk_count))


def test_random_lengths_fit_the_bound() -> None:
    generator = np.random.default_rng(0)
    for _ in range(200):
        lengths = generator.integers(0, 200, generator.integers(1, 12))
        offsets = [0, *np.cumsum(lengths).tolist()]
        tokens = offsets[-1] + int(generator.integers(0, 70))
        tables = packed_tables(torch.tensor(offsets), tokens, CHUNK)
        check(tables, truth(offsets, tables.chunk_count))


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 64), (3, 65), (2, 200), (4, 128), (5, 0)])
def test_equal_lengths(batch: int, length: int) -> None:
    tables = equal_length_tables(batch, length, CHUNK, CPU)
    assert tables.chunk_count == batch * -(-length // CHUNK)
    check(tables, truth([i * length for i in range(batch + 1)], tables.chunk_count))


def test_offsets_that_are_overwritten_count() -> None:
    """The same tensor object with new contents gives new tables."""
    offsets = torch.tensor([0, 64, 128])
    assert packed_tables(offsets, 320, CHUNK).chunk_offsets.tolist() == [0, 1, 2]
    offsets.copy_(torch.tensor([0, 64, 320]))
    assert packed_tables(offsets, 320, CHUNK).chunk_offsets.tolist() == [0, 1, 5]


def test_equal_length_tables_are_kept_and_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "_CACHE", type(metadata._CACHE)())
    first = equal_length_tables(2, 100, CHUNK, CPU)
    assert equal_length_tables(2, 100, CHUNK, CPU) is first
    for length in range(1, 200):
        equal_length_tables(1, length, CHUNK, CPU)
    assert len(metadata._CACHE) == metadata._CACHE_ENTRIES
    assert equal_length_tables(2, 100, CHUNK, CPU) is not first


def test_tables_of_a_capture_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """They would be used before the graph that fills them has run."""
    monkeypatch.setattr(metadata, "_CACHE", type(metadata._CACHE)())
    monkeypatch.setattr(metadata, "_capturing", lambda device: True)
    first = equal_length_tables(2, 100, CHUNK, CPU)
    assert equal_length_tables(2, 100, CHUNK, CPU) is not first
    assert not metadata._CACHE


def test_tables_that_a_capture_used_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graph holds their addresses."""
    monkeypatch.setattr(metadata, "_CACHE", type(metadata._CACHE)())
    monkeypatch.setattr(metadata, "_FOR_GOOD", {})
    first = equal_length_tables(2, 100, CHUNK, CPU)
    monkeypatch.setattr(metadata, "_capturing", lambda device: True)
    assert equal_length_tables(2, 100, CHUNK, CPU) is first
    monkeypatch.setattr(metadata, "_capturing", lambda device: False)
    for length in range(1, 200):
        equal_length_tables(1, length, CHUNK, CPU)
    assert equal_length_tables(2, 100, CHUNK, CPU) is first
    assert len(metadata._CACHE) == metadata._CACHE_ENTRIES


class Event:
    done = False

    def query(self) -> bool:
        assert not metadata._capturing(CPU)
        return self.done


def test_tables_of_another_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are used when they are there, as far as is known; a capture cannot ask."""
    event, stream, capturing = Event(), [1], [False]
    monkeypatch.setattr(metadata, "_CACHE", type(metadata._CACHE)())
    monkeypatch.setattr(metadata, "_FOR_GOOD", {})
    monkeypatch.setattr(metadata, "_mark", lambda device: event)
    monkeypatch.setattr(metadata, "_stream", lambda device: stream[0])
    monkeypatch.setattr(metadata, "_capturing", lambda device: capturing[0])
    first = equal_length_tables(2, 100, CHUNK, CPU)
    stream[0] = 2
    assert equal_length_tables(2, 100, CHUNK, CPU) is not first
    event.done, capturing[0] = True, True
    assert equal_length_tables(2, 100, CHUNK, CPU) is not first
    assert not metadata._FOR_GOOD
    capturing[0] = False
    assert equal_length_tables(2, 100, CHUNK, CPU) is first
    capturing[0] = True
    assert equal_length_tables(2, 100, CHUNK, CPU) is first
    assert [kept.tables for kept in metadata._FOR_GOOD.values()] == [first]
