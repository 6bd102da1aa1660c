"""Implementations that need no GPU, with faults to choose, and a timer with times to choose."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from qlagen.bench.cases import Case
from qlagen.bench.inputs import Inputs
from qlagen.bench.measure import Bench
from qlagen.bench.peers.base import Call, Implementation
from qlagen.bench.reference import reference
from qlagen.bench.timing import Replay


def solve(inputs: Inputs) -> dict[str, torch.Tensor]:
    """Right results, rounded as a kernel would round them."""
    (_, _, found), *rest = reference(inputs, 1 << 40)
    assert not rest
    return {name: value.bfloat16().float() for name, value in found.items()}


class Fake(Implementation):
    """Right unless it is given a `fault`, which changes its results."""

    distribution = "torch"
    modules = ("qlagen",)
    ran = 0

    def __init__(self, name: str = "fake", fault: Callable[[dict[str, torch.Tensor]], Any] | None = None) -> None:
        self.name, self.fault = name, fault

    def version(self) -> str:
        return "1"

    def forward(self, inputs: Inputs) -> Call:
        def call() -> dict[str, torch.Tensor]:
            self.ran += 1
            results = solve(inputs)
            if self.fault is not None:
                self.fault(results)
            return results

        return call

    def backward(self, inputs: Inputs) -> Call:
        return self.forward(inputs)

    def results(self, direction: str, returned: Any) -> dict[str, torch.Tensor]:
        return dict(returned)


class FakeTimer:
    """Says what it is told: milliseconds by implementation, and one per cent less or more in turn."""

    def __init__(self, milliseconds: Mapping[str, float]) -> None:
        self.milliseconds = milliseconds
        self.order: list[str] = []

    def prepare(self, calls: Sequence[Call]) -> Replay:
        name = calls[0].__closure__[-1].cell_contents.name  # type: ignore[index]
        return Replay(lambda: None, len(calls), name)

    def sample(self, replay: Replay) -> float:
        self.order.append(replay.mode)
        return self.milliseconds[replay.mode] * (1 + 0.01 * (self.order.count(replay.mode) % 3 - 1)) * 1e-3

    def peak_bytes(self, call: Call) -> tuple[Any, int]:
        return call(), 3 << 20


def make_bench(
    registry: Mapping[str, Implementation], times: Mapping[str, float] | None = None, free: int = 1 << 40
) -> Bench:
    timer = FakeTimer(times or dict.fromkeys(registry, 1.0))
    factories = {name: (lambda made=made: made) for name, made in registry.items()}
    return Bench(factories, "cpu", lambda: timer, lambda: {"sm_mhz": 1980}, lambda: free, cache_bytes=0)


def small_case(
    direction: str = "forward",
    lengths: tuple[int, ...] = (70, 1, 64),
    gates: str = "quarter ungated",
    operator: str = "",
) -> Case:
    return Case(direction, 2, 4, "+".join(map(str, lengths)), lengths, gates, operator)


def with_lengths(case: Case, lengths: tuple[int, ...]) -> Case:
    return replace(case, label="+".join(map(str, lengths)), lengths=lengths)
