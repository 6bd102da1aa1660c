from __future__ import annotations

import pytest

from qlagen.bench.cases import case_of, make_case, parse_heads, parse_sequences, plan
from qlagen.errors import QlagenError


def test_labels_say_lengths() -> None:
    assert parse_sequences("4x8192") == (8192,) * 4
    assert parse_sequences("28672+4096") == (28672, 4096)
    assert parse_heads("16:64") == (16, 64)
    assert make_case("forward", "2:8", "8x1024", "model init").tokens == 8192


def test_the_forward_grid_is_whole() -> None:
    cases = plan(["forward"], wanted=["gated_delta_rule"])
    assert len(cases) == len(set(cases)) == 9 * 23 * 2
    assert {case.heads for case in cases} >= {"2:8", "16:64", "8:24", "32:32"}
    assert {case.label for case in cases} >= {"1x65536", "24576+8192", "64x256", "4096x32"}


def test_the_backward_grid_is_whole() -> None:
    cases = plan(["backward"])
    assert len(cases) == len(set(cases)) == 5 * 8 * 2
    counts = {(case.tokens, len(case.lengths)) for case in cases}
    assert counts == {(tokens, n) for tokens in (8192, 32768) for n in (1, 2, 4, 8)}


def test_the_most_informative_rows_come_first() -> None:
    first = [(case.heads, case.label) for case in plan(["forward"])[:5]]
    assert first == [
        ("16:64", "1x32768"),
        ("16:32", "1x32768"),
        ("2:8", "1x32768"),
        ("16:64", "4x8192"),
        ("16:64", "8x1024"),
    ]
    early = plan(["forward"])[:60]
    assert len({case.heads for case in early}) == 9
    assert len({case.label for case in early}) >= 20
    assert {case.gates for case in early} == {"quarter ungated", "model init"}


def test_rows_of_other_operators_come_last() -> None:
    cases = plan(["forward"])
    others = [case for case in cases if case.operator]
    assert cases[-len(others) :] == others
    assert len(others) == 2 * 3 * 4
    assert {(case.operator, case.gates) for case in others} == {
        ("delta_rule", "none"),
        ("simple_gla", "quarter ungated"),
    }
    assert plan(["backward"], wanted=["delta_rule"]) == []
    [case] = plan(["forward"], ["32:32"], ["4x8192"], wanted=["delta_rule"])
    assert case.name == "delta_rule forward 32:32 4x8192 (none)"
    assert case_of(case.as_json()) == case
    assert "operator" not in make_case("forward", "2:8", "1x8", "model init", "gated_delta_rule").as_json()
    with pytest.raises(QlagenError, match="'deltarule' is no operator with rows"):
        plan(["forward"], wanted=["deltarule"])


def test_directions_take_turns() -> None:
    assert [case.direction for case in plan()[:4]] == ["forward", "backward"] * 2


def test_filters_may_name_what_the_grid_does_not_have() -> None:
    [case] = plan(["forward"], ["1:2"], ["3x100"], ["model init"])
    assert (case.key_heads, case.value_heads, case.lengths) == (1, 2, (100, 100, 100))
    assert plan(["forward"], ["16:64"], ["1x8192", "1x32768"], ["model init"])[0].label == "1x32768"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sideways", "2:8", "1x8", "model init"), "'sideways' is no direction"),
        (("forward", "2-8", "1x8", "model init"), "'2-8' is not a pair of head counts"),
        (("forward", "2:7", "1x8", "model init"), "'2:7' is not a pair of head counts"),
        (("forward", "2:8", "8k", "model init"), "'8k' does not say which sequences to run"),
        (("forward", "2:8", "1x8", "none"), "'none' is no gates"),
    ],
)
def test_labels_without_a_meaning(arguments: tuple[str, str, str, str], message: str) -> None:
    with pytest.raises(QlagenError) as fault:
        make_case(*arguments)
    assert fault.value.code == "E-BENCH-CASE"
    assert fault.value.message == message
    assert fault.value.notes
