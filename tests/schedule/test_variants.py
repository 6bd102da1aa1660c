"""Variants and their alternatives: which options an operator's kernels end up with."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qlagen.errors import QlagenError
from qlagen.schedule.model import Schedule
from qlagen.schedule.variants import build_schedules, fastest_schedules
from tests.program.examples import DIMS, PLANS
from tests.schedule import programs
from tests.schedule.cases import kernel, program, schedule_file, segment_forms, target

CHOICE = tuple[str, int, int]


def choices(*operators: str) -> dict[str, list[CHOICE]]:
    """Name, stages and CTAs per SM of what was chosen for each program."""
    found = {}
    for operator in operators:
        for item in PLANS[operator].programs:
            schedules = build_schedules(item, dict(DIMS), schedule_file(), target())
            found[f"{operator} {item.name}"] = [
                (s.options.name, s.options.stages, s.options.ctas_per_sm) for s in schedules
            ]
    return found


def test_the_specs_take_the_first_alternatives() -> None:
    found = choices("gated_delta_rule", "delta_rule", "simple_gla")
    for name, chosen in found.items():
        several = [("twin", 1, 3), ("pair", 1, 2)] if not name.startswith("simple_gla") else []
        expected = [*several, ("tile", 1, 3)] if name.endswith("prepare") else [("v128", 3, 1), ("v64", 4, 1)]
        assert chosen == expected, name


def test_what_is_built_is_what_build_schedule_builds() -> None:
    schedules = build_schedules(program("delta_rule", "forward"), dict(DIMS), schedule_file(), target())
    assert schedules == (kernel("delta_rule", "forward", "v128"), kernel("delta_rule", "forward", "v64"))


def test_a_form_that_needs_more_memory_takes_a_later_alternative() -> None:
    prepare, forward = programs.textbook()
    (tile,) = build_schedules(prepare, dict(DIMS), schedule_file(), target())
    assert (tile.options.stages, tile.options.output_stages, tile.options.ctas_per_sm) == (2, 1, 1)
    v128, v64 = build_schedules(forward, dict(DIMS), schedule_file(), target())
    assert (v128.options.name, v128.options.stages, v128.options.ahead) == ("v128", 2, 1)
    assert (v64.options.name, v64.options.stages) == ("v64", 3)


def test_a_variant_without_a_fitting_alternative_is_left_out() -> None:
    """With K = 192 the state needs more registers than two warpgroups and the rest can have."""
    dims = {"C": 64, "K": 192, "V": 128}
    (only,) = build_schedules(program("delta_rule", "forward"), dims, schedule_file(), target())
    assert only.options.name == "v64"
    assert dict(only.options.registers)["state"] == 240


def test_nothing_fits() -> None:
    dims = {"C": 64, "K": 256, "V": 128}
    with pytest.raises(QlagenError) as caught:
        build_schedules(program("gated_delta_rule", "forward"), dims, schedule_file(), target())
    assert caught.value.code == "E-ESTIMATE"
    where, what = caught.value.message.split(": ")
    assert where == "program forward of gated_delta_rule, variant v128"
    assert what == "role state needs 304 registers per thread, and has 208"


def test_other_faults_are_not_taken_for_a_budget() -> None:
    """A program that cannot be scheduled is refused at once, not by trying every alternative."""
    with pytest.raises(QlagenError, match="E-DIMENSION"):
        build_schedules(program("delta_rule", "forward"), {**dict(DIMS), "C": 128}, schedule_file(), target())


def segments(operator: str, dims: dict[str, int] | None = None, **changes: int) -> dict[str, Schedule]:
    """By variant; `changes` to every entry of the schedule file."""
    file = schedule_file()
    file = replace(file, segment=tuple(replace(entry, **changes) for entry in file.segment))  # type: ignore[arg-type]
    found = fastest_schedules(segment_forms(operator), dims or dict(DIMS), file, target())
    return {schedule.options.name: schedule for schedule in found}


def products(schedule: Schedule) -> list[str]:
    """Of all roles, in their order."""
    steps = (i.step for role in schedule.roles for i in role.body if i.step is not None and i.step.kind == "gemm")
    return [step.name for step in steps]


def test_of_several_forms_the_fastest_is_taken() -> None:
    """Its product of keys and inverse is off the chain; the one as chosen for the forward pass has it on the chain."""
    first, second = segments("gated_delta_rule", form=1), segments("gated_delta_rule", form=2)
    assert products(first["v64"]) == ["k_S", "Vn", "S1"]
    assert products(second["v64"]) == ["k_S", "S1", "k_S1_right"]
    chosen = segments("gated_delta_rule")
    assert products(chosen["v64"]) == products(second["v64"])
    assert chosen["v64"].busiest_clocks == second["v64"].busiest_clocks < first["v64"].busiest_clocks


def test_with_two_warpgroups_for_the_state_both_forms_fill_the_tensor_cores() -> None:
    """2 m64n64k128, m64n64k64 and m64n128k64 of the state; or the second one m128n64k64 of the auxiliary role."""
    first, second = segments("gated_delta_rule", form=1)["v128"], segments("gated_delta_rule", form=2)["v128"]
    assert first.busiest_clocks == second.busiest_clocks == 2 * 32 * (8 + 4 + 8)
    assert products(segments("gated_delta_rule")["v128"]) == products(first)


def test_two_ctas_on_an_sm_count_as_half_the_time() -> None:
    chosen, second = segments("delta_rule")["v64"], segments("delta_rule", form=2)["v64"]
    assert (chosen.options.ctas_per_sm, second.options.ctas_per_sm) == (2, 1)
    assert chosen.busiest_clocks > second.busiest_clocks > chosen.busiest_clocks / 2


def test_a_map_has_as_many_columns_as_there_are_keys() -> None:
    assert set(segments("delta_rule", {"C": 64, "K": 64, "V": 128})) == {"v64"}
    assert set(segments("delta_rule", {"C": 64, "K": 128, "V": 64})) == {"v64"}


def test_without_a_form_that_fits_sequences_are_never_cut() -> None:
    assert segments("delta_rule", {"C": 64, "K": 96 + 32, "V": 128}, stages=8) == {}
    assert segments("simple_gla", form=2) == {}


def test_a_file_without_entries_for_segments_uses_those_of_carried_kernels() -> None:
    file = replace(schedule_file(), segment=())
    found = fastest_schedules(segment_forms("simple_gla"), dict(DIMS), file, target())
    assert [s.options for s in found] == [file.carried[0], file.carried[2]]
