"""The protocol check: every single fault is seen, nothing sound is refused, and it agrees with an exhaustive search."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.checks import check_schedule
from qlagen.schedule.model import Schedule
from qlagen.schedule.protocol import check_items, check_protocol
from tests.schedule.cases import KERNELS, build, kernel, program, target
from tests.schedule.explore import Explorer
from tests.schedule.mutations import Mutant, mutants


def check(schedule: Schedule) -> str | None:
    """The code of the first fault, or None."""
    try:
        check_schedule(schedule, target())
    except QlagenError as error:
        return error.code
    return None


def protocol_fault(schedule: Schedule) -> str | None:
    try:
        check_protocol(schedule.roles, schedule.rings, schedule.barriers)
    except QlagenError as error:
        return error.code
    return None


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_every_single_fault_is_caught(key: tuple[str, str, str]) -> None:
    found = {(mutant.kind, mutant.place): check(mutant.schedule) for mutant in mutants(kernel(*key))}
    assert [what for what, code in found.items() if code is None] == []


def test_faults_are_caught_by_the_check_that_is_meant_for_them() -> None:
    allowed = {
        "drop wait": {"E-RACE", "E-PHASE"},
        "late wait": {"E-RACE"},
        "other phase": {"E-RACE", "E-PHASE", "E-DEADLOCK"},
        "drop wait_groups": {"E-FLIGHT"},
        "late wait_groups": {"E-FLIGHT"},
        "one more group in flight": {"E-FLIGHT"},
        "early arrival": {"E-RACE", "E-FLIGHT"},
        "drop arrive": {"E-ARRIVALS"},
        "count +1": {"E-ARRIVALS"},
        "count -1": {"E-ARRIVALS"},
        "bytes +16": {"E-ARRIVALS"},
        "drop fence": {"E-FENCE"},
        "late fence": {"E-FENCE", "E-SYNC"},
        "drop sync": {"E-SYNC"},
        "late sync": {"E-SYNC"},
    }
    seen: Counter[str] = Counter()
    for key in KERNELS:
        for mutant in mutants(kernel(*key)):
            assert check(mutant.schedule) in allowed[mutant.kind], (mutant.kind, mutant.place)
            seen[mutant.kind] += 1
    assert set(seen) == set(allowed)
    assert sum(seen.values()) > 600


SMALL = [
    ("simple_gla", "prepare", "tile", {"stages": 2, "output_stages": 1}, 5),
    ("delta_rule", "prepare", "single", {"stages": 2, "output_stages": 1}, 4),
    ("gated_delta_rule", "prepare", "single", {"stages": 1, "output_stages": 1}, 3),
    ("gated_delta_rule", "prepare", "tile", {"stages": 1, "output_stages": 1}, 3),
    ("simple_gla", "forward", "v64", {"stages": 1, "ahead": 0}, 2),
]


@pytest.mark.parametrize(("operator", "name", "variant", "changes", "iterations"), SMALL)
def test_it_agrees_with_an_exhaustive_search(
    operator: str, name: str, variant: str, changes: dict[str, object], iterations: int
) -> None:
    """On barriers as the hardware has them, over all interleavings: what passes has no fault, what is refused has."""
    schedule = build(program(operator, name), variant, **changes)
    assert Explorer(schedule, iterations).fault() is None
    for mutant in _synchronisation_mutants(schedule):
        searched = Explorer(mutant.schedule, iterations).fault()
        assert (protocol_fault(mutant.schedule) is None) == (searched is None), (mutant.kind, mutant.place, searched)


def _synchronisation_mutants(schedule: Schedule) -> list[Mutant]:
    """Without those of the byte counts, which the search does not model by number."""
    return [mutant for mutant in mutants(schedule) if not mutant.kind.startswith("bytes")]


def test_what_is_left_out_is_implied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pruning the only faults that pass are in what pruning removes, and the exhaustive search finds none."""
    with monkeypatch.context() as patch:
        patch.setattr("qlagen.schedule.build.prune", lambda whole, rings: whole)
        schedule = build(program("simple_gla", "forward"), "v64", stages=2, ahead=1)
    pruned = build(program("simple_gla", "forward"), "v64", stages=2, ahead=1)
    assert pruned.implied == ("auxiliary: wait for stage_free", "auxiliary: arrive at stage_free")
    passed = [mutant for mutant in mutants(schedule) if check(mutant.schedule) is None]
    assert [mutant.kind for mutant in passed] == ["drop wait", "late wait", "early arrival", "silent role"]
    for mutant in passed:
        assert mutant.place.startswith("auxiliary ")
        assert mutant.place.endswith("stage_free")
        assert Explorer(mutant.schedule, 2).fault() is None


def each_item_from_zero(items: Sequence[int]) -> tuple[int, ...]:
    return tuple(number for iterations in items for number in range(iterations))


@pytest.mark.parametrize("key", [key for key in KERNELS if key[1] != "prepare"], ids="-".join)
def test_slots_and_phases_run_on_over_items(key: tuple[str, str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = kernel(*key)
    parts = schedule.roles, schedule.rings, schedule.barriers
    check_items(*parts)
    check_schedule(replace(schedule, options=replace(schedule.options, persistent=True)), target())
    monkeypatch.setattr("qlagen.schedule.protocol.iteration_numbers", each_item_from_zero)
    check_protocol(*parts)
    with pytest.raises(QlagenError) as caught:
        check_items(*parts)
    assert caught.value.code in ("E-DEADLOCK", "E-PHASE", "E-RACE")


def test_a_load_that_is_still_on_its_way_is_not_announced_by_the_next_one() -> None:
    """Two TMA loads of one warp with a barrier each: waiting for the second says nothing of the first."""
    schedule = build(program("gated_delta_rule", "forward"), "v64", mover_warps=2)
    dropped = (m for m in mutants(schedule) if m.kind == "drop wait" and m.place.startswith("state "))
    mutant = next(m for m in dropped if m.place.endswith(": wait v_a_ready"))
    assert check(mutant.schedule) == "E-RACE"
