"""Kernels of a call that start early wait before they touch what the kernel before hands over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from qlagen.errors import QlagenError
from qlagen.verify.emulator import Mode
from qlagen.verify.simulate import EmulatedOperator
from tests.verify.test_persistent import OPERATORS, Edit, build
from tests.verify.test_segments import call

MODES = (Mode(), Mode(lazy=True), Mode(late=True), Mode(late=True, seed=1))
LIBRARY = Path(__file__).parents[2] / "generated/qla_ops/src/qla_ops/kernels"
FILES = sorted(file for file in LIBRARY.rglob("*.py") if file.stem != "__init__")
WAIT, MADE = "T.pdl_sync()\n", "# what the kernel before made\n"
# Whose wait is left out: a pattern with the wait as its first group.
PLACES = {
    ("prepare", "tables of many sequences"): r"if few == 0:\n +(T\.pdl_sync\(\)\n)",
    ("segment", "all threads"): r"\n +(T\.pdl_sync\(\)\n) +T\.pdl_trigger",
    ("forward", "the state of the segment before"): r"if follows != 0:\n +(T\.pdl_sync\(\)\n)",
    ("forward", "tiles of the mover that loads v"): rf"{MADE} +(T\.pdl_sync\(\)\n)",
    ("forward", "vectors"): r"# load_g_cum\n +(T\.pdl_sync\(\)\n)",
}


def many(name: str, own: str) -> str:
    """Three sequences are many."""
    del name
    return own.replace("sequences <= 64", "sequences <= 2").replace("sequences > kMost", "sequences > 2")


def without(place: tuple[str, str]) -> Edit:
    def edit(name: str, own: str) -> str:
        own = many(name, own)
        if name != place[0]:
            return own
        (found,) = re.finditer(PLACES[place], own)
        return own[: found.start(1)] + "T.sync_warp()\n" + own[found.end(1) :]

    return edit


def agrees(wanted: dict[str, torch.Tensor], got: EmulatedOperator, mode: Mode) -> bool:
    try:
        found = got(call(OPERATORS[0], 1 / 24), mode)
    except QlagenError:
        return False
    return all(torch.equal(wanted[name], found[name]) for name in ("o", "final_state"))


@pytest.mark.slow
@pytest.mark.parametrize("persistent", [False, True])
def test_kernels_that_wait_agree_in_all_modes(persistent: bool, tmp_path: Path) -> None:
    (tmp_path / "many").mkdir()
    operator = build(OPERATORS[0], tmp_path, persistent)
    wanted = operator(call(OPERATORS[0], 1 / 24))
    assert not any(wanted[name].isnan().any() for name in ("o", "final_state"))
    assert all(agrees(wanted, operator, mode) for mode in MODES)
    assert all(agrees(wanted, build(OPERATORS[0], tmp_path / "many", persistent, many), mode) for mode in MODES)


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES, ids=" - ".join)
def test_a_wait_that_is_left_out_is_caught(place: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "right").mkdir()
    wanted = build(OPERATORS[0], tmp_path / "right", False)(call(OPERATORS[0], 1 / 24))
    mutant = build(OPERATORS[0], tmp_path, False, without(place))
    assert not all(agrees(wanted, mutant, mode) for mode in MODES)


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_every_kernel_waits_before_it_lets_another_start(file: Path) -> None:
    """Whichever kernel follows may then read what kernels before this one made."""
    own = file.read_text("utf-8")
    assert WAIT in own
    assert len(re.findall(r"T\.pdl_sync\(\)\n +T\.pdl_trigger\(\)", own)) == own.count("T.pdl_trigger()")
    if MADE in own:
        # A CTA whose items have no chunks waits as well: behind the loops of the mover that waits in them.
        mover = own[own.rindex("# load_", 0, own.index(MADE)) :]
        assert re.search(r"\n {20}(while|for)(.|\n)*?\n {20}T\.pdl_sync\(\)\n", mover)


@pytest.mark.parametrize("file", sorted(LIBRARY.glob("*.cu")), ids=lambda file: file.stem)
def test_every_shared_kernel_waits_first(file: Path) -> None:
    own = file.read_text("utf-8")
    body = own[own.index("__global__") :]
    assert body[body.index("{\n") + 2 :].split("\n")[0].strip() == "cudaGridDependencySynchronize();"
    assert own.count("cudaTriggerProgrammaticLaunchCompletion();") == 1
