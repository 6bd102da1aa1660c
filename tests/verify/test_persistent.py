"""Carried kernels on a persistent grid, in the emulator: CTAs that walk many items give what a CTA for each gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch

from qlagen.emit.kernel import emit_kernel
from qlagen.emit.load import load_kernel
from qlagen.errors import QlagenError
from qlagen.verify.emulator import Mode
from qlagen.verify.simulate import EmulatedOperator
from tests.schedule import cases
from tests.verify.test_segments import CHUNK, EXACT, KEYS, VALUES, call

MODES = (Mode(), Mode(lazy=True), Mode(late=True, seed=1), Mode(lazy=True, late=True, seed=2))
PROGRAMS = ("prepare", "segment", "forward")
OPERATORS = ("gated_delta_rule", "delta_rule", "simple_gla")
Edit = Callable[[str, str], str]
"""From the name of a program and its kernel's text to another text."""


@cache
def text(operator: str, name: str, persistent: bool) -> str:
    """Two tiles of values for each head, and one of a map."""
    program, dims = cases.program(operator, name), {"C": CHUNK, "K": KEYS, "V": VALUES}
    if program.carry is None:
        return emit_kernel(cases.build(program, "tile", dims, value_tile=VALUES), "test")
    return emit_kernel(cases.build(program, "v64", dims, value_tile=64, persistent=persistent), "test")


def unchanged(name: str, own: str) -> str:
    return own


def build(
    operator: str, folder: Path, persistent: bool, edit: Edit = unchanged, data: str = "bfloat16"
) -> EmulatedOperator:
    loaded = []
    for name in PROGRAMS:
        file = folder / f"{operator}_{name}_{persistent}.py"
        file.write_text(edit(name, text(operator, name, persistent)), encoding="utf-8")
        loaded.append(load_kernel(file))
    return EmulatedOperator(loaded, data)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def same(operator: str, wanted: EmulatedOperator, got: EmulatedOperator, mode: Mode, workers: int) -> bool:
    """Cut, packed, empty and ragged sequences, and whole ones; with maps, without, and with unused segments."""
    for options in ({}, {"skip_threshold": EXACT}, {"skip_threshold": -1.5}, {"cuts": (), "unused": 0}):
        of = call(operator, 1 / 24, **options)
        data = getattr(torch, wanted.data_type)
        tensors = {name: t.to(data) if t.dtype == torch.bfloat16 else t for name, t in of.tensors.items()}
        of = replace(of, tensors=tensors)
        first, second = wanted(of), got(of, mode, workers=workers)
        for name in ("o", "final_state", "segment_state", "segment_joined"):
            if name in first and not torch.equal(first[name].nan_to_num(-77), second[name].nan_to_num(-77)):
                return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("operator", OPERATORS)
def test_few_workers_give_what_many_ctas_give(operator: str, folder: Path) -> None:
    """3 CTAs for 80 items and more, and for some of the calls one for each."""
    for data in ("bfloat16", "float16") if operator == OPERATORS[0] else ("bfloat16",):
        wanted, got = build(operator, folder, False, data=data), build(operator, folder, True, data=data)
        for mode, workers in zip(MODES, (3, 1, 7, 1000), strict=True):
            assert same(operator, wanted, got, mode, workers)


MUTANTS: dict[str, tuple[str, str]] = {
    "each item counts from zero": ("done = T.max(done, 0) + iterations", "done = 0 * iterations"),
    "coordinates that run on": ("first = first - T.max(done, 0) * CHUNK", "first = first - 0 * CHUNK"),
    "slots that run on": ("first_slot = first_slot - T.max(done, 0)", "first_slot = first_slot"),
    "every cut chunk is the first": ("cuts % 2", "0"),
    "the segment behind a joint": ("  return low;", "  return min(low + 1, segments - 1);"),
    "rows of no sequence left as they are": ("tokens - segment_offsets[segments]", "0"),
    "what an item left goes where the next one's belongs": ("left_value_head = value_head", "left_value_head = 0"),
    "what the last item left is lost": ("T.if_then_else(closes * has_final_state != 0, 1, 0)", "0"),
    "an item starts from what the last one left": ("T.copy(S_r_next, S_r)", "T.copy(S_r, S_r_next)"),
    "every other item left out": ("item = item + workers", "item = item + workers * 2"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str, folder: Path, tmp_path: Path) -> None:
    old, new = MUTANTS[name]
    operator = OPERATORS[0]
    assert any(old in text(operator, program, True) for program in PROGRAMS)
    wanted = build(operator, folder, False)
    mutant = build(operator, tmp_path, True, lambda name, own: own if name == "prepare" else own.replace(old, new))
    assert not finds_the_same(operator, wanted, mutant)


def finds_the_same(operator: str, wanted: EmulatedOperator, got: EmulatedOperator) -> bool:
    try:
        return same(operator, wanted, got, MODES[0], 3)
    except QlagenError:
        return False
