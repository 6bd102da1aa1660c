"""The correctness gate: no time is written for an implementation whose results are wrong.

An error is a relative L2 distance, per value head (key head for dq and dk), so that one wrong head cannot hide behind
right ones; and, per token and head (per sequence and head for states), the distance relative to that head's usual row,
so that one wrong row cannot hide either. Heads far smaller than the others are measured against the others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from qlagen.bench.inputs import Inputs
from qlagen.bench.reference import reference

if TYPE_CHECKING:
    import torch

HEAD_LIMITS = {
    "o": 1e-2,
    "final_state": 1e-2,
    "dq": 2e-2,
    "dk": 2e-2,
    "dv": 2e-2,
    "dg": 5e-2,
    "dbeta": 3e-2,
    "d_initial_state": 2e-2,
}
"""Two to three times the error of a right kernel with 16-bit operands; dg is a sum of terms that cancel."""
ROW_LIMIT = 0.25
_SMALL_HEAD = 0.05
"""Of the heads' usual norm: smaller heads are measured against this."""
_NOTHING = 1e-6
"""A row of this length is nothing beside results of the order of one; a gradient can vanish in every head."""
PEER_FACTOR = 2.0
"""Two right results differ by at most the sum of their errors."""


@dataclass(frozen=True)
class Error:
    """`head`: the worst head's relative distance; `row`: the worst row's."""

    head: float
    row: float


def names(direction: str) -> tuple[str, ...]:
    """The results that an implementation must give, by name."""
    if direction == "forward":
        return ("o", "final_state")
    return ("dq", "dk", "dv", "dg", "dbeta", "d_initial_state")


def shape_fault(results: Mapping[str, torch.Tensor], inputs: Inputs) -> str:
    """What is wrong with the results' names, shapes or values as such; empty when nothing is."""
    like = {"o": inputs.v, "final_state": inputs.initial_state, "dq": inputs.q, "dk": inputs.k, "dv": inputs.v}
    like |= {"dg": inputs.g, "dbeta": inputs.beta, "d_initial_state": inputs.initial_state}
    for name in names(inputs.case.direction):
        if name not in results:
            return f"gave no {name}"
        got, wanted = tuple(results[name].shape), tuple(like[name].shape)
        if got != wanted:
            return f"{name} has shape {got}, not {wanted}"
    return ""


class Reference:
    """The float64 results of a case, kept as float32, to judge one implementation after the other."""

    def __init__(self, inputs: Inputs, memory: int) -> None:
        """Evaluates the reference in slices of at most `memory` bytes."""
        self.slices = [
            (keys, values, {name: value.float() for name, value in expected.items()})
            for keys, values, expected in reference(inputs, memory)
        ]
        self.sizes = {
            name: _typical([_rows(expected[name], name)[0].sum(0) for _, _, expected in self.slices])
            for name in names(inputs.case.direction)
        }

    def errors(self, results: Mapping[str, torch.Tensor]) -> dict[str, Error]:
        """The distances of an implementation's results, by name."""
        worst: dict[str, Error] = {}
        for keys, values, expected in self.slices:
            for name, want in expected.items():
                got = _cut(results[name], name, keys if name in ("dq", "dk") else values)
                worst[name] = _worse(worst.get(name), distance(got, want, name, self.sizes[name]))
        return {name: worst[name] for name in self.sizes}


def peer_errors(
    results: Mapping[str, Mapping[str, torch.Tensor]], direction: str
) -> dict[str, tuple[str, dict[str, Error]]]:
    """For each implementation the other one it agrees with best, and the distances to that one.

    An implementation with no other to compare with is left out.
    """
    found: dict[str, tuple[str, dict[str, Error]]] = {}
    for name, tensors in results.items():
        others = {}
        for other, wanted in results.items():
            if other != name:
                others[other] = {part: distance(tensors[part], wanted[part], part) for part in names(direction)}
        if others:
            best = min(others, key=lambda other: (_badness(others[other]), other))
            found[name] = best, others[best]
    return found


def distance(got: torch.Tensor, want: torch.Tensor, name: str, typical: float = 0.0) -> Error:
    """`typical` is the usual squared norm of a head, when the caller knows more heads than these."""
    squares, rows = _rows(want, name)
    missed, _ = _rows(got.double() - want.double(), name)
    heads = squares.sum(0)
    small = _SMALL_HEAD**2 * (typical or _typical([heads]))
    heads = heads.clamp(min=max(small, rows * _NOTHING**2))
    head = (missed.sum(0) / heads).sqrt().max().item()
    row = (missed * rows / heads).sqrt().max().item()
    return Error(_finite(head), _finite(row))


def verdict(errors: Mapping[str, Error], factor: float = 1.0) -> str:
    """Why these errors are too large; empty when they are not."""
    for name, error in errors.items():
        limit = HEAD_LIMITS[name] * factor
        if not error.head <= limit:
            return f"wrong {name}: relative error {error.head:.2g}, at most {limit:.2g} is right"
        if not error.row <= ROW_LIMIT * factor:
            limit = ROW_LIMIT * factor
            return f"wrong {name}: a row is off by {error.row:.2g} of a usual row, at most {limit:.2g} is right"
    return ""


def _rows(x: torch.Tensor, name: str) -> tuple[torch.Tensor, int]:
    """Squared norms [rows, heads] of a result's rows, and how many rows there are."""
    flat = (x.flatten(2) if name in ("final_state", "d_initial_state") else x[0]).double()
    squares = flat.square().sum(-1) if flat.dim() == 3 else flat.square()
    return squares, squares.shape[0]


def _cut(x: torch.Tensor, name: str, heads: slice) -> torch.Tensor:
    return x[:, heads] if name in ("final_state", "d_initial_state") else x[:, :, heads]


def _typical(heads: list[torch.Tensor]) -> float:
    """The mean over heads of the squared norms."""
    return sum(part.sum().item() for part in heads) / max(1, sum(part.numel() for part in heads))


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.inf


def _worse(first: Error | None, second: Error) -> Error:
    return second if first is None else Error(max(first.head, second.head), max(first.row, second.row))


def _badness(errors: Mapping[str, Error]) -> float:
    return max(max(error.head / HEAD_LIMITS[name], error.row / ROW_LIMIT) for name, error in errors.items())
