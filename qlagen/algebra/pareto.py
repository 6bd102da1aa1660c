"""Pareto sets: what no other point beats in one objective without losing in another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")
Objectives = tuple[float, ...]


def dominates(first: Objectives, second: Objectives) -> bool:
    """Whether the first is nowhere worse and somewhere better; smaller is better."""
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


def pareto_set(points: Iterable[T], objectives: Callable[[T], Objectives]) -> tuple[T, ...]:
    """The points that no other dominates, by rising objectives; of equal ones the first."""
    kept: dict[Objectives, T] = {}
    for point in points:
        found = objectives(point)
        if found in kept or any(dominates(other, found) for other in kept):
            continue
        for other in [o for o in kept if dominates(found, o)]:
            del kept[other]
        kept[found] = point
    return tuple(kept[o] for o in sorted(kept))
