"""Chunks of few sequences are found without tables: just where the tables say."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qlagen.emit.load import load_kernel
from qlagen.verify.simulate import EmulatedOperator
from tests.verify.test_segments import CHUNK, HEADS, call, modules

OPERATOR = "gated_delta_rule"
MADE = ("a", "g_cum")
MANY = ("sequences <= 64", "sequences <= 0"), ("sequences > kMost", "sequences > 0")
Offsets = tuple[int, ...]


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., EmulatedOperator]:
    @cache
    def built(*edits: tuple[str, str]) -> EmulatedOperator:
        return prepare(tmp_path_factory.mktemp("prepare"), *edits)

    return built


def prepare(folder: Path, *edits: tuple[str, str]) -> EmulatedOperator:
    """The prepare kernel, as it is or changed."""
    (module,) = modules(OPERATOR, 0, folder, "prepare")
    text = Path(str(module.__file__)).read_text("utf-8")
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    (folder / "edited.py").write_text(text, "utf-8")
    return EmulatedOperator([load_kernel(folder / "edited.py")], "bfloat16")


def problem(offsets: Offsets, spare: int = 3) -> Any:
    """`spare` tokens belong to no sequence."""
    of = call(OPERATOR)
    tensors = {name: tensor[: offsets[-1] + spare].contiguous() for name, tensor in of.tensors.items()}
    state = torch.zeros(len(offsets) - 1, HEADS, *of.state_shape)
    return replace(of, tensors=tensors, offsets=offsets, initial_state=state, cuts=(), unused=0)


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name].nan_to_num(), other[name].nan_to_num()) for name in MADE)


def random_offsets(sequences: int) -> Offsets:
    """Many of no token, one of several chunks, the others of a few tokens."""
    lengths = np.random.default_rng(sequences).integers(0, 4, sequences)
    lengths[sequences // 2] = 2 * CHUNK + 5
    return (0, *np.cumsum(lengths).tolist())


@pytest.mark.parametrize("sequences", [1, 31, 32, 33, 63, 64, 65])
def test_as_the_tables_say(kernels: Callable[..., EmulatedOperator], sequences: int) -> None:
    of = problem(random_offsets(sequences))
    found = kernels()(of)
    assert same(found, kernels(*MANY)(of))
    assert not found["g_cum"][: int(found["segment_chunks"][-1])].isnan().any()


RAW: dict[str, Offsets] = {
    "as they are": (0, 70, 70, 200, 330),
    "not from zero": (-9, 70, 70, 200, 330),
    "falling": (0, 70, 12, 200, 330),
    "negative": (5, 70, -70, 200, 330),
    "past the tokens": (0, 70, 70, 200, 1000),
    "beyond 32 bits": (0, 70, -(2**40), 200, 2**40 + 3),
}


def give(operator: EmulatedOperator, of: Any, raw: Offsets, wide: bool) -> dict[str, torch.Tensor]:
    """What the kernel makes when these are the caller's offsets; the tables are those of the right ones."""
    buffers = operator(of)
    module, kernel = operator.modules[0], operator.kernels[0]
    words = torch.tensor(raw, dtype=torch.int64 if wide else torch.int32).view(torch.int32)
    given = {name: buffers[name] for name in module.TENSORS} | {"given_offsets": words}
    given |= {name: torch.full_like(buffers[name], float("nan")) for name in MADE}
    numbers = {"workers": 3, "has_spare_chunks": 1, "sequences": len(raw) - 1, "wide_offsets": int(wide)}
    kernel.run({**given, **numbers})
    return given


@pytest.mark.parametrize(("name", "wide"), [(n, w) for n in RAW for w in (False, True) if w or n != "beyond 32 bits"])
def test_offsets_as_callers_give_them(kernels: Callable[..., EmulatedOperator], name: str, wide: bool) -> None:
    of = problem(RAW["as they are"], spare=0)
    assert same(give(kernels(), of, RAW[name], wide), kernels()(of))


MUTANTS = {
    "ends may fall": ("ends[i] = max(ends[i], nearer);", ";"),
    "the second half from nothing": ("ends[1] = max(ends[1], half);", ""),
    "no chunks before the second half": ("chunks[1] += __shfl_sync(kWarp, chunks[0], 31);", ""),
    "chunks without the ones before": ("chunks[i] += nearer;", ";"),
    "no cut chunks": ("+ chunk - 1) / chunk;", ") / chunk;"),
    "the second half starts at zero": ("before : i * half", "before : 0"),
    "ends that are too large": ("end > tokens ? tokens : end", "end > tokens ? 0 : end"),
    "a chunk too early": ("chunks[32] <= slot", "chunks[32] < slot"),
    "the tokens of another sequence": ("return n > 0 ? places[n - 1]", "return n > 0 ? places[n]"),
    "rows of another sequence": ("places[own(places, slot)] - start", "places[own(places, slot) + 1] - start"),
    "words of 32 bits": ("if (n <= sequences) end = wide ?", "if (n <= sequences) end = !wide ?"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(kernels: Callable[..., EmulatedOperator], name: str, tmp_path: Path) -> None:
    mutant = prepare(tmp_path, MUTANTS[name])
    problems = [problem(random_offsets(sequences)) for sequences in (33, 64)]
    given = problem(RAW["as they are"], spare=0)

    def right() -> bool:
        try:
            agree = all(same(kernels()(of), mutant(of)) for of in problems)
            return agree and all(same(give(mutant, given, raw, True), kernels()(given)) for raw in RAW.values())
        except Exception:
            return False

    assert not right()
