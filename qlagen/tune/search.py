"""The search: what is built and measured next, who wins, and when to stop."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qlagen.errors import QlagenError
from qlagen.tune.build import Builder, Built
from qlagen.tune.candidates import Candidate, Entry
from qlagen.tune.check import Checked, Explored
from qlagen.tune.edit import edit_entry
from qlagen.tune.measure import Comparison, Measurer, RefusedError

ROUNDS, FINAL_ROUNDS = 3, 9
FINALISTS = 3
"""The fastest few are measured again: the fastest of many is partly the luckiest."""
LONGER = 2
"""How many times as long as a first measurement theirs takes: a library must be started and judged in both."""
LEAST_GAIN = 0.002
"""No entry is replaced for less."""
FIRST_SECONDS = 15.0
"""What a measurement may take before one is known."""
LEAST_SHARE = 60.0
"""Seconds that an entry gets as long as there are any: candidates are built and measured in them."""
GIVE_UP = 1.04
"""A candidate that is slower by this in the rows so far need not run the others."""
_FAILED = 1.5
"""What a change that did not work counts for where it stands beside others."""


@dataclass(frozen=True)
class Winner:
    """A candidate that replaces its entry, with the measurement that says so."""

    entry: Entry
    candidate: Candidate
    comparison: Comparison


@dataclass
class Tools:
    """What a search works with; tests put fakes here."""

    builder: Builder
    measurer: Measurer
    record: Callable[[dict[str, Any]], None]
    """Takes what became of each candidate and entry."""
    objection: Callable[[str], str] = lambda text: ""
    """Why a schedule file's text must not be written; empty when it may."""
    say: Callable[[str], None] = lambda text: None
    clock: Callable[[], float] = time.monotonic
    ahead: int = 4
    """So many candidates are being built or wait to be measured."""


class Queue:
    """The candidates of an entry that are still to be built. Combinations are judged by the changes that they are of,
    once these are measured."""

    def __init__(self, explored: Explored) -> None:
        self.waiting = {item.candidate: (place, item) for place, item in enumerate(explored.kept)}
        self.ratios: dict[Candidate, float] = {}

    def next(self) -> Checked | None:
        """The most promising one: by the product of its changes' ratios, then by the schedule model."""
        if not self.waiting:
            return None
        best = min(self.waiting, key=lambda candidate: (round(self.expected(candidate), 3), self.waiting[candidate][0]))
        return self.waiting.pop(best)[1]

    def expected(self, candidate: Candidate) -> float:
        """The ratio that the measured changes lead to expect."""
        product = 1.0
        for change in candidate.changes:
            product *= self.ratios.get(Candidate((change,)), 1.0)
        return product


@dataclass
class Search:
    """A search over the entries of one schedule file."""

    tools: Tools
    text: str
    """Of the schedule file."""
    file: str
    deadline: float
    """By the clock of `tools`."""
    slow: float = FIRST_SECONDS
    """What the next first measurement may take."""
    measured: dict[Candidate, tuple[Path, Comparison]] = field(default_factory=dict)
    """Of the present entry."""

    def run(self, entries: Sequence[Explored], found: Callable[[Winner], None]) -> None:
        """Searches one entry after the other; `found` takes each winner at once.

        Raises E-TUNE-BASE and E-TUNE-GPU.
        """
        base = self.tools.builder.submit(self.text)
        for item in entries[0].kept[: self.tools.ahead]:
            # They will be first: the cores that the base leaves idle can start with them.
            self._submit(entries[0].entry, item.candidate)
        built = self._wait_for_base(base)
        launches = self.tools.measurer.kernels(built.source)
        for number, explored in enumerate(entries):
            left = self.deadline - self.tools.clock()
            # A short budget is for the first entries: shared out evenly it would end before anything is measured.
            share = max(left / (len(entries) - number), LEAST_SHARE)
            until = self.tools.clock() + min(left, share)
            self._search(explored, launches, until, found)

    def _wait_for_base(self, base: Future[Built]) -> Built:
        self.tools.say("building the library as it is")
        try:
            built = base.result(timeout=max(0.0, self.deadline - self.tools.clock()))
        except TimeoutError:
            hints = ["give a larger --budget, or keep built kernels with --work"]
            raise QlagenError(
                "E-TUNE-BASE", "the budget ended before the first library was built", hints=hints
            ) from None
        if built.reason:
            raise QlagenError("E-TUNE-BASE", "the library as it is cannot be built", notes=[built.reason])
        return built

    def _search(
        self,
        explored: Explored,
        launches: Mapping[str, Sequence[str]],
        until: float,
        found: Callable[[Winner], None],
    ) -> None:
        entry = explored.entry
        for item in explored.refused:
            self._record(entry, item, "refused", reason=item.reason)
        rows = [label for label, names in launches.items() if set(names) & set(entry.kernels)]
        if not rows:
            reason = f"none of the rows runs {', '.join(entry.kernels)}"
            self._conclude(entry, None, reason)
            return
        self.tools.say(f"{entry.label}: {len(explored.kept)} candidates, rows {', '.join(rows)}")
        self.measured = {}
        self._explore(explored, rows, until)
        winner, reason = self._decide(entry, rows, until)
        self._conclude(entry, winner, reason)
        if winner is not None:
            found(winner)

    def _explore(self, explored: Explored, rows: Sequence[str], until: float) -> None:
        """Builds ahead and measures what is built, best first, until nothing or no time is left."""
        queue = Queue(explored)
        building: dict[Future[Built], Checked] = {}
        while True:
            while len(building) < self.tools.ahead and (item := queue.next()) is not None:
                building[self._submit(explored.entry, item.candidate)] = item
            better = sum(comparison.ratio < 1 for _, comparison in self.measured.values())
            left = until - self.tools.clock() - self.slow * (1 + LONGER * min(FINALISTS, better))
            if not building or left <= 0 or not wait(building, left, FIRST_COMPLETED).done:
                break
            ready = [future for future in building if future.done()]
            # The next one's process starts while this one is measured.
            for later in ready[1:2]:
                if not later.result().reason:
                    self.tools.measurer.expect(later.result().source)
            item = building.pop(ready[0])
            queue.ratios[item.candidate] = self._try(explored.entry, item, ready[0].result(), rows)
        for future, item in building.items():
            future.cancel()
            self._record(explored.entry, item, "not reached")
        while (item := queue.next()) is not None:
            self._record(explored.entry, item, "not reached")

    def _try(self, entry: Entry, item: Checked, built: Built, rows: Sequence[str]) -> float:
        """Measures one candidate; gives its ratio."""
        if built.reason:
            self._record(entry, item, "rejected", reason=built.reason)
            self.tools.say(f"  {item.candidate}: {built.reason}")
            return _FAILED
        begun = self.tools.clock()
        try:
            comparison = self.tools.measurer.compare(built.source, rows, ROUNDS, GIVE_UP)
        except RefusedError as fault:
            self._record(entry, item, "rejected", reason=str(fault))
            self.tools.say(f"  {item.candidate}: {fault}")
            return _FAILED
        self.slow = max(self.tools.clock() - begun, 0.8 * self.slow)
        self.measured[item.candidate] = built.source, comparison
        self._record(entry, item, "measured", comparison)
        self.tools.say(f"  {item.candidate}: {comparison.ratio:.4f} of the time, +- {comparison.noise:.4f}")
        return comparison.ratio

    def _decide(self, entry: Entry, rows: Sequence[str], until: float) -> tuple[Winner | None, str]:
        """The fastest candidate that is faster for certain, or why there is none. Where some were measured a second
        time, one of them wins or none does."""
        if not self.measured:
            return None, "no candidate was measured"
        known = self._measure_finalists(entry, rows, until) or list(self.measured)
        order = sorted(known, key=lambda candidate: self.measured[candidate][1].ratio)
        reason = ""
        for candidate in order:
            comparison = self.measured[candidate][1]
            needed = max(comparison.noise, LEAST_GAIN)
            if 1 - comparison.ratio <= needed:
                reason = reason or _too_little(candidate, comparison.ratio, needed)
            elif objection := self.tools.objection(self._edited(entry, candidate)):
                reason = reason or f"{candidate}: {objection}"
            else:
                return Winner(entry, candidate, comparison), ""
        return None, reason

    def _measure_finalists(self, entry: Entry, rows: Sequence[str], until: float) -> list[Candidate]:
        """Those that were measured again, in more rounds, and are still right."""
        again: list[Candidate] = []
        better = [c for c, (_, comparison) in self.measured.items() if comparison.ratio < 1]
        for candidate in sorted(better, key=lambda c: self.measured[c][1].ratio)[:FINALISTS]:
            if self.tools.clock() + LONGER * self.slow > until:
                break
            source = self.measured[candidate][0]
            try:
                comparison = self.tools.measurer.compare(source, rows, FINAL_ROUNDS)
            except RefusedError as fault:
                # Right the first time and wrong the second is a race.
                del self.measured[candidate]
                self._record(entry, Checked(candidate), "rejected", reason=str(fault))
                continue
            self.measured[candidate] = source, comparison
            again.append(candidate)
            self._record(entry, Checked(candidate), "measured again", comparison)
        return again

    def _submit(self, entry: Entry, candidate: Candidate) -> Future[Built]:
        return self.tools.builder.submit(self._edited(entry, candidate), entry.kernels)

    def _edited(self, entry: Entry, candidate: Candidate) -> str:
        return edit_entry(self.text, self.file, entry.part, entry.index, dict(candidate.changes))

    def _conclude(self, entry: Entry, winner: Winner | None, reason: str) -> None:
        outcome = "kept" if winner is None else "replaced"
        record: dict[str, Any] = {"kind": "entry", "entry": entry.label, "outcome": outcome, "reason": reason}
        if winner is not None:
            record |= {"changes": dict(winner.candidate.changes), **_measurement(winner.comparison)}
        self.tools.record(record)
        self.tools.say(f"{entry.label}: {outcome}{': ' if reason else ''}{reason}")

    def _record(
        self, entry: Entry, item: Checked, outcome: str, comparison: Comparison | None = None, reason: str = ""
    ) -> None:
        record: dict[str, Any] = {
            "kind": "candidate",
            "entry": entry.label,
            "changes": dict(item.candidate.changes),
            "outcome": outcome,
        }
        record |= {"reason": reason} if reason else {}
        record |= {"clocks": item.clocks, "shared_bytes": item.shared_bytes} if item.clocks else {}
        self.tools.record(record | (_measurement(comparison) if comparison else {}))


def _too_little(candidate: Candidate, ratio: float, needed: float) -> str:
    if ratio >= 1:
        return f"the best, {candidate}, takes {100 * (ratio - 1):.2f} percent more time"
    return f"the best, {candidate}, gains {100 * (1 - ratio):.2f} percent; the spread is {100 * needed:.2f}"


def _measurement(comparison: Comparison) -> dict[str, Any]:
    """The figures of a record: milliseconds of single rounds."""
    rows = {
        label: {
            "before_ms": [float(f"{seconds * 1e3:.5g}") for seconds in row.current],
            "after_ms": [float(f"{seconds * 1e3:.5g}") for seconds in row.candidate],
        }
        for label, row in comparison.rows.items()
    }
    return {"ratio": round(comparison.ratio, 5), "noise": round(comparison.noise, 5), "rows": rows}
