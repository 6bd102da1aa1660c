"""A schedule computes what its program says: arrays through fragments, ring slots and barriers, against the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from qlagen.errors import QlagenError
from qlagen.program.ir import Load, Program
from qlagen.schedule.model import Schedule
from qlagen.schedule.variants import build_schedules
from tests.program.examples import DIMS
from tests.program.interpret import run_program
from tests.schedule import programs
from tests.schedule.cases import KERNELS, build, kernel, program, schedule_file, target
from tests.schedule.interpret import run_schedule
from tests.schedule.random_programs import random_program

Array = npt.NDArray[np.float64]
SCALARS = {"scale": 0.25}


def problem(item: Program, dims: Mapping[str, int], chunks: int, seed: int) -> tuple[list[dict[str, Array]], Array]:
    """Random tiles of every loaded tensor; gates are decreasing and slow."""
    random = np.random.default_rng(seed)
    memory = []
    for _ in range(chunks):
        slot = {}
        for load in (o for o in item.operations if isinstance(o, Load)):
            values = random.standard_normal([dims[d] for d in load.tensor.dims]) / 8
            gate = load.tensor.dims == ("C",) and load.tensor.name.startswith("g")
            slot[load.tensor.name] = -np.cumsum(np.abs(values)) / 16 if gate else values
        memory.append(slot)
    return memory, random.standard_normal((dims["K"], dims["V"])) / 8


def check(original: Program, schedule: Schedule, chunks: int = 3, seed: int = 0) -> None:
    """The schedule's stores and final state are those of the program as it was before scheduling."""
    dims = dict(schedule.dims)
    memory, state = problem(original, dims, chunks, seed)
    scalars = {name: SCALARS[name] for name in original.scalars}
    outputs, final = run_schedule(schedule, memory, scalars, state if original.carry else None, seed)
    for slot, output in zip(memory, outputs, strict=True):
        values = run_program(original, {**slot, **{n: np.asarray(s) for n, s in scalars.items()}}, state, dims)
        state = values[original.carry.next] if original.carry else state
        for store in original.stores:
            close(output[store.tensor.name], values[store.value])
    if original.carry is not None:
        assert final is not None
        close(final, state)


def close(found: Array, expected: Array) -> None:
    assert found.shape == expected.shape
    size = max(float(np.abs(expected).max()), 1e-30)
    assert float(np.abs(found - expected).max()) <= 1e-9 * size


@pytest.mark.parametrize("key", KERNELS, ids="-".join)
def test_kernels_of_the_specs(key: tuple[str, str, str]) -> None:
    for seed in range(3):
        check(program(*key[:2]), kernel(*key), chunks=2 + 3 * seed, seed=seed)


@pytest.mark.parametrize("operator", ["gated_delta_rule", "delta_rule", "simple_gla"])
def test_every_candidate_order(operator: str) -> None:
    forward = program(operator, "forward")
    for order in kernel(operator, "forward", "v64").ranked:
        check(forward, build(forward, "v64", delays=order.delays))


def test_other_forms() -> None:
    forward = program("gated_delta_rule", "forward")
    check(programs.state_only(forward), build(programs.state_only(forward), "v64"))
    check(programs.unfused(forward), build(programs.unfused(forward), "v128"))
    check(programs.scaled_keys(), build(programs.scaled_keys(), "v64"))
    kept = programs.keep_values(program("delta_rule", "forward"), "Vn")
    check(kept, build(kept, "v64"))
    for form in (programs.solved_keys(), *programs.textbook()):
        for schedule in build_schedules(form, dict(DIMS), schedule_file(), target()):
            check(form, schedule)


REFUSALS = {"E-PLACE", "E-ORIENT", "E-ESTIMATE", "E-SHARED", "E-ORDER", "E-MOVERS"}


def attempt(item: Program, dims: Mapping[str, int]) -> tuple[Schedule, ...] | str:
    """The schedules, or the code of the refusal."""
    try:
        return build_schedules(item, dims, schedule_file(), target())
    except QlagenError as error:
        return error.code


def test_random_programs() -> None:
    """Whatever is accepted is right; whatever is refused is refused for what the program asks for."""
    seen: Counter[str] = Counter()
    for seed in range(120):
        item = random_program(seed)
        if item is None:
            continue
        dims = {"C": 64, "K": 64 + 64 * (seed % 2), "V": 64 + 64 * (seed // 2 % 2)}
        found = attempt(item, dims)
        if isinstance(found, str):
            assert found in REFUSALS, f"seed {seed}"
            seen["refused"] += 1
        else:
            check(item, found[-1], chunks=4, seed=seed)
            seen["carried" if item.carry else "parallel"] += 1
    assert seen["carried"] >= 15
    assert seen["parallel"] >= 20
    assert seen["refused"] <= 25
