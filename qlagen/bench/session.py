"""A run: compile what the next rows need, measure them, and go on until the rows or the budget are used up."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from qlagen.bench.cases import Case
from qlagen.bench.measure import TURNS, Event
from qlagen.bench.records import RecordFile, latest, row_key
from qlagen.bench.workers import Worker, WorkerLostError
from qlagen.errors import QlagenError, did_you_mean

COMPILE_SHARE = 0.5
"""Of the time that is left, what a wave of compiling may take before measuring goes on with what is compiled."""
FIRST_ROW_SECONDS = 4.0


@dataclass
class Options:
    names: tuple[str, ...] = ()
    """Implementations to run; empty for all that are there."""
    gated: bool = True
    budget: float | None = None
    """Seconds; None for as long as it takes."""
    retry: bool = False
    """Measure again what was refused."""
    again: bool = False
    """Measure again what is there already."""
    processes: int = 1
    """How many processes may compile at once; 0 compiles in the measuring process, row by row."""


@dataclass
class Crew:
    """How to start the processes of a run, and its clock; tests put local workers and a fake clock here."""

    start: Callable[[Mapping[str, str]], Worker]
    """Takes additions to the environment."""
    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic


@dataclass(frozen=True)
class Job:
    """Something to compile before the cases that need it."""

    name: str
    key: str
    case: Case
    """The smallest case with this key."""
    shared: bool
    """Whether another process can compile it."""


@dataclass
class Session:
    options: Options
    crew: Crew
    file: RecordFile
    versions: dict[str, str] = field(default_factory=dict)
    environment: str = ""
    slow: float = FIRST_ROW_SECONDS
    """What the next row may take: the longest of the last few."""
    measured: int = 0
    lost: set[tuple[str, Case]] = field(default_factory=set)
    """Implementations that broke the process in a case."""

    def __post_init__(self) -> None:
        self.deadline = None if self.options.budget is None else self.crew.clock() + self.options.budget
        self.worker = self.crew.start({})
        self.keys: dict[tuple[str, Case], str | None] = {}
        self.compiled: set[tuple[str, str]] = set()
        self.shared: set[str] = set()
        self.compile_environment: dict[str, str] = {}

    def close(self) -> None:
        self.worker.close()

    def left(self) -> float:
        """Seconds of the budget that are left."""
        return float("inf") if self.deadline is None else self.deadline - self.crew.clock()

    def open(self) -> None:
        """Learn what is there, and write the environment that the rows are measured in."""
        record: dict[str, Any] = {}
        missing: dict[str, str] = {}
        for event in self._ask_environment():
            if event["event"] == "environment":
                record, missing, self.versions = event["record"], event["missing"], event["versions"]
                self.compile_environment = event["compile environment"]
                self.shared = {name for name, kept in event["compiles"].items() if kept == "disk"}
            elif event["event"] == "ceilings":
                record = {**record, **event["ceilings"]}
        self._choose(missing)
        self.environment = record["environment"]
        self.file.add(record)

    def _ask_environment(self) -> list[Event]:
        try:
            return list(self.worker.ask({"task": "environment"}))
        except (WorkerLostError, RuntimeError) as fault:
            hints = ["a run needs an NVIDIA GPU and a PyTorch with CUDA"]
            raise QlagenError("E-BENCH-GPU", "this machine cannot measure", notes=[str(fault)], hints=hints) from None

    def _choose(self, missing: Mapping[str, str]) -> None:
        """Keep the versions of what was asked for; say what is not here."""
        wanted, known = self.options.names or (*self.versions, *missing), {*self.versions, *missing}
        for name in wanted:
            if name not in known:
                message, notes = f"there is no implementation {name!r}", [f"known: {', '.join(sorted(known))}"]
                raise QlagenError("E-BENCH-LIB", message, notes=notes, hints=did_you_mean(name, known))
            if name in missing:
                self.crew.say(f"{name} is not here: {missing[name]}")
        self.versions = {name: version for name, version in self.versions.items() if name in wanted}
        if not self.versions:
            notes = [f"{name}: {missing[name]}" for name in wanted]
            raise QlagenError("E-BENCH-LIB", "none of the implementations can run here", notes=notes)

    def run(self, cases: Sequence[Case]) -> None:
        """Measure every case that is not in the file yet, in order, in waves of compiling and measuring."""
        waiting = self.open_cases(cases)
        self.crew.say(f"{len(waiting)} of {len(cases)} rows to measure, with {', '.join(self.versions)}")
        while waiting and self.left() > self.slow:
            ready, waiting = self.compile(waiting)
            rest = self.measure_all(ready)
            if rest:
                self.crew.say(f"out of time: {len(rest) + len(waiting)} rows left for another run")
                return

    def open_cases(self, cases: Iterable[Case]) -> list[Case]:
        """Those for which a version of an implementation has no row yet. All of a case's rows are measured together."""
        rows = latest(self.file.records)

        def done(case: Case, name: str, version: str) -> bool:
            row = rows.get(row_key(case.as_json(), name))
            if row is None or row["version"] != version or self.options.again:
                return False
            return not (self.options.retry and row["kind"] == "refused")

        return [case for case in cases if not all(done(case, *item) for item in self.versions.items())]

    def compile(self, cases: Sequence[Case]) -> tuple[list[Case], list[Case]]:
        """Compile for the cases in order, within a share of the time. Gives those that are ready and the rest."""
        if self.options.processes == 0:
            return list(cases), []
        self._learn_keys(cases)
        jobs = [job for job in self._jobs(cases) if (job.name, job.key) not in self.compiled]
        until = self.crew.clock() + self.left() * COMPILE_SHARE
        if jobs:
            self.crew.say(f"compiling {len(jobs)} sets of kernels")
            begun = self.crew.clock()
            self._run_jobs(jobs, until)
            self.crew.say(f"  {self.crew.clock() - begun:.0f} s")
        ready = [case for case in cases if self._is_compiled(case)] or [cases[0]]
        return ready, [case for case in cases if case not in ready]

    def _learn_keys(self, cases: Sequence[Case]) -> None:
        for name in self.versions:
            unknown = [case for case in cases if (name, case) not in self.keys]
            request = {"task": "keys", "implementation": name, "cases": [case.as_json() for case in unknown]}
            for event in self.worker.ask(request) if unknown else ():
                for case, key in zip(unknown, event["keys"], strict=True):
                    self.keys[name, case] = key

    def _jobs(self, cases: Sequence[Case]) -> list[Job]:
        smallest: dict[tuple[str, str], Case] = {}
        for case in cases:
            for name in self.versions:
                key = self.keys[name, case]
                if key is not None and (seen := smallest.get((name, key), case)).tokens >= case.tokens:
                    smallest[name, key] = case if case.tokens < seen.tokens else seen
        return [Job(name, key, case, name in self.shared) for (name, key), case in smallest.items()]

    def _is_compiled(self, case: Case) -> bool:
        keys = ((name, self.keys[name, case]) for name in self.versions)
        return all(key is None or (name, key) in self.compiled for name, key in keys)

    def _run_jobs(self, jobs: Sequence[Job], until: float) -> None:
        """Shared jobs in processes of their own, the others in the measuring process, at the same time."""
        own = [job for job in jobs if not job.shared]
        others = [job for job in jobs if job.shared]
        start = partial(self.crew.start, self.compile_environment)
        pool = CompilePool(start, min(self.options.processes, len(others)), until, self.crew.clock)
        futures = pool.start(others)
        for job in own:
            if self.crew.clock() < until:
                self._finish(job, self._compile_here(job))
        wait(futures)
        pool.close()
        for job, reason in pool.done:
            self._finish(job, reason)

    def _compile_here(self, job: Job) -> str:
        try:
            return _compile_with(self.worker, job)
        except WorkerLostError as fault:
            self.worker.close()
            self.worker = self.crew.start({})
            return str(fault)

    def _finish(self, job: Job, reason: str) -> None:
        """A job that failed counts as done: measuring will say what is wrong."""
        self.compiled.add((job.name, job.key))
        if reason:
            self.crew.say(f"compiling {job.name} for {job.case.name} failed: {reason}")

    def measure_all(self, cases: Sequence[Case]) -> list[Case]:
        """Measure in order. Gives the cases that there was no time for."""
        for number, case in enumerate(cases):
            if self.left() < self.slow:
                return list(cases[number:])
            begun = self.crew.clock()
            self.measure(case)
            took = self.crew.clock() - begun
            self.crew.say(f"  {took:.1f} s")
            self.slow = max(took, self.slow * 0.8)
            self.measured += 1
        return []

    def measure(self, case: Case, alone: str = "") -> None:
        """The rows of one case, or of one implementation in it.

        A process that is lost costs the implementation that was running its row. When all were taking turns, nobody
        knows whose fault it was: each is then measured alone.
        """
        names = [name for name in self.versions if (name, case) not in self.lost and alone in ("", name)]
        current, medians = "", []
        request = {"task": "measure", "case": case.as_json(), "implementations": names, "gated": self.options.gated}
        try:
            for event in self.worker.ask(request):
                if event["event"] == "begin":
                    current = event["implementation"]
                elif event["event"] == "record":
                    self._write(event["record"])
                    if event["record"]["kind"] != "unsupported":
                        medians.append(_short(event["record"]))
                elif event["event"] == "broken":
                    raise WorkerLostError(event["reason"])
        except (WorkerLostError, RuntimeError) as fault:
            self._recover(case, alone or current, fault, alone)
            return
        self.crew.say(f"{case.name}: " + ", ".join(medians))

    def _recover(self, case: Case, current: str, fault: Exception, alone: str = "") -> None:
        self.crew.say(f"{case.name}: lost in {current or 'the inputs'}: {fault}")
        self.worker.close()
        self.worker = self.crew.start({})
        if current in self.versions:
            self.lost.add((current, case))
            record = {"kind": "refused", **case.as_json(), "implementation": current, "version": self.versions[current]}
            self._write({**record, "checked": "not checked", "errors": {}, "reason": str(fault)})
            if not alone and len(self.versions) > sum(case == other for _, other in self.lost):
                self.measure(case)
        elif current == TURNS and not alone:
            for name in [name for name in self.versions if (name, case) not in self.lost]:
                self.measure(case, name)

    def _write(self, record: dict[str, Any]) -> None:
        self.file.add({**record, "environment": self.environment})


class CompilePool:
    """Processes that compile for others. No job starts after `until`."""

    def __init__(self, start: Callable[[], Worker], processes: int, until: float, clock: Callable[[], float]) -> None:
        self.start_worker, self.until, self.clock = start, until, clock
        self.executor = ThreadPoolExecutor(max(1, processes))
        self.local = threading.local()
        self.workers: list[Worker] = []
        self.done: list[tuple[Job, str]] = []

    def start(self, jobs: Sequence[Job]) -> list[Future[None]]:
        return [self.executor.submit(self._run, job) for job in jobs]

    def _run(self, job: Job) -> None:
        if self.clock() >= self.until:
            return
        if getattr(self.local, "worker", None) is None:
            self.local.worker = self.start_worker()
            self.workers.append(self.local.worker)
        try:
            reason = _compile_with(self.local.worker, job)
        except WorkerLostError as fault:
            self.local.worker, reason = None, str(fault)
        self.done.append((job, reason))

    def close(self) -> None:
        self.executor.shutdown()
        for worker in self.workers:
            worker.close()


def _short(record: Mapping[str, Any]) -> str:
    """A row in a few words."""
    if record["kind"] == "refused":
        return f"{record['implementation']} refused ({record['reason']})"
    return f"{record['implementation']} {record['median_ms']} ms"


def _compile_with(worker: Worker, job: Job) -> str:
    """Why it failed; empty when it did not. Raises WorkerLostError."""
    request = {"task": "compile", "implementation": job.name, "case": job.case.as_json(), "only_compiles": job.shared}
    try:
        for _ in worker.ask(request):
            pass
    except RuntimeError as fault:
        return str(fault)
    return ""
