"""Turns of the warpgroups of one role."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.model import Barrier, Instruction, Role
from qlagen.schedule.protocol import check_protocol
from qlagen.schedule.turns import check_turns, insert_turns, longest_burst
from tests.schedule.cases import build, kernel, order, program, role

TAKE, PASS = Instruction("take_turn"), Instruction("pass_turn")


def test_a_turn_is_the_longest_burst() -> None:
    """New values to read-out; the recall before them ends with nothing in flight."""
    lines = order(kernel("gated_delta_rule", "forward", "v128"), "state")
    inside = lines[lines.index("take_turn") + 1 : lines.index("pass_turn")]
    assert [line for line in inside if line.endswith("*")] == ["Vn*", "q_S*", "S1*", "O*"]
    assert inside[0] == "Vn*"
    assert inside[-1] == "O*"
    assert "k_S*" in lines[: lines.index("take_turn")]


def test_one_warpgroup_takes_no_turns() -> None:
    forward = program("gated_delta_rule", "forward")
    assert build(forward, "v64", turns=True).roles == build(forward, "v64", turns=False).roles


def test_without_the_option_nobody_takes_turns() -> None:
    state = role(build(program("gated_delta_rule", "forward"), "v128", turns=False), "state")
    assert not {"take_turn", "pass_turn"} & {instruction.kind for instruction in state.body}


def test_no_product_no_turn() -> None:
    idle = Role("state", "compute", 8, 0, None, 0, (Instruction("fence"),))
    assert longest_burst(idle.body) is None
    assert insert_turns(idle) == idle


def test_who_holds_a_turn_must_not_wait_for_the_others() -> None:
    """The answer needs both warpgroups, and the second one cannot ask before the first has passed its turn."""
    asks = (TAKE, Instruction("arrive", barrier="asked"), Instruction("wait", barrier="answered"), PASS)
    state = Role("state", "compute", 8, 0, None, 0, asks)
    answers = (Instruction("wait", barrier="asked"), Instruction("arrive", barrier="answered"))
    other = Role("other", "compute", 4, 256, None, 0, answers)
    barriers = (
        Barrier("asked", 1, "handover", 8, (), ("state",), ("other",)),
        Barrier("answered", 1, "handover", 4, (), ("other",), ("state",)),
    )
    check_protocol((state, other), (), barriers)
    with pytest.raises(QlagenError) as caught:
        check_turns((state, other), barriers, (1,))
    assert caught.value.code == "E-DEADLOCK"
    early = replace(state, body=(TAKE, asks[1], PASS, asks[2]))
    check_turns((early, other), barriers, (0, 1, 2, 5))


@pytest.mark.parametrize("body", [(TAKE,), (PASS,), (PASS, TAKE), (TAKE, TAKE, PASS)])
def test_a_turn_is_taken_and_passed_once(body: tuple[Instruction, ...]) -> None:
    with pytest.raises(QlagenError) as caught:
        check_turns((Role("state", "compute", 8, 0, None, 0, body),), (), (1,))
    assert caught.value.code == "E-SYNC"
