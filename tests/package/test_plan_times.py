"""What of the tool for plans needs no GPU."""

from __future__ import annotations

from qla_ops.runtime import hopper
from qla_ops.runtime.choose import OPERATORS
from qlagen.bench.cases import forward_case
from tools.plan_times import LEAST_CHUNKS, Wish, seen_plans, wishes

FORWARDS, SEGMENTS = ("forward_v128", "forward_v64"), ("segment_v128", "segment_v64")


def test_wishes() -> None:
    case = forward_case("2:8/1x1024")
    found = list(wishes(case, FORWARDS, SEGMENTS, 132))
    assert found[0] == Wish(True)
    assert [wish for wish in found if wish.auto_cp is False] == [Wish(False, (name,)) for name in FORWARDS]
    cut = [wish for wish in found[1:] if wish.auto_cp is not False]
    assert {wish.turns for wish in cut} == {1, 2}
    assert {wish.only for wish in cut} == {(f, s) for f in FORWARDS for s in SEGMENTS}
    assert max(int(wish.auto_cp) for wish in cut) == 16 // LEAST_CHUNKS


def test_full_gpus_are_not_cut_further() -> None:
    counts = {int(wish.auto_cp) for wish in wishes(forward_case("16:64/4x8192"), FORWARDS, SEGMENTS, 132)}
    assert counts == {0, 1}
    assert {int(w.auto_cp) for w in wishes(forward_case("16:64/1x8192"), FORWARDS, SEGMENTS, 132)} == {0, 1, 2, 3, 4, 6}


def test_the_wish_changes_the_plan() -> None:
    values = (OPERATORS["gated_delta_rule"], 1, 32768, 8, 132, False, 16)
    for turns in (1, 2):
        with seen_plans(Wish(16, turns=turns)) as seen:
            assert hopper.call_plan(*values).turns == turns
        assert [plan.turns for plan in seen] == [turns]
    assert hopper.call_plan(*values).turns == 2
