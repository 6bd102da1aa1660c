"""Offsets that the host knows choose the plan, and only that."""

from __future__ import annotations

import gc

import pytest
import torch

from qla_ops import chunk_gated_delta_rule
from qla_ops.runtime import costs, lengths
from qla_ops.runtime.choose import OPERATORS, call_plan
from qla_ops.runtime.lengths import fit, group, known_lengths
from qla_ops.runtime.metadata import packed_tables
from qla_ops.runtime.model import Groups, choose_length, segment_count
from qla_ops.runtime.plan import AUTOMATIC, CUT_NOTHING, NEVER, Cutting, Plan, choose_plan
from tests.package.calls import inputs
from tests.package.shared_kernels import make_tables
from tests.package.test_segments import EIGHT_HEADS, check, check_tables, offsets_of

OPERATOR = OPERATORS["gated_delta_rule"]
SMS, CHUNK = 132, 64


def plan(heads: int, chunks: list[int], known: bool = True, parts: int = AUTOMATIC) -> Plan:
    groups = group(chunks) if known else None
    return choose_plan(OPERATOR, len(chunks), sum(chunks) * CHUNK, heads, SMS, True, parts, groups)


@pytest.mark.parametrize(("heads", "count", "length"), [(32, 4, 8192), (32, 8, 4096), (32, 4, 2048), (64, 4, 8192)])
def test_equal_lengths_cost_what_they_cost_unpacked(heads: int, count: int, length: int) -> None:
    """Without the lengths the first two get two kernels that find nothing to do."""
    chosen = plan(heads, [length // CHUNK] * count)
    apart = choose_plan(OPERATOR, count, count * length, heads, SMS, False, AUTOMATIC)
    assert chosen.segment is apart.segment is None
    assert chosen.times == apart.times
    assert plan(32, [128] * 4, known=False).segment is not None


def test_one_long_sequence_is_cut_without_a_search() -> None:
    chunks = [448, 64]
    chosen, guessed = plan(32, chunks), plan(32, chunks, known=False)
    assert chosen.segment is not None
    assert chosen.cutting.length == choose_length(chunks, 10_000, chosen.cutting.weights)
    assert chosen.cutting.segments == segment_count(chunks, chosen.cutting.length) <= guessed.cutting.segments
    assert guessed.cutting.length == 0
    assert chosen.times[0].idle <= min(time.idle for time in guessed.times) - costs.SEARCH
    assert plan(32, chunks, parts=NEVER).segment is None


def test_a_number_of_segments_fits_the_lengths() -> None:
    """Without them there is room for what any lengths could need."""
    given = offsets_of([640, 64, 0, 130])
    known = known_lengths("f", given, 834, CHUNK)
    assert known.chunks == (10, 1, 0, 3)
    for parts, wanted in ((3, 3 + 1 + 1 + 3), (2, 2 + 1 + 1 + 2), (50, 10 + 1 + 1 + 3)):
        chosen = choose_plan(OPERATOR, 4, 834, 8, SMS, True, parts, known.groups)
        made = fit(chosen.cutting, known)
        assert (made.segments, made.parts) == (wanted, parts)
        check(packed_tables(given, 834, CHUNK, made), [640, 64, 0, 130], [min(parts, n) or 1 for n in known.chunks])
    assert fit(CUT_NOTHING, known) is CUT_NOTHING


@pytest.mark.parametrize("length", [1, 3, 40, 512])
def test_the_kernel_takes_the_length_that_it_is_given(length: int) -> None:
    tokens = [3000, 0, 64, 20_000, 129]
    chunks = [-(-n // CHUNK) for n in tokens]
    cutting = Cutting(segment_count(chunks, length), AUTOMATIC, EIGHT_HEADS, length)
    made = packed_tables(offsets_of(tokens), sum(tokens), CHUNK, cutting)
    check(made, tokens, [max(1, -(-n // length)) for n in chunks])
    check_tables(make_tables(offsets_of(tokens), sum(tokens), CHUNK, made, cutting), made)


@pytest.mark.parametrize("now", [[20_000, 3000], [11_500, 11_500], [23_000, 0], [64, 64]])
def test_other_lengths_than_the_host_was_told(now: list[int]) -> None:
    """There may be too little room for the length; then the device chooses one that fits."""
    told = (360, 1)
    cutting = Cutting(segment_count(told, 40), AUTOMATIC, EIGHT_HEADS, 40)
    chunks = [-(-n // CHUNK) for n in now]
    fits = segment_count(chunks, 40) <= cutting.segments
    length = 40 if fits else choose_length(chunks, cutting.segments, EIGHT_HEADS)
    made = packed_tables(offsets_of(now), 23_000, CHUNK, cutting)
    check(made, now, [max(1, -(-n // length)) for n in chunks])
    check_tables(make_tables(offsets_of(now), 23_000, CHUNK, made, cutting), made)


def test_the_last_tensor_is_remembered_until_it_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = lengths.check_offset_values
    monkeypatch.setattr(lengths, "check_offset_values", lambda *a: (read.append(1), real(*a))[1])
    given = torch.tensor([0, 100, 300])
    first = known_lengths("f", given, 300, CHUNK)
    assert known_lengths("f", given, 300, CHUNK) is first
    assert first.chunks == (2, 4)
    given[1] = 64
    assert known_lengths("f", given, 300, CHUNK).chunks == (1, 4)
    other = torch.tensor([0, 10, 300])
    assert known_lengths("f", other, 300, CHUNK).chunks == (1, 5)
    assert len(read) == 3
    with torch.inference_mode():
        frozen = torch.tensor([0, 100, 300])
        assert known_lengths("f", frozen, 300, CHUNK).chunks == (2, 4)
        frozen[1] = 64
        assert known_lengths("f", frozen, 300, CHUNK).chunks == (1, 4)
    del given, other, frozen
    gc.collect()
    assert known_lengths("f", torch.tensor([0, 100, 300]), 300, CHUNK).chunks == (2, 4)


@pytest.mark.parametrize("offsets", [[0, 200, 100], [5, 100], [0, 301]])
def test_offsets_that_are_none(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match=r"f: cu_seqlens_cpu is \d+ at index \d; offsets must start at 0, never"):
        known_lengths("f", torch.tensor(offsets), 300, CHUNK)


def test_growing_sequences_share_plans() -> None:
    """Lengths are rounded up, by an eighth at most."""
    groups: set[Groups] = set()
    for step in range(1000, 2000):
        (count, length), *rest = group([step] * 3)
        assert (count, rest) == (3, [])
        assert step <= length <= step * 9 / 8
        groups.add(((count, length),))
    assert len(groups) <= 10
    made = [call_plan(OPERATOR, 3, 3 * n * CHUNK, 8, SMS, True, AUTOMATIC, group([n] * 3)) for n in range(1000, 2000)]
    assert len(set(map(id, made))) == len(groups)


def test_the_portable_implementation_takes_and_ignores_them() -> None:
    offsets = torch.tensor([0, 30, 70])
    one, other = (
        chunk_gated_delta_rule(**inputs(), cu_seqlens=offsets, cu_seqlens_cpu=given, impl="reference")[0]
        for given in (None, torch.tensor([0, 64, 70]))
    )
    assert torch.equal(one, other)


def test_debugging_tells_the_two_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QLA_OPS_DEBUG", "1")
    offsets = torch.tensor([0, 30, 70])
    chunk_gated_delta_rule(**inputs(), cu_seqlens=offsets, cu_seqlens_cpu=offsets.int(), impl="reference")
    wrong = torch.tensor([0, 64, 70])
    with pytest.raises(ValueError, match=r"cu_seqlens_cpu is \[0, 64, 70\]; it must hold the numbers of cu_seqlens"):
        chunk_gated_delta_rule(**inputs(), cu_seqlens=offsets, cu_seqlens_cpu=wrong, impl="reference")
