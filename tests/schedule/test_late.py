"""What is done an iteration later, and vectors that are gathered before a wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.checks import check_schedule
from qlagen.schedule.model import Instruction, Schedule
from qlagen.schedule.rounds import rounds
from tests.schedule.cases import build, kernel, order, program, role

FORWARD = kernel("gated_delta_rule", "forward", "v128")


def test_rounds_drain_behind_the_loop() -> None:
    now, late = Instruction("fence"), Instruction("sync", lag=1)
    assert list(rounds((late, now), 2)) == [(now, 0), (late, 0), (now, 1), (late, 1)]
    assert list(rounds((late, now), 0)) == []
    assert list(rounds((now,), 1)) == [(now, 0)]


def test_a_store_waits_behind_the_next_first_product() -> None:
    body = role(FORWARD, "state").body
    late = [number for number, instruction in enumerate(body) if instruction.lag]
    kinds = [body[number].kind for number in late]
    assert kinds == ["wait", "step", "fence", "arrive"]
    before = body[late[0] - 1].step
    assert before is not None
    assert before.name == "k_S"
    assert late == list(range(late[0], late[0] + 4))


def test_a_tile_that_the_first_product_would_overwrite_is_converted_before() -> None:
    lines = order(kernel("simple_gla", "forward", "v128"), "state")
    assert lines[-1] == "O_out"
    assert lines.index("store_o") == lines.index("q_S*") + 2


def test_registers_that_are_read_an_iteration_later_stay_as_they_are() -> None:
    """The put moved behind the product that takes its registers."""
    state = role(FORWARD, "state")
    late = tuple(instruction for instruction in state.body if instruction.lag)
    rest = tuple(instruction for instruction in state.body if not instruction.lag)
    place = next(n for n, i in enumerate(rest) if i.step is not None and i.step.name == "S1_base")
    moved = replace(state, body=(*rest[:place], *late, *rest[place:]))
    with pytest.raises(QlagenError) as caught:
        check_schedule(_with(FORWARD, moved.body))
    assert caught.value.code == "E-FLIGHT"
    assert "reads an iteration later" in caught.value.message


def _with(schedule: Schedule, body: tuple[Instruction, ...]) -> Schedule:
    roles = tuple(replace(r, body=body) if r.name == "state" else r for r in schedule.roles)
    return replace(schedule, roles=roles)


def test_vectors_are_gathered_where_there_is_room() -> None:
    """At 208 registers all but those of the map that has the most in flight beside it; with more, those too."""
    gathered = [line for line in order(FORWARD, "state") if line.startswith(("g_to_end_", "g_from_start_", "O_scale_"))]
    assert gathered == ["g_from_start_Vn_right", "O_scale_O_base"]
    roomy = (("state", 240), ("auxiliary", 128), ("movers", 40))
    more = order(build(program("gated_delta_rule", "forward"), "v64", registers=roomy), "state")
    assert "g_to_end_S1_right" in more
    assert more.index("g_to_end_S1_right") < more.index("S1_right")


def test_a_gathered_vector_is_read_from_its_registers() -> None:
    steps = {i.step.name: i.step for i in role(FORWARD, "state").body if i.step is not None}
    assert steps["Vn_right"].rings == ()
    assert dict(steps["Vn_right"].vectors) == {"g_from_start": "g_from_start_Vn_right", "beta": "beta_Vn_right"}
    assert steps["S1_right"].rings == ("g_to_end",)
    values = {value.name: value for value in FORWARD.values}
    assert values["beta_Vn_right"].registers == 16
