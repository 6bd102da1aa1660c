"""What is tried for an entry, and what the scheduler says of it."""

from __future__ import annotations

import multiprocessing
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from qlagen.algebra.cache import derive_cached
from qlagen.errors import QlagenError
from qlagen.package.compile import schedule_plan
from qlagen.program.plan import build_plan
from qlagen.schedule.options import parse_options
from qlagen.schedule.target import load_target
from qlagen.spec.load import load_spec
from qlagen.tune.candidates import (
    Candidate,
    Entry,
    combined_candidates,
    find_entries,
    make_axes,
    simple_candidates,
)
from qlagen.tune.check import Checked, Checker, lost_variants, rank
from qlagen.tune.edit import edit_entry
from tests.tune.entries import FILE, ROOT, SPEC, TEXT, explore

PLAN = build_plan(derive_cached(load_spec(SPEC)))
DIMS = dict(PLAN.dims)
TARGET = load_target("sm_90a")


def entries(text: str = TEXT, parts: tuple[str, ...] = (), names: tuple[str, ...] = ()) -> tuple[Entry, ...]:
    file = parse_options(text, FILE)
    return find_entries(text, file, schedule_plan(PLAN, file.target, file), parts, names)


def test_the_entries_that_an_operator_uses() -> None:
    """Of alternatives only the one that is taken."""
    found = entries()
    assert [entry.label for entry in found] == [
        "carried v128 (entry 1)",
        "carried v64 (entry 3)",
        "chunk_parallel tile (entry 1)",
    ]
    assert [len(entry.siblings) for entry in found] == [1, 1, 2]
    assert found[0].kernels == ("gated_delta_rule_segment_v128", "gated_delta_rule_forward_v128")
    assert found[0].main.program.name == "forward"
    assert found[2].values == {"stages": 1, "output_stages": 1, "ctas_per_sm": 4, "mover_warps": 2}
    assert [entry.name for entry in entries(names=("v64",))] == ["v64"]
    assert [entry.name for entry in entries(parts=("carried",))] == ["v128", "v64"]


def test_entries_that_there_are_not() -> None:
    with pytest.raises(QlagenError, match="the schedule file has no variant 'v63'") as caught:
        entries(names=("v63",))
    assert caught.value.code == "E-TUNE-ENTRY"
    assert caught.value.hints == ("did you mean 'v64'?",)
    with pytest.raises(QlagenError, match="the schedule file has no part 'carry'"):
        entries(parts=("carry",))
    with pytest.raises(QlagenError, match="the operator uses none of the entries"):
        entries(parts=("carried",), names=("tile",))


def test_what_is_tried() -> None:
    (wide, narrow, tile) = entries()
    axes = {axis[0][0]: [value for _, value in axis] for axis in make_axes(tile, DIMS, TARGET)}
    # The neighbours of each number, then what the other entries of that name have.
    assert axes["stages"] == [0, 2]
    assert axes["ctas_per_sm"] == [3, 5, 2, 1]
    assert axes["mover_warps"] == [1, 3, 4]
    assert "registers" not in axes
    axes = {axis[0][0]: [value for _, value in axis] for axis in make_axes(wide, DIMS, TARGET)}
    assert axes["ahead"] == [1, 3]
    assert axes["ctas_per_sm"] == [0, 2]
    assert (0, 0) in axes["delays"]
    assert (("state", 216), ("auxiliary", 56), ("movers", 24)) in axes["registers"]
    simple = simple_candidates(narrow, make_axes(narrow, DIMS, TARGET))
    # The other entry as a whole.
    sibling = (("stages", 2), ("ahead", 1), ("registers", (("state", 240), ("auxiliary", 152), ("movers", 40))))
    assert simple[-1] == Candidate(sibling)
    assert str(simple[-1]) == "stages = 2, ahead = 1, registers = { state = 240, auxiliary = 152, movers = 40 }"


def test_splits_use_the_whole_pool() -> None:
    """256 threads of state, 128 of the others, 65536 registers."""
    wide = entries()[0]
    axes = {axis[0][0]: [value for _, value in axis] for axis in make_axes(wide, DIMS, TARGET)}
    for split in axes["registers"]:
        numbers = dict(split)  # type: ignore[arg-type]
        assert 256 * numbers["state"] + 128 * (numbers["auxiliary"] + numbers["movers"]) == 65536


def test_combinations_are_bounded() -> None:
    axes = tuple(tuple((f"key{n}", value) for value in range(9)) for n in range(6))
    found = combined_candidates(axes)
    assert len(found) == 240
    small = combined_candidates(axes[:1] + tuple(axis[:1] for axis in axes[1:3]))
    assert [len(candidate.changes) for candidate in small] == [2] * 9 + [2] * 9 + [2] + [3] * 9


def test_the_scheduler_decides() -> None:
    (found,) = explore("chunk_parallel")
    assert found.current.clocks > 0
    changes = [dict(item.candidate.changes) for item in found.kept]
    assert {"ctas_per_sm": 3} in changes
    # The smallest changes first where the model makes no difference.
    assert len(changes[0]) == 1
    assert [item.clocks for item in found.kept] == sorted(item.clocks for item in found.kept)
    reasons = {str(item.candidate): item.reason for item in found.refused}
    assert reasons["ctas_per_sm = 5"].startswith("E-ESTIMATE: role tile needs ")
    assert reasons["stages = 2, output_stages = 2"].startswith("E-SHARED: ")
    # What the file cannot say is left out, alone and in combinations.
    assert not any(item.get("stages") == 0 or item.get("mover_warps") == 1 for item in changes)
    assert not any(word in str(item.candidate) for item in found.refused for word in ("stages = 0", "delays", "turns"))


def test_equal_kernels_are_built_once() -> None:
    """`delays` of the order that is taken anyway."""
    wide = entries()[0]
    checker = Checker(SPEC, TEXT, FILE, "sm_90a")
    taken = tuple(delay for _, delay in wide.main.delays)
    other = next(order.delays for order in wide.main.ranked[1:])
    pins = [Candidate((("delays", delays),)) for delays in (taken, tuple(delay for _, delay in other))]
    current, same, different = checker.check(wide, [Candidate(), *pins])
    assert same.digest == current.digest != different.digest
    kept, rest = rank((same, different), current)
    assert kept == [different]
    assert [item.reason for item in rest] == ["the same kernel as the entry as it is"]


def test_ranking() -> None:
    def checked(name: str, clocks: int, digest: str, changes: int = 1, reason: str = "") -> Checked:
        return Checked(Candidate(tuple((f"{name}{n}", 1) for n in range(changes))), reason, True, clocks, 0, digest)

    items = [
        checked("a", 9, "1"),
        checked("b", 8, "2", 2),
        checked("c", 8, "3"),
        checked("d", 8, "3"),
        checked("e", 0, "", reason="E-SHARED: x"),
        checked("f", 7, "0"),
    ]
    kept, others = rank(items, checked("current", 8, "0"))
    assert [str(item.candidate) for item in kept] == ["c0 = 1", "b0 = 1, b1 = 1", "a0 = 1"]
    assert [(str(item.candidate), item.reason) for item in others] == [
        ("e0 = 1", "E-SHARED: x"),
        ("f0 = 1", "the same kernel as the entry as it is"),
        ("d0 = 1", "the same kernel as c0 = 1"),
    ]


def test_processes_agree() -> None:
    (tile,) = entries(parts=("chunk_parallel",))
    found = simple_candidates(tile, make_axes(tile, DIMS, TARGET)) * 2
    alone = Checker(SPEC, TEXT, FILE, "sm_90a").check(tile, found)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert Checker(SPEC, TEXT, FILE, "sm_90a", pool).check(tile, found) == alone


def test_what_other_operators_would_lose() -> None:
    specs = sorted((ROOT / "specs").glob("*.toml"))
    assert lost_variants(specs, TEXT, TEXT, FILE) == ""
    tight = edit_entry(TEXT, FILE, "carried", 2, {"stages": 8})
    tight = edit_entry(tight, FILE, "carried", 3, {"stages": 8})
    assert "would lose forward_v64" in lost_variants(specs, TEXT, tight, FILE)
    assert lost_variants([Path("nowhere.toml")], TEXT, tight, FILE) == ""
