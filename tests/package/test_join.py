"""join.cu in the emulator against float64: states carried through the maps of segments, row after row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from qla_ops.runtime.loader import JOIN
from qlagen.errors import QlagenError
from qlagen.verify.emulator import Mode
from tests.package.shared_kernels import join_kernel

HEADS = 2
MODES = (Mode(), Mode(late=True), Mode(late=True, seed=1))


Edit = tuple[str, str]


def join(
    chains: Tensor,
    states: Tensor,
    joined: Tensor,
    key_dim: int,
    value_dim: int,
    edit: Edit = ("", ""),
    workers: int = 5,
    rooms: int = HEADS,
) -> Tensor:
    """Returns the products of maps; NaN where there are none."""
    operands = operands_of(chains, states, joined, (key_dim, value_dim, rooms, workers))
    join_kernel(*edit).run_in_modes(operands, MODES)
    products: Tensor = operands["segment_products"]
    return products


def operands_of(chains: Tensor, states: Tensor, joined: Tensor, numbers: tuple[int, int, int, int]) -> dict[str, Any]:
    """By name. `numbers`: K, V, rooms for products of maps, and CTAs."""
    key_dim, _, rooms, _ = numbers
    products = torch.full((len(states), rooms, key_dim**2), float("nan"))
    values = (chains.flatten(), states.flatten(2), joined, products, len(chains), HEADS, *numbers)
    return dict(zip(JOIN.parameters, values, strict=True))


def truth(chains: Tensor, states: Tensor, joined: Tensor, value_dim: int) -> Tensor:
    """S_out = M S_in + N in float64; rows are transposed states above transposed maps."""
    out = states.double()
    for first, count in chains.tolist():
        for before, row in pairwise(range(first, first + count)):
            for head in joined[row].nonzero().flatten().tolist():
                out[row, head, :value_dim] += out[before, head, :value_dim] @ out[row, head, value_dim:]
    return out


def example(rows: int, key_dim: int, value_dim: int) -> Tensor:
    """States of size one and orthogonal maps: what passes through all of them stays as large as it was."""
    generator = torch.Generator().manual_seed(rows)
    states = torch.randn(rows, HEADS, value_dim + key_dim, key_dim, generator=generator)
    square = torch.randn(rows, HEADS, key_dim, key_dim, generator=generator, dtype=torch.float64)
    states[:, :, value_dim:] = torch.linalg.qr(square).Q.float()
    return states


CASES = {
    "one chain": ([[0, 5]], [0, 1, 1, 1, 1], 128, 128),
    "two chains, one unused": ([[0, 3], [3, 3], [0, 0]], [0, 1, 1, 0, 1, 1], 128, 128),
    "gaps": ([[0, 7]], [0, 0, 1, 0, 0, 1, 1], 128, 128),
    "small": ([[0, 4]], [0, 1, 1, 1], 64, 64),
    "more values than keys": ([[1, 3]], [1, 1, 1, 1], 64, 128),
    "nothing joined": ([[0, 4]], [0, 0, 0, 0], 128, 128),
    "more chains than threads": ([[2 * i, 2] for i in range(70)], [0, 1] * 70, 64, 64),
    "long": ([[0, 12], [12, 3]], [0, *[1] * 11, 0, 1, 1], 64, 64),
    "long, with more keys": ([[1, 18]], [0, 0, *[1] * 17], 128, 64),
}


LONG = [name for name in CASES if name.startswith("long")]
ENOUGH = 100
"""CTAs for all tasks."""


@pytest.mark.parametrize("name", CASES)
def test_against_float64(name: str) -> None:
    check(name)


@pytest.mark.parametrize(("name", "workers"), [*((name, ENOUGH) for name in LONG), ("long", 32)])
def test_long_chains_in_halves(name: str, workers: int) -> None:
    """Only those whose rows are all joined, that is, of the first head. With 32 CTAs two share the rows behind."""
    products = check(name, workers=workers)
    (first, count), *_ = CASES[name][0]
    middle, end = first + 1 + (count - 1) // 2, first + count
    assert products[middle:end, 0].isfinite().all()
    assert products[:middle].isnan().all()
    assert products[end:].isnan().all()
    assert products[:, 1].isnan().all()


@pytest.mark.parametrize(("workers", "rooms"), [(15, 2), (31, 2), (ENOUGH, 0)])
def test_no_halves_without_room(workers: int, rooms: int) -> None:
    """Too few CTAs for all halves at once, or for two behind each block of columns, or no buffer."""
    assert check("long", workers=workers, rooms=rooms).isnan().all()


@pytest.mark.parametrize("workers", [24, 40, 48])
def test_no_cta_waits_for_one_that_starts_later(workers: int) -> None:
    """The emulator runs one after the other; it would never end."""
    check("long", workers=workers)


WHOLE, SECOND, PARTS = 4 * 4, 2 * 4, 8
"""CTAs of the case "long": of two chains and two heads the first chain's first head is walked in halves."""
FIRSTS, SECONDS = range(4), range(WHOLE, WHOLE + SECOND)


def run_blocks(blocks: Iterable[int], edit: Edit = ("", "")) -> None:
    table, flags, key_dim, value_dim = CASES["long"]
    states, joined = example(len(flags), key_dim, value_dim), flags_of_heads(flags)
    chains = torch.tensor(table, dtype=torch.int32)
    operands = operands_of(chains, states, joined, (key_dim, value_dim, HEADS, ENOUGH))
    join_kernel(*edit).run(operands, blocks=[(i, 0, 0) for i in blocks])


def test_what_comes_behind_waits_for_all_of_both_halves() -> None:
    """One CTA that has not come, of those that make the first half's state, the second half's or its products."""
    behind = range(WHOLE + SECOND, WHOLE + SECOND + 4 * PARTS)
    before = {*FIRSTS, *SECONDS}
    run_blocks([*sorted(before), *behind])
    for missing in (0, 3, WHOLE, WHOLE + 3, WHOLE + 4, WHOLE + SECOND - 1):
        with pytest.raises(QlagenError, match="E-EMU-DEADLOCK"):
            run_blocks([*sorted(before - {missing}), *behind])


WAITS = {
    "for the first half": (("wait_for(walk.flag, walk.tasks);", ""), SECONDS),
    "for the second half": (("wait_for(right, tasks.blocks + K / kColumns);", ""), FIRSTS),
    "for the last task": (("value <= tasks;", "value < tasks;"), [*FIRSTS[1:], *SECONDS[1:]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WAITS)
def test_a_wait_that_is_left_out_does_not_wait(name: str) -> None:
    """The test above would see it."""
    edit, done = WAITS[name]
    run_blocks([*done, WHOLE + SECOND], edit)


def flags_of_heads(flags: Sequence[int]) -> Tensor:
    """The second head has gaps."""
    joined = torch.tensor(flags, dtype=torch.int32)[:, None].repeat(1, HEADS).contiguous()
    joined[:, 1] *= torch.arange(len(flags), dtype=torch.int32) % 3 != 2
    return joined


def check(name: str, edit: Edit = ("", ""), workers: int = 5, rooms: int = HEADS) -> Tensor:
    table, flags, key_dim, value_dim = CASES[name]
    states = example(len(flags), key_dim, value_dim)
    joined = flags_of_heads(flags)
    chains = torch.tensor(table, dtype=torch.int32)
    # The first row of a chain is exact: whatever its flag and map hold, they are not looked at.
    expected = truth(chains, states, joined, value_dim)
    for first, count in table:
        states[first : first + min(count, 1), :, value_dim:] = float("nan")
        expected[first : first + min(count, 1), :, value_dim:] = float("nan")
    before = states.clone()
    products = join(chains, states, joined, key_dim, value_dim, edit, workers, rooms)
    untouched = torch.ones(len(flags), HEADS, dtype=torch.bool)
    for first, count in table:
        untouched[first + 1 : first + count] = joined[first + 1 : first + count] == 0
    assert torch.equal(states[untouched].nan_to_num(), before[untouched].nan_to_num())
    error = (states - expected)[:, :, :value_dim].norm() / expected[:, :, :value_dim].norm()
    assert float(error) < 1e-5
    return products


def test_many_rows() -> None:
    """More rows than a warp looks at together, with long gaps; an error grows with the square root of the steps."""
    rows, size = 70, 64
    states = example(rows, size, size)
    states[1:, :, :size] *= 0.1
    joined = torch.zeros(rows, HEADS, dtype=torch.int32)
    joined[1:33, 0] = 1
    joined[69, 1] = 1
    chains = torch.tensor([[0, rows]], dtype=torch.int32)
    expected = truth(chains, states, joined, size)
    join(chains, states, joined, size, size)
    for row, head in ((32, 0), (69, 1)):
        error = (states[row, head, :size] - expected[row, head, :size]).norm() / expected[row, head, :size].norm()
        assert float(error) < 4e-5


def test_a_size_without_a_kernel() -> None:
    states, joined = torch.zeros(1, HEADS, 64, 32), torch.zeros(1, HEADS, dtype=torch.int32)
    with pytest.raises(Exception, match="join_kernel: no kernel for K = 32, V = 32"):
        join(torch.zeros(1, 2, dtype=torch.int32), states, joined, 32, 32)


MUTANTS = {
    "sums of another row": ("load_values(next < list.end ? next : row, added);", "load_values(row, added);"),
    "maps too early": ("    wait_for_copies<1>();\n    __sync", "    wait_for_copies<2>();\n    __sync"),
    "maps never awaited": ("    wait_for_copies<1>();\n    __sync", "    __sync"),
    "the first map too early": ("wait_for_copies<2>();", "wait_for_copies<3>();"),
    "a map over the next one": ("(stage + kStages - 1) % kStages", "stage"),
    "a map of another row": ("lines + later * map_stride;", "lines + coming * map_stride;"),
    "a map read from another place": ("(kStep * step + j) * (K / 4)]", "(kStep * step + (j ^ 1)) * (K / 4)]"),
    "a gap is overlooked": ("if (held != row_before(row)) {", "if (held < 0) {"),
    "no low half of the state": ("multiply(products[tile], factor[step][1], now.high[tile]);", ";"),
    "no low half of the map": ("multiply(products[tile], factor[step][0], now.low[tile]);", ";"),
    "own half twice": ("block + (1 - part) * kSteps][half]", "warp][half]"),
    "halves mixed up": ("group % 2 ^ part", "group % 2 ^ (1 - part)"),
    "columns mixed up": ("kStep * part + 4 * quad;", "kStep * (1 - part) + 4 * quad;"),
    "no barrier between halves": ("    sync_pair(block);\n", ""),
    "no barrier behind a row": ("    wait_for_copies<1>();\n    __syncthreads();", "    wait_for_copies<1>();"),
    "one copy of the state": ("turn ^= 1;", ""),
    "heads mixed up": ("(base + bit) / o.heads", "bit / o.heads"),
    "heads left out": ("task -= tasks.all;", ""),
    "a head too few": ("whole = found * blocks;", "whole = found * blocks - 1;"),
    "maps add": ("if (kind != kMaps) sums", "sums"),
    "the first product is missing": ("if (kind == kMaps) store_values(held, before);", ""),
    "a row too early behind": ("walk.before = chain.middle - 1;", "walk.before = chain.middle - 2;"),
    "rows left out behind": ("walk.step = tasks.parts;", "walk.step = tasks.parts + 1;"),
    "a half's first row twice": ("walk.row = chain.middle + 1;", "walk.row = chain.middle;"),
    "a first half too long": ("walk.end = chain.middle;", "walk.end = chain.middle + 1;"),
    "maps instead of products": ("walk.maps = products;", ""),
    "a half of a chain with gaps": ("if (halving) least = min(least, static_cast<unsigned>(flag));", ""),
    "a half is not counted": ("if (halved) count_done(first ? left : right);", ""),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name: str) -> None:
    join_kernel(*MUTANTS[name])  # what cannot be edited or compiled is not caught
    settings = [*((case, 5) for case in CASES), *((case, ENOUGH) for case in LONG)]
    assert any(is_caught(case, MUTANTS[name], workers) for case, workers in settings)


def is_caught(case: str, mutant: Edit, workers: int) -> bool:
    try:
        check(case, mutant, workers)
    except (AssertionError, QlagenError):
        return True
    return False
