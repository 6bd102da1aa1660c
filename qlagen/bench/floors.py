"""The floor of a row: the time that its products or its bytes take at least on a GPU, whichever is longer."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from qlagen.bench.cases import KEY_SIZE, VALUE_SIZE, Case
from qlagen.schedule.target import load_target

_GEMM = 64 * 64 * 16
"""Multiply-adds of the product whose clocks a target's file gives."""


@dataclass(frozen=True)
class Floor:
    """Milliseconds on a full GPU. `tensor`: the chunked form's products; `memory`: every input and output once."""

    tensor: float
    memory: float

    @property
    def milliseconds(self) -> float:
        return max(self.tensor, self.memory)

    @property
    def limit(self) -> str:
        return "tensor cores" if self.tensor >= self.memory else "memory"


def floor_of(case: Case, gpu: str) -> Floor | None:
    """None for a GPU whose rates are not known."""
    facts = _floors()["gpu"].get(gpu)
    if facts is None:
        return None
    target = load_target(facts["target"])
    per_second = target.streaming_multiprocessors * _GEMM / target.clocks.gemm_m64n64k16 * facts["clock_ghz"] * 1e9
    return Floor(
        tensor=multiply_adds(case) / per_second * 1e3,
        memory=least_bytes(case) / (facts["memory_tb_per_s"] * 1e12) * 1e3,
    )


def multiply_adds(case: Case) -> float:
    """Of the chunked form; a sequence's last chunk counts by its tokens."""
    counts = _floors()[case.direction if case.traits.correction else f"{case.direction}_without_correction"]
    heads = counts["per_value_head"] * case.value_heads + counts["per_key_head"] * case.key_heads
    return float(case.tokens / counts["chunk"] * heads)


def least_bytes(case: Case) -> int:
    """16-bit q, k, v and o, 32-bit gates and states, each read or written once; the gradients likewise."""
    keys, values = case.tokens * case.key_heads * KEY_SIZE * 2, case.tokens * case.value_heads * VALUE_SIZE * 2
    gates = case.tokens * case.value_heads * 4 * (case.traits.gate + case.traits.correction)
    state = len(case.lengths) * case.value_heads * KEY_SIZE * VALUE_SIZE * 4
    if case.direction == "forward":
        return 2 * keys + 2 * values + gates + 2 * state
    # q k v do g beta S0 dS in; dq dk dv dg dbeta dS0 out.
    return 4 * keys + 3 * values + 2 * gates + 3 * state


@cache
def _floors() -> dict[str, Any]:
    return tomllib.loads(resources.files("qlagen.bench").joinpath("floors.toml").read_text(encoding="utf-8"))
