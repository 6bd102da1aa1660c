"""What the static checks say: the fault, the limit, and what to change."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.checks import check_schedule
from qlagen.schedule.codes import CODES
from qlagen.schedule.model import Schedule
from tests.schedule.cases import KERNELS, kernel, role
from tests.schedule.mutations import mutants

FORWARD = kernel("gated_delta_rule", "forward", "v128")
PREPARE = kernel("gated_delta_rule", "prepare", "single")


def text_of(schedule: Schedule) -> str:
    with pytest.raises(QlagenError) as caught:
        check_schedule(schedule)
    assert caught.value.code in CODES
    return caught.value.render()


def mutant(schedule: Schedule, kind: str, place: str) -> Schedule:
    return next(
        m.schedule for m in mutants(schedule) if m.kind == kind and place in (m.place, re.sub(r" \d+:", ":", m.place))
    )


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_what_is_built_passes(key: tuple[str, str, str]) -> None:
    check_schedule(kernel(*key))


CASES = [
    (
        FORWARD,
        "count +1",
        "stage_free",
        "error[E-ARRIVALS]: stage_free counts to 9, and 8 arrivals come in one iteration\n"
        "  hint: an arrival is one per warp of the role that makes it",
    ),
    (
        FORWARD,
        "bytes +16",
        "q_k_ready",
        "error[E-ARRIVALS]: q_k_ready expects 32784 bytes, its loads bring 32768",
    ),
    (
        FORWARD,
        "drop wait_groups",
        "state: wait_groups 0",
        "error[E-FLIGHT]: role state: S1_right reads the result of Vn while it is in flight\n"
        "  hint: put wait_groups before the step",
    ),
    (
        FORWARD,
        "early arrival",
        "state: arrive stage_free",
        "error[E-FLIGHT]: role state releases O_left through stage_free while O still reads it\n"
        "  hint: wait for the product's group before the arrival",
    ),
    (
        FORWARD,
        "drop fence",
        "auxiliary: fence 0",
        "error[E-FENCE]: role auxiliary announces O_left through O_left_ready without a proxy fence\n"
        "  hint: put a fence between the write and the arrival",
    ),
    (
        FORWARD,
        "drop wait",
        "load_q_k: wait stage_free",
        "error[E-PHASE]",
    ),
    (
        FORWARD,
        "drop wait",
        "state: wait v_a_ready",
        "error[E-RACE]: role state reads v before it is filled\n  note: iteration 0 of 1, in state",
    ),
    (
        FORWARD,
        "other phase",
        "store_o: wait o_ready",
        "error[E-RACE]: role store_o reads o before it is filled\n  note: iteration 0 of 1, in store_o",
    ),
    (
        PREPARE,
        "drop sync",
        "tile 9: sync 0",
        "error[E-SYNC]: role tile: A_source uses G before all threads are done with it\n"
        "  hint: put a named barrier of the role's threads before the step",
    ),
]


@pytest.mark.parametrize(("schedule", "kind", "place", "expected"), CASES, ids=[f"{c[1]}-{c[2]}" for c in CASES])
def test_messages(schedule: Schedule, kind: str, place: str, expected: str) -> None:
    assert text_of(mutant(schedule, kind, place)).startswith(expected)


def test_products_over_the_edge_of_the_loop() -> None:
    state = role(FORWARD, "state")
    body = tuple(i for i in state.body if not (i.kind == "wait_groups" and i.groups == 0))
    last = next(i for i in reversed(state.body) if i.step is not None and i.step.kind == "gemm")
    edge = replace(state, body=(*body[:1], last))
    schedule = replace(FORWARD, roles=(edge, *FORWARD.roles[1:]), barriers=())
    assert "error[E-GROUPS]: role state: the product O is in flight over the loop's edge" in text_of(schedule)


def test_deadlock_names_the_waiting_roles() -> None:
    """The auxiliary role waits for the state's release of the slot that it is to fill."""
    auxiliary = role(FORWARD, "auxiliary")
    wait = replace(auxiliary.body[0], barrier="stage_free", side="consumer")
    stuck = replace(auxiliary, body=(wait, *auxiliary.body))
    roles = tuple(stuck if r.name == "auxiliary" else r for r in FORWARD.roles)
    text = text_of(replace(FORWARD, roles=roles))
    assert "error[E-DEADLOCK]: the roles wait for each other (1 iterations)" in text
    assert "note: auxiliary waits for stage_free in iteration 0" in text
    assert "note: state waits for O_left_ready in iteration 0" in text


def test_budgets_are_checked_again() -> None:
    """A schedule that was changed by hand meets the same limits as one that was built."""
    assert "E-SHARED" in text_of(replace(FORWARD, shared_bytes=240000))
    state = replace(role(FORWARD, "state"), estimate=216)
    text = text_of(replace(FORWARD, roles=(state, *FORWARD.roles[1:])))
    assert "role state needs about 216 registers per thread, and has 208" in text
    text = text_of(replace(FORWARD, options=replace(FORWARD.options, mover_warps=3)))
    assert "4 mover warps, at most 3 are allowed" in text
    unset = replace(role(FORWARD, "state"), registers=None)
    text = text_of(replace(FORWARD, roles=(unset, *FORWARD.roles[1:])))
    assert "the schedule sets registers, but not those of role state" in text


def test_a_read_through_the_async_proxy_needs_a_fence_before_the_barrier() -> None:
    from tests.schedule import programs
    from tests.schedule.cases import build

    schedule = build(programs.solved_keys(), "single", ctas_per_sm=1)
    codes = {
        text_of(m.schedule).split(":")[0] for m in mutants(schedule) if m.kind == "drop fence" and "tile" in m.place
    }
    assert codes == {"error[E-FENCE]"}
