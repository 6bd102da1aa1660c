"""The order in which a role's instructions are done, over all iterations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar


class Lagging(Protocol):
    @property
    def lag(self) -> int:
        """How many iterations later it is done."""


Item = TypeVar("Item", bound=Lagging)


def rounds(body: Sequence[Item], iterations: int) -> Iterator[tuple[Item, int]]:
    """Every instruction with the iteration that it is for. One that lags is done in a later pass through the body, and
    behind the last pass for the iterations that are left."""
    for done in range(iterations + max((item.lag for item in body), default=0)):
        for item in body:
            if 0 <= done - item.lag < iterations:
                yield item, done - item.lag
