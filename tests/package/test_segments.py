"""Tables of segments: against a truth made sequence by sequence, and tables.cu in the emulator against torch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from qla_ops.runtime.metadata import Tables, equal_length_tables, packed_tables
from qla_ops.runtime.model import Weights, choose_length
from qla_ops.runtime.plan import AUTOMATIC, CUT_NOTHING, NEVER, Cutting
from qlagen.verify.emulator import Mode
from tests.package.shared_kernels import check_tables, make_tables
from tests.package.test_metadata import CHUNK, CPU, PACKED, WRONG

EIGHT_HEADS = Weights(
    forward_chunk=1500,
    forward_ctas=16,
    forward_slots=132,
    segment_chunk=1000,
    segment_alone=900,
    state_ctas=16,
    map_ctas=16,
    segment_slots=264,
    join_step=700,
    join_ctas=64,
    processors=132,
    start=4000,
    share=256,
    warm_chunks=6,
)
FULL = EIGHT_HEADS._replace(forward_ctas=256, state_ctas=256, map_ctas=256)
MODES = (Mode(), Mode(seed=1))


def truth(lengths: list[int], parts: list[int], segments: int) -> dict[str, list[int]]:
    """Walks the sequences of `lengths` tokens, cut into `parts` segments each."""
    offsets, slots, owners, chains = [0], [0], [], []
    for sequence, (tokens, count) in enumerate(zip(lengths, parts, strict=True)):
        start, slot, chunks = offsets[-1], slots[-1], -(-tokens // CHUNK)
        if count > 2:
            chains.append((len(owners) - sequence, count - 1))
        for part in range(1, count + 1):
            cut = part * chunks // count
            offsets.append(min(start + cut * CHUNK, start + tokens))
            slots.append(slot + cut)
            owners.append(sequence)
    unused = segments - len(owners)
    return {
        "segment_offsets": offsets + [offsets[-1]] * unused,
        "segment_chunks": slots + [slots[-1]] * unused,
        "segment_sequence": owners + [-1] * unused,
        "chains": list(itertools.chain(*chains)),
    }


def check(made: Tables, lengths: list[int], parts: list[int]) -> None:
    expected = truth(lengths, parts, made.segments)
    chains = expected.pop("chains")
    assert made.chain_count >= len(chains) // 2
    assert made.chains[: 2 * made.chain_count].tolist() == chains + [0] * (2 * made.chain_count - len(chains))
    assert made.joints == made.segments - len(lengths)
    for name, values in expected.items():
        table = getattr(made, name)
        assert table.dtype == torch.int32, name
        assert table.is_contiguous(), name
        np.testing.assert_array_equal(table.numpy(), np.array(values), err_msg=name)


def offsets_of(lengths: list[int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=dtype)


LENGTHS = {
    "one": [200],
    "one chunk": [64],
    "long and short": [3000, 1, 64, 65],
    "empty first, middle, last": [0, 640, 0, 0, 700, 0],
    "all empty": [0, 0, 0],
    "tails": [64 * 7 + 1, 64 * 7 + 63, 64 * 7],
    "many": [97 * (i % 9) for i in range(300)],
    "more than a block": [64 * (i % 4) for i in range(1100)],
}


@pytest.mark.parametrize("parts", [1, 2, 3, 5, 64])
@pytest.mark.parametrize("name", LENGTHS)
def test_a_number_of_segments(name: str, parts: int) -> None:
    """Every sequence in so many segments as its chunks allow; as many segments as the host may have to expect."""
    lengths = LENGTHS[name]
    tokens = sum(lengths) + 5
    limit = max(len(lengths), min(len(lengths) * parts, tokens // CHUNK + len(lengths)))
    cutting = Cutting(limit, parts, EIGHT_HEADS)
    made = packed_tables(offsets_of(lengths), tokens, CHUNK, cutting)
    assert made.segments == limit
    check(made, lengths, [max(1, min(parts, -(-n // CHUNK))) for n in lengths])
    check_tables(make_tables(offsets_of(lengths), tokens, CHUNK, made, cutting), made)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("weights", [EIGHT_HEADS, FULL], ids=["eight heads", "GPU full"])
@pytest.mark.parametrize("extra", [0, 1, 7, 40])
@pytest.mark.parametrize("name", LENGTHS)
def test_the_cheapest_cut(name: str, extra: int, weights: Weights, mode: Mode) -> None:
    """The kernel chooses what the model chooses, and never more segments than there is room for."""
    lengths = LENGTHS[name]
    cutting = Cutting(len(lengths) + extra, AUTOMATIC, weights)
    made = packed_tables(offsets_of(lengths), sum(lengths), CHUNK, cutting)
    chunks = [-(-n // CHUNK) for n in lengths]
    length = choose_length(chunks, cutting.segments, weights)
    check(made, lengths, [max(1, -(-n // length)) for n in chunks])
    check_tables(make_tables(offsets_of(lengths), sum(lengths), CHUNK, made, cutting, mode), made)


def test_what_is_cut() -> None:
    """A long sequence with few heads is; not where the GPU is full, and never beyond the room that there is."""

    def cut(lengths: list[int], extra: int, weights: Weights) -> list[int]:
        cutting = Cutting(len(lengths) + extra, AUTOMATIC, weights)
        made = packed_tables(offsets_of(lengths), sum(lengths), CHUNK, cutting)
        return torch.bincount(made.segment_sequence[made.segment_sequence >= 0].long()).tolist()

    alone = cut([32768], 63, EIGHT_HEADS)
    assert alone[0] >= 8
    assert cut([32768], 3, EIGHT_HEADS) == [4]
    assert cut([32768], 63, FULL) == [1]
    first, middle, last = cut([640, 32768, 10], 63, EIGHT_HEADS)
    assert (first, last) == (1, 1)
    assert 8 <= middle <= alone[0]
    assert cut([32768] * 16, 63, EIGHT_HEADS) == [1] * 16


def test_random_lengths() -> None:
    """The kernel and the model agree on lengths of all kinds."""
    generator = np.random.default_rng(0)
    for trial in range(30):
        count = int(generator.integers(1, 40))
        lengths = (generator.integers(0, 4000, count) * (generator.random(count) < 0.4)).tolist()
        lengths[0] += 64 * int(generator.integers(0, 600))
        cutting = Cutting(count + int(generator.integers(0, 80)), AUTOMATIC, (EIGHT_HEADS, FULL)[trial % 2])
        made = packed_tables(offsets_of(lengths), sum(lengths), CHUNK, cutting)
        check_tables(make_tables(offsets_of(lengths), sum(lengths), CHUNK, made, cutting), made)


def test_more_long_sequences_than_are_looked_at() -> None:
    lengths = [640 + 64 * (n % 2) for n in range(1100)]
    cutting = Cutting(3000, AUTOMATIC, EIGHT_HEADS)
    made = packed_tables(offsets_of(lengths), sum(lengths), CHUNK, cutting)
    check(made, lengths, [1] * 1100)
    check_tables(make_tables(offsets_of(lengths), sum(lengths), CHUNK, made, cutting), made)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", [*PACKED, *WRONG])
def test_the_kernel_makes_the_same_tables(name: str, dtype: torch.dtype) -> None:
    """Chunks and segments, whole and cut, also of wrong offsets."""
    given, tokens = PACKED[name] if name in PACKED else (WRONG[name][0], 70)
    offsets, room = torch.tensor(given).to(dtype), max(0, len(given) - 1) * 3
    for cutting in (CUT_NOTHING, Cutting(room, 3, EIGHT_HEADS), Cutting(room, AUTOMATIC, EIGHT_HEADS)):
        expected = packed_tables(offsets, tokens, CHUNK, cutting)
        for mode in MODES:
            check_tables(make_tables(offsets, tokens, CHUNK, expected, cutting, mode), expected)


@pytest.mark.parametrize(("batch", "length", "parts"), [(1, 1, 4), (3, 65, 2), (2, 2000, 5), (4, 128, 3), (5, 0, 2)])
def test_equal_lengths(batch: int, length: int, parts: int) -> None:
    made = equal_length_tables(batch, length, CHUNK, CPU, parts)
    count = max(1, min(parts, -(-length // CHUNK)))
    assert made.segments == batch * count
    check(made, [length] * batch, [count] * batch)
    assert equal_length_tables(batch, length, CHUNK, CPU, NEVER).segments == batch
