"""Measures libraries beside the present one: two processes take turns, so that both see the same clocks and heat."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from qlagen.bench.cases import Case
from qlagen.bench.timing import percentile
from qlagen.bench.workers import Worker, WorkerLostError
from qlagen.errors import QlagenError


class RefusedError(Exception):
    """A library that must not be used: wrong results, a crash, a hang. The message says what."""


@dataclass(frozen=True)
class RowTimes:
    """Seconds of a call in one row, a median for each round."""

    current: tuple[float, ...]
    candidate: tuple[float, ...]

    @property
    def before(self) -> float:
        """The present library's seconds."""
        return statistics.median(self.current)

    @property
    def after(self) -> float:
        """The candidate's seconds."""
        return statistics.median(self.candidate)

    @property
    def ratio(self) -> float:
        """The candidate's time in units of the present one's."""
        return self.after / self.before


@dataclass(frozen=True)
class Comparison:
    """A candidate beside the entry as it is, by row."""

    rows: Mapping[str, RowTimes]

    @property
    def ratio(self) -> float:
        """The geometric mean over the rows; below 1 the candidate is faster."""
        return _geometric_mean([row.ratio for row in self.rows.values()])

    @property
    def noise(self) -> float:
        """How far the middle half of the geometric means of single rounds lies apart: a GPU at its power limit has now
        and then a round that is slower by a quarter, and more rounds must not mean more noise."""
        rounds = range(min(len(row.current) for row in self.rows.values()))
        means = sorted(
            _geometric_mean([row.candidate[n] / row.current[n] for row in self.rows.values()]) for n in rounds
        )
        return percentile(means, 0.75) - percentile(means, 0.25)


class Measurer(Protocol):
    """Runs libraries; tests have one that needs no GPU."""

    def kernels(self, source: Path) -> dict[str, tuple[str, ...]]:
        """Makes a library the present one and says which kernels it launches in each row, by the row's label."""
        ...

    def expect(self, source: Path) -> None:
        """This library comes next: a chance to start its process."""
        ...

    def compare(self, source: Path, rows: Sequence[str], rounds: int, give_up: float = math.inf) -> Comparison:
        """Judges and times a library in some rows; stops after a row when the ratio is above `give_up` so far.

        Raises RefusedError.
        """
        ...

    def close(self) -> None: ...


class ProcessMeasurer:
    """One process for the present library, which stays, and one for each candidate."""

    def __init__(self, start: Callable[[Path], Worker], cases: Mapping[str, Case]) -> None:
        """`start` starts a `qlagen.tune.worker` that imports the library in a folder; `cases` by their labels."""
        self.start, self.cases = start, cases
        self.source: Path | None = None
        self.current: Worker | None = None
        self.opened: set[str] = set()
        self.waiting: dict[Path, Worker] = {}

    def kernels(self, source: Path) -> dict[str, tuple[str, ...]]:
        self.source = source
        self._end_current()
        request = {"task": "kernels", "cases": [case.as_json() for case in self.cases.values()]}
        try:
            (event,) = self._current().ask(request)
        except (WorkerLostError, RuntimeError) as fault:
            raise _cannot_measure(str(fault)) from None
        if Path(event["folder"]).resolve() != source.resolve():
            raise _cannot_measure(f"it imports the library in {event['folder']} instead of {source}")
        return {label: tuple(names) for label, names in zip(self.cases, event["kernels"], strict=True)}

    def expect(self, source: Path) -> None:
        if source not in self.waiting:
            self.waiting[source] = self.start(source)

    def compare(self, source: Path, rows: Sequence[str], rounds: int, give_up: float = math.inf) -> Comparison:
        for label in rows:
            self._open_current(label)
        self.expect(source)
        worker = self.waiting.pop(source)
        found: dict[str, RowTimes] = {}
        try:
            for label in rows:
                found[label] = self._row(worker, label, rounds)
                if Comparison(found).ratio > give_up:
                    break
        finally:
            worker.close()
        return Comparison(found)

    def close(self) -> None:
        self._end_current()
        for worker in self.waiting.values():
            worker.close()
        self.waiting.clear()

    def _row(self, worker: Worker, label: str, rounds: int) -> RowTimes:
        """Rounds in turn, after one that does not count."""
        current: list[float] = []
        candidate: list[float] = []
        try:
            if reason := self._ask(worker, "open", label):
                raise RefusedError(f"{label}: {reason}")
            for _ in range(rounds + 1):
                current.append(self._sample_current(label))
                candidate.append(float(self._sample(worker, label)))
            self._ask(worker, "close", label)
        except (WorkerLostError, RuntimeError) as fault:
            raise RefusedError(f"{label}: {fault}") from None
        return RowTimes(tuple(current[1:]), tuple(candidate[1:]))

    def _ask(self, worker: Worker, task: str, label: str) -> str:
        """Why the library is refused; empty when it is not."""
        reason = ""
        for event in worker.ask({"task": task, "case": self.cases[label].as_json()}):
            if event["event"] == "record":
                reason = reason or str(event["record"]["reason"])
            elif event["event"] == "broken":
                raise WorkerLostError(reason or str(event["reason"]))
        return reason

    def _sample(self, worker: Worker, label: str) -> Any:
        (event,) = worker.ask({"task": "sample", "case": self.cases[label].as_json()})
        return event["seconds"]

    def _sample_current(self, label: str) -> float:
        self._open_current(label)
        try:
            return float(self._sample(self._current(), label))
        except (WorkerLostError, RuntimeError) as fault:
            self._end_current()
            raise RuntimeError(f"the process with the library as it is was lost: {fault}") from None

    def _open_current(self, label: str) -> None:
        """Raises E-TUNE-BASE when the library as it is fails."""
        if label in self.opened:
            return
        try:
            reason = self._ask(self._current(), "open", label)
        except (WorkerLostError, RuntimeError) as fault:
            self._end_current()
            reason = str(fault)
        if reason:
            message = f"the library as it is fails in the row {label}: {reason}"
            raise QlagenError("E-TUNE-BASE", message, hints=["`qlagen bench run` and `qlagen verify` show more"])
        self.opened.add(label)

    def _current(self) -> Worker:
        if self.current is None:
            assert self.source is not None  # `kernels` comes first
            self.current = self.start(self.source)
        return self.current

    def _end_current(self) -> None:
        if self.current is not None:
            self.current.close()
        self.current = None
        self.opened.clear()


def _cannot_measure(reason: str) -> QlagenError:
    hints = ["a search needs an NVIDIA GPU and a PyTorch with CUDA; --dry-run lists the candidates without"]
    return QlagenError("E-TUNE-GPU", "this machine cannot measure", notes=[reason], hints=hints)


def _geometric_mean(ratios: Sequence[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))
