"""A builder that builds nothing and a measurer with times to choose, for searches without a GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qlagen.schedule.options import parse_options
from qlagen.tune.build import Built
from qlagen.tune.candidates import parts
from qlagen.tune.measure import Comparison, RefusedError, RowTimes
from qlagen.tune.search import ROUNDS

SECONDS = 1e-3
Settings = dict[str, Any]
"""Part and number of an entry, as in ``carried 0``, to its options."""


def settings_of(text: str) -> Settings:
    named = parts(parse_options(text, "text"))
    return {f"{part} {index}": options for part, entries in named.items() for index, options in enumerate(entries)}


class FakeClock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@dataclass
class FakeBuilder:
    """Every text becomes a folder with the text's number as its name."""

    fault: Callable[[Settings], str] = lambda settings: ""
    texts: list[str] = field(default_factory=list)
    kernels: list[tuple[str, ...]] = field(default_factory=list)
    closed: bool = False

    def submit(self, text: str, kernels: Sequence[str] = ()) -> Future[Built]:
        if text not in self.texts:
            self.texts.append(text)
            self.kernels.append(tuple(kernels))
        done: Future[Built] = Future()
        done.set_result(Built(Path(str(self.texts.index(text))), self.fault(settings_of(text))))
        return done

    def close(self) -> None:
        self.closed = True


@dataclass
class FakeMeasurer:
    """`ratio` says how long a library takes beside the present one; `fault` what is wrong with its results."""

    builder: FakeBuilder
    clock: FakeClock
    launches: Mapping[str, tuple[str, ...]]
    ratio: Callable[[Settings], float] = lambda settings: 1.0
    fault: Callable[[Settings], str] = lambda settings: ""
    wobble: float = 0.001
    """The part by which rounds lie apart."""
    takes: float = 10.0
    finals_take: float = 10.0
    """The same of a comparison in more rounds than the first ones have."""
    compared: list[tuple[Settings, int]] = field(default_factory=list)
    expected: list[Path] = field(default_factory=list)

    def kernels(self, source: Path) -> dict[str, tuple[str, ...]]:
        assert source == Path("0")
        return dict(self.launches)

    def expect(self, source: Path) -> None:
        self.expected.append(source)

    def compare(self, source: Path, rows: Sequence[str], rounds: int, give_up: float = math.inf) -> Comparison:
        settings = settings_of(self.builder.texts[int(source.name)])
        self.clock.now += self.takes if rounds == ROUNDS else self.finals_take
        if fault := self.fault(settings):
            raise RefusedError(fault)
        self.compared.append((settings, rounds))
        after = [SECONDS * self.ratio(settings) * (1 + self.wobble * (n % 3 - 1) / 2) for n in range(rounds)]
        return Comparison({label: RowTimes((SECONDS,) * rounds, tuple(after)) for label in rows})

    def close(self) -> None:
        pass
