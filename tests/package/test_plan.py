"""How calls are cut and which tiles they get, by the model of the time. A GPU of 132 SMs, K = V = 128."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from qla_ops.runtime import choose, costs, loader
from qla_ops.runtime.builder import kernel_file
from qla_ops.runtime.choose import OPERATORS, call_plan, item_count, plan_kernels
from qla_ops.runtime.model import (
    CANDIDATES,
    Weights,
    candidate_lengths,
    cut_groups,
    forward_time,
    join_time,
    segment_time,
    span,
)
from qla_ops.runtime.plan import (
    AUTOMATIC,
    JOIN_HALVES,
    NEVER,
    Plan,
    choose_plan,
    idle_time,
    join_items,
    join_rooms,
    only,
)
from qla_ops.runtime.records import Operator, Segments

OPERATOR = OPERATORS["gated_delta_rule"]
SMS = 132
CALLS = [
    (heads, sequences, length)
    for heads in (2, 8, 16, 32, 64, 96)
    for sequences, length in ((1, 100), (1, 4096), (1, 32768), (4, 8192), (16, 2048), (2, 65536), (300, 500))
]


def plan(
    sequences: int,
    length: int,
    heads: int,
    packed: bool = False,
    parts: int = AUTOMATIC,
    operator: Operator = OPERATOR,
) -> Plan:
    return choose_plan(operator, sequences, sequences * length, heads, SMS, packed, parts)


@pytest.mark.parametrize(
    ("pairs", "tile"),
    [(1, 64), (8, 64), (64, 64), (66, 64), (67, 128), (128, 128), (132, 128), (133, 128), (4096, 128)],
)
def test_narrow_tiles_while_all_run_at_once(pairs: int, tile: int) -> None:
    """Of whole sequences: 64 heads were 1.4 times faster with the narrow tile, 128 heads 1.2 times slower."""
    for packed in (False, True):
        chosen = plan(1, 32768, pairs, packed, NEVER)
        assert chosen.forward.value_tile == tile
        assert chosen.segment is None
        assert chosen.cutting.segments == chosen.parts == 1


@pytest.mark.parametrize(
    ("heads", "sequences", "length", "least", "most"),
    [
        (8, 1, 32768, 8, 32),  # few heads: many segments
        (8, 1, 131072, 8, 64),
        (16, 1, 32768, 4, 16),
        (8, 4, 8192, 2, 8),
        (64, 4, 8192, 1, 1),  # the GPU is full
        (64, 1, 32768, 1, 1),  # nearly: narrow tiles fill it
        (8, 16, 2048, 1, 1),
        (8, 1, 200, 1, 2),  # too short to be worth three launches
        (96, 300, 500, 1, 1),
    ],
)
def test_segments_of_a_sequence(heads: int, sequences: int, length: int, least: int, most: int) -> None:
    chosen = plan(sequences, length, heads)
    assert least <= chosen.parts <= most
    assert chosen.cutting.segments == sequences * chosen.parts
    assert (chosen.segment is None) == (chosen.parts == 1)


@pytest.mark.parametrize(("heads", "sequences", "length"), CALLS)
def test_no_other_plan_is_much_faster(heads: int, sequences: int, length: int) -> None:
    """Than the chosen one, of equally long sequences: any tiles, any number of segments."""
    chosen = plan(sequences, length, heads)
    least = chosen.times[0].total
    for parts in (NEVER, *range(2, 41)):
        other = plan(sequences, length, heads, parts=parts)
        # Numbers of segments between the candidates may be a little better.
        assert least <= other.times[0].total * (1.03 + costs.TIE_PERCENT / 100), parts


@pytest.mark.parametrize(("heads", "sequences", "length"), CALLS)
def test_packed_sequences(heads: int, sequences: int, length: int) -> None:
    """The plan is good for equal lengths and for one long sequence, against what each would get alone."""
    chosen = plan(sequences, length, heads, packed=True)
    assert chosen.cutting.segments >= sequences
    assert chosen.parts == chosen.cutting.parts == (AUTOMATIC if chosen.segment else NEVER)
    even = plan(sequences, length, heads).times[0].total
    assert chosen.times[0].total <= 1.6 * even + 3 * costs.LAUNCH
    assert chosen.times[-1].total <= plan(sequences, length, heads, True, NEVER).times[-1].total * 1.3


@pytest.mark.parametrize("packed", [False, True])
def test_a_number_that_is_asked_for(packed: bool) -> None:
    chosen = plan(3, 1000, 64, packed, parts=5)
    assert chosen.segment is not None
    assert chosen.parts == 5
    assert chosen.cutting.segments == 15
    # No more than there are chunks; packed lengths are unknown.
    many = plan(3, 1000, 64, packed, parts=1000)
    assert many.cutting.segments == (3000 // 64 + 3 if packed else 3 * 16)
    assert plan(3, 60, 8, packed, parts=4).cutting.segments == (5 if packed else 3)


def test_no_kernel_for_segments() -> None:
    programs = tuple(program for program in OPERATOR.programs if program.variants[0].kind != "segment")
    operator = replace(OPERATOR, programs=programs, segments=None)
    for parts in (AUTOMATIC, NEVER, 4):
        chosen = plan(1, 32768, 8, parts=parts, operator=operator)
        assert chosen.segment is None
        assert chosen.cutting.segments == 1
    assert loader.JOIN not in dict(loader.needed(operator, "bfloat16"))
    narrow = replace(OPERATOR, dims=(("C", 64), ("K", 32), ("V", 128)))
    assert plan(1, 32768, 8, operator=narrow).segment is None
    assert loader.JOIN in dict(loader.needed(OPERATOR, "bfloat16"))


def test_maps_that_are_never_left_out_cost_time() -> None:
    exact = replace(OPERATOR, segments=Segments(skips=False, condition=""))
    usual, slow = (plan(1, 32768, 8, operator=item) for item in (OPERATOR, exact))
    assert usual.times[0].total < slow.times[0].total < plan(1, 32768, 8, parts=NEVER).times[0].total


def test_kernels_in_launch_order() -> None:
    kinds = [
        kernel.name if kernel is loader.JOIN else kernel.kind
        for kernel in plan_kernels(OPERATOR, plan(1, 9999, 8), 2, 8)
    ]
    assert kinds == ["chunk_parallel", "segment", "join", "carried"]
    whole = plan(1, 9999, 8, parts=NEVER)
    assert [kernel.kind for kernel in plan_kernels(OPERATOR, whole, 2, 8)] == ["chunk_parallel", "carried"]


def test_long_chains_are_joined_in_halves_by_all_ctas() -> None:
    """40 CTAs a head: eight blocks of columns of either half, eight of the rows of a map, two parts for each block."""
    assert [join_rooms(OPERATOR, joints, SMS) for joints in (JOIN_HALVES, JOIN_HALVES + 1)] == [0, SMS // 40]
    assert join_items(OPERATOR, 1, 8, JOIN_HALVES, SMS) == 64
    assert join_items(OPERATOR, 1, 8, JOIN_HALVES + 1, SMS) == SMS
    assert join_items(OPERATOR, 3, 8, JOIN_HALVES + 1, SMS) == 192
    assert join_items(OPERATOR, 0, 8, JOIN_HALVES + 1, SMS) == 0
    assert f"constexpr int kHalves = {JOIN_HALVES};" in kernel_file(loader.JOIN).read_text("utf-8")


def test_packed_plans_are_remembered_for_lengths_about_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_PLANS", {})
    lengths = range(32768, 65536, 64)
    made = [call_plan(OPERATOR, 4, tokens, 8, SMS, True, AUTOMATIC) for tokens in lengths]
    assert len({id(item) for item in made}) <= 17
    # There is room for as many segments as the true length may need.
    for tokens, item in zip(lengths, made, strict=True):
        exact = choose_plan(OPERATOR, 4, tokens, 8, SMS, True, AUTOMATIC)
        assert item.cutting.segments >= 0.7 * exact.cutting.segments
        forced = call_plan(OPERATOR, 4, tokens, 8, SMS, True, 1000)
        assert forced.cutting.segments >= min(4000, tokens // 64 + 4)


def test_segments_with_a_map_come_first_where_others_would_be_in_their_way() -> None:
    """On an H200 that gains 5 us at 32 chunks a segment, and costs 4 at 8 chunks with a grid of 512 CTAs."""
    assert plan(1, 32768, 8, parts=16).turns == 2
    assert plan(1, 8192, 8, parts=16).turns == 1
    assert plan(1, 8192, 8, parts=NEVER).turns == 1
    all_at_once = plan(1, 8192, 8, parts=8)
    assert all_at_once.turns == (1 if all_at_once.segment.value_tile == 128 else 2)
    ungated = OPERATORS["delta_rule"]
    assert choose_plan(ungated, 1, 32768, 8, SMS, False, 16).turns == 1


# The model


def weights(heads: int = 8) -> Weights:
    return plan(1, 32768, heads).cutting.weights


def test_spans() -> None:
    assert span(132, 132 * 10, 10, 132) == 10
    assert span(133, 133 * 10, 10, 132) == 20
    assert span(264, 264 * 10, 10, 132) == 20
    # One long among many short ones: it starts when half of the rest is done, on average.
    assert span(1321, 1320 * 10 + 1000, 1000, 132) == 1000
    assert span(1321, 1320 * 1000 + 2000, 2000, 132) == 1320 * 1000 // 132 + 2000 // 132 + 1000


def test_cuts() -> None:
    cut = cut_groups([(2, 10), (3, 1), (1, 0)], 4, 0, 2)
    assert (cut.segments, cut.longest, cut.joints, cut.inner) == (2 * 3 + 3 + 1, 4, 4, 2)
    assert (cut.joint_chunks, cut.inner_chunks, cut.warm_chunks) == (16, 8, 8)
    assert (cut.longest_joint, cut.most, cut.chains) == (4, 3, 2)
    assert cut_groups([(2, 10), (3, 1)], 0, 5, 2).segments == 2 * 5 + 3
    whole = cut_groups([(4, 100)], 100, 0, 2)
    assert (whole.segments, whole.joints, whole.longest_joint, whole.chains) == (4, 0, 0, 0)


def test_candidates() -> None:
    assert CANDIDATES[:14] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24)
    assert CANDIDATES[-1] == 512
    assert len(CANDIDATES) == 32
    assert list(candidate_lengths(10)) == [10, 5, 4, 3, 2, 1]
    assert list(candidate_lengths(0)) == [1]


def test_times_grow_with_the_work() -> None:
    for heads in (8, 64):
        # Where all heads need maps, all CTAs of a pass are about as long.
        model = weights(heads)._replace(share=1024)
        for parts in (1, 2, 8):
            cuts = [cut_groups([(3, chunks)], 0, parts, model.warm_chunks) for chunks in range(8, 400, 8)]
            for times in (
                [forward_time(model, cut, 3 * chunks) for cut, chunks in zip(cuts, range(8, 400, 8), strict=True)],
                [segment_time(model, cut) for cut in cuts],
            ):
                assert all(first <= second for first, second in pairwise(times))
    model = weights()._replace(share=1024)
    joins = [join_time(model, cut_groups([(1, 512)], 0, parts, 0)) for parts in range(1, 30)]
    assert joins[:3] == [0, 0, costs.JOIN]
    assert all(first <= second for first, second in pairwise(joins))


def test_idle_kernels_cost_time() -> None:
    """Where equal lengths fill the GPU, packed calls do not pay for cuts that they hardly ever need."""
    assert plan(4, 8192, 64, packed=True).segment is None
    model = plan(16, 2048, 8, packed=True).cutting
    whole = cut_groups([(16, 32)], 32, 0, 0)
    idle = [idle_time(model.weights, whole, segments) for segments in (16, 40, 400)]
    assert 2 * costs.LAUNCH < idle[0] < idle[1] < idle[2]


def test_variants_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "_PLANS", {})
    free = call_plan(OPERATOR, 1, 32768, 8, SMS, False, 4)
    seen = set()
    for forward in ("forward_v128", "forward_v64"):
        for segment in ("segment_v128", "segment_v64"):
            with only(forward, segment):
                chosen = call_plan(OPERATOR, 1, 32768, 8, SMS, False, 4)
            assert chosen.segment is not None
            seen.add((chosen.forward.module, chosen.segment.module))
    assert len(seen) == 4
    assert call_plan(OPERATOR, 1, 32768, 8, SMS, False, 4) is free


@pytest.mark.parametrize(
    ("key_heads", "value_heads", "file"),
    [(4, 4, "twin"), (2, 4, "pair"), (2, 6, "tile"), (1, 4, "tile"), (2, 16, "tile"), (1, 1, "twin")],
)
def test_items_have_room_for_the_value_heads_of_a_key_head(key_heads: int, value_heads: int, file: str) -> None:
    operator = OPERATORS["gated_delta_rule"]
    first = plan_kernels(operator, plan(1, 9999, value_heads, operator=operator), key_heads, value_heads)[0]
    assert first.name == f"gated_delta_rule_prepare_{file}"


def test_an_operator_without_key_heads_takes_its_only_kernel() -> None:
    operator = OPERATORS["mamba2"]
    first = plan_kernels(operator, plan(1, 9999, 8, operator=operator), 8, 8)[0]
    assert first.name == "mamba2_prepare_tile"


@pytest.mark.parametrize(
    ("item_heads", "key_heads", "value_heads", "items"),
    [((1, 1), 2, 8, 8), ((1, 4), 2, 8, 2), ((1, 4), 2, 10, 4), ((2, 2), 3, 6, 2), ((2, 1), 3, 3, 2)],
)
def test_items_of_a_chunk(item_heads: tuple[int, int], key_heads: int, value_heads: int, items: int) -> None:
    kernel = replace(OPERATOR.kernels[0], item_heads=item_heads)
    assert item_count(kernel, 5, key_heads, value_heads) == 5 * items
