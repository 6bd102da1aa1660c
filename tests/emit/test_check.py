"""Arrivals counted again from the text: a wrong count or a changed arrival is always noticed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from qlagen.emit.check import check_text, read_barriers
from qlagen.errors import QlagenError
from qlagen.schedule.model import Schedule
from tests.emit.kernels import KERNELS, emitted, persistent, schedule_of

each_kernel = pytest.mark.parametrize("kernel", KERNELS, ids="-".join)
ARRIVAL = re.compile(r"^ +if T\.shuffle_elect\(WARP\):\n +T\.barrier_arrive\((\w+)\[.*\n", re.MULTILINE)


@each_kernel
def test_emitted_text_passes_and_every_barrier_is_read(kernel: tuple[str, str, str]) -> None:
    found = read_barriers(emitted(*kernel))
    scheduled = {barrier.name: barrier.count for barrier in schedule_of(kernel).barriers}
    assert {name: barrier.arrivals for name, barrier in found.items() if name in scheduled} == scheduled


@each_kernel
def test_every_dropped_repeated_or_unelected_arrival_is_noticed(kernel: tuple[str, str, str]) -> None:
    check_arrivals(emitted(*kernel), schedule_of(kernel))


@pytest.mark.parametrize("kernel", [key for key in KERNELS if key[1] != "prepare"], ids="-".join)
def test_so_is_every_one_on_a_persistent_grid(kernel: tuple[str, str, str]) -> None:
    check_arrivals(*persistent(*kernel))


def check_arrivals(text: str, schedule: Schedule) -> None:
    arrivals = list(ARRIVAL.finditer(text))
    assert len({match[1] for match in arrivals}) >= len(schedule.barriers)
    for match in arrivals:
        unelected = match[0].replace("if T.shuffle_elect(WARP):", "if rows > 0:")
        for changed in ("", match[0] + match[0], unelected):
            mutant = text[: match.start()] + changed + text[match.end() :]
            with pytest.raises(QlagenError, match=rf"barrier {match[1]} ") as caught:
                check_text(mutant, schedule)
            assert caught.value.code == "E-ARRIVALS"


@each_kernel
def test_a_wrong_count_in_text_or_schedule_is_noticed(kernel: tuple[str, str, str]) -> None:
    text, schedule = emitted(*kernel), schedule_of(kernel)
    for number, barrier in enumerate(schedule.barriers):
        for count in (barrier.count - 1, barrier.count + 1):
            allocation = f"{barrier.name} = T.alloc_barrier([{barrier.count}]"
            assert allocation in text
            mutant = text.replace(allocation, f"{barrier.name} = T.alloc_barrier([{count}]")
            with pytest.raises(QlagenError, match="its schedule says"):
                check_text(mutant, schedule)
            barriers = list(schedule.barriers)
            barriers[number] = replace(barrier, count=count)
            with pytest.raises(QlagenError, match="its schedule says"):
                check_text(text, replace(schedule, barriers=tuple(barriers)))


def test_an_arrival_in_another_role_counts_that_role_s_warps() -> None:
    kernel = ("gated_delta_rule", "forward", "v128")
    text, schedule = emitted(*kernel), schedule_of(kernel)
    release = next(match for match in ARRIVAL.finditer(text) if match[1] == "stage_free")
    moved = text[: release.start()] + text[release.end() :]
    place = next(match for match in ARRIVAL.finditer(moved) if match[1] == "O_left_ready").end()
    with pytest.raises(QlagenError, match="made for 8 arrivals, the text makes 4"):
        check_text(moved[:place] + release[0] + moved[place:], schedule)


def test_a_count_of_a_private_barrier_is_checked_too() -> None:
    kernel = ("gated_delta_rule", "forward", "v64")
    text = emitted(*kernel).replace("load_q_k_landed = T.alloc_barrier([1]", "load_q_k_landed = T.alloc_barrier([2]")
    with pytest.raises(QlagenError, match="load_q_k_landed is made for 2 arrivals, the text makes 1"):
        check_text(text, schedule_of(kernel))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build(:", "the kernel's text is not Python: line 1"),
        ("x = 1\n", "no `with T.Kernel"),
        ("with T.Kernel(1) as b:\n    x = T.alloc_barrier([n])\n", "barrier x: no count can be read"),
    ],
)
def test_text_that_is_no_kernel(text: str, message: str) -> None:
    with pytest.raises(QlagenError, match=re.escape(message)):
        read_barriers(text)


def test_a_missing_barrier_is_named() -> None:
    kernel = ("delta_rule", "prepare", "tile")
    text = re.sub(r"^ +k_ready = .*\n", "", emitted(*kernel), flags=re.MULTILINE)
    text = re.sub(r"^ +T\.barrier_arrive\(k_ready.*\n", "            pass\n", text, flags=re.MULTILINE)
    with pytest.raises(QlagenError):
        check_text(text, schedule_of(kernel))
