"""What the scheduler says of candidates: which it takes, what its model makes of them, which give the same kernel."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from qlagen.algebra.cache import derive_cached
from qlagen.emit.kernel import emit_kernel
from qlagen.errors import QlagenError
from qlagen.package.compile import DIGEST_LENGTH, schedule_plan
from qlagen.program.ir import Plan, Program
from qlagen.program.plan import build_plan
from qlagen.schedule.build import build_schedule
from qlagen.schedule.model import Options, Schedule
from qlagen.schedule.options import parse_options
from qlagen.schedule.target import Target, load_target
from qlagen.schedule.variants import pace
from qlagen.spec.load import load_spec
from qlagen.tune.candidates import (
    Candidate,
    Entry,
    at_tile,
    combined_candidates,
    make_axes,
    parts,
    simple_candidates,
)
from qlagen.tune.edit import edit_entry

_CHUNK = 8


@dataclass(frozen=True)
class Checked:
    """A candidate with the scheduler's verdict. Clocks and bytes are those of all kernels made from the entry."""

    candidate: Candidate
    reason: str = ""
    """Why it is refused; empty when it is not."""
    expressible: bool = True
    """Whether the schedule file can say it."""
    clocks: int = 0
    """Modelled clocks per iteration."""
    shared_bytes: int = 0
    digest: str = ""
    """Of the kernels' text: equal kernels are built and measured once."""


@dataclass(frozen=True)
class Explored:
    """An entry's candidates: those to build, best first, and the refused ones."""

    entry: Entry
    current: Checked
    kept: tuple[Checked, ...]
    refused: tuple[Checked, ...]


@dataclass(frozen=True)
class Job:
    """All that another process needs to check a candidate."""

    spec: Path
    text: str
    file: str
    target: str
    part: str
    index: int
    kernels: tuple[tuple[str, int], ...]
    """Name of the program and value tile of every kernel that is made from the entry."""
    candidate: Candidate


@dataclass(frozen=True)
class Checker:
    """Checks the candidates of entries of one schedule file."""

    spec: Path
    text: str
    """Of the schedule file."""
    file: str
    target: str
    pool: Executor | None = None
    """Processes to check many in; None checks them here."""

    def explore(self, entry: Entry, dims: Mapping[str, int]) -> Explored:
        """All candidates of an entry. What the file cannot express is left out, alone and together with others."""
        (current,) = self.check(entry, (Candidate(),))
        axes = make_axes(entry, dims, load_target(self.target))
        simple = self.check(entry, simple_candidates(entry, axes))
        wrong = {item.candidate.changes for item in simple if not item.expressible}
        axes = tuple(tuple(change for change in axis if (change,) not in wrong) for axis in axes)
        seen = {frozenset(item.candidate.changes) for item in simple}
        combined = [
            candidate
            for candidate in combined_candidates(tuple(axis for axis in axes if axis))
            if frozenset(candidate.changes) not in seen
        ]
        kept, others = rank([item for item in (*simple, *self.check(entry, combined)) if item.expressible], current)
        return Explored(entry, current, tuple(kept), tuple(others))

    def check(self, entry: Entry, found: Sequence[Candidate]) -> tuple[Checked, ...]:
        """The verdicts, in order."""
        kernels = tuple((schedule.program.name, schedule.options.value_tile) for schedule in entry.schedules)
        place = (self.spec, self.text, self.file, self.target, entry.part, entry.index, kernels)
        jobs = [Job(*place, candidate) for candidate in found]
        if self.pool is not None and len(jobs) > 2 * _CHUNK:
            return tuple(self.pool.map(check, jobs, chunksize=_CHUNK))
        return tuple(map(check, jobs))


def check(job: Job) -> Checked:
    """One verdict."""
    try:
        edited = edit_entry(job.text, job.file, job.part, job.index, dict(job.candidate.changes))
        options = parts(parse_options(edited, job.file))[job.part][job.index]
    except QlagenError as fault:
        return Checked(job.candidate, _short(fault), expressible=False)
    digest, plan = _digest_and_plan(job.spec)
    target, dims = load_target(job.target), dict(plan.dims)
    programs = {program.name: (program,) for program in plan.programs} | {"segment": plan.segment_forms}
    clocks = shared = 0
    texts = []
    try:
        for name, value_tile in job.kernels:
            schedule = _fastest(programs[name], dims, at_tile(options, value_tile), target)
            texts.append(emit_kernel(schedule, digest, job.target))
            clocks, shared = clocks + schedule.modelled_clocks, max(shared, schedule.shared_bytes)
    except QlagenError as fault:
        return Checked(job.candidate, _short(fault))
    return Checked(job.candidate, "", True, clocks, shared, hashlib.sha256("\0".join(texts).encode()).hexdigest()[:12])


def _fastest(forms: Sequence[Program], dims: Mapping[str, int], options: Options, target: Target) -> Schedule:
    """Of the forms of a program the one that a build takes with these options. Raises what the first one does."""
    found: list[Schedule] = []
    faults: list[QlagenError] = []
    for form in [form for number, form in enumerate(forms, 1) if options.form in (0, number)] or forms:
        try:
            found.append(build_schedule(form, dims, options, target))
        except QlagenError as fault:
            faults.append(fault)
    if not found:
        raise faults[0]
    return min(found, key=pace)


def rank(verdicts: Sequence[Checked], current: Checked) -> tuple[list[Checked], list[Checked]]:
    """Those to build, best first, and the rest with reasons.

    Fewer modelled clocks first, then fewer changes, then in the order given. The first of equal kernels stays.
    """
    kept: list[Checked] = []
    others: list[Checked] = []
    seen = {current.digest: "the entry as it is"}
    ordered = sorted(verdicts, key=lambda item: (item.clocks, len(item.candidate.changes)))
    for item in ordered:
        if item.reason:
            others.append(item)
        elif item.digest in seen:
            others.append(Checked(item.candidate, f"the same kernel as {seen[item.digest]}"))
        else:
            seen[item.digest] = str(item.candidate)
            kept.append(item)
    return kept, others


def lost_variants(specs: Sequence[Path], before: str, after: str, file: str) -> str:
    """Which variant of which operator an edited schedule file no longer gives; empty when it gives all. Operators
    without kernels, and specs that cannot be read, have nothing to lose."""
    for path in specs:
        try:
            plan = _digest_and_plan(path)[1]
        except QlagenError:
            continue
        lost = _variants(plan, before, file) - _variants(plan, after, file)
        if lost:
            return f"{plan.operator} would lose {', '.join(sorted(lost))}"
    return ""


def _variants(plan: Plan, text: str, file: str) -> set[str]:
    schedules = parse_options(text, file)
    try:
        scheduled = schedule_plan(plan, schedules.target, schedules)
    except QlagenError:
        return set()
    return {f"{schedule.program.name}_{schedule.options.name}" for group in scheduled for schedule in group}


@functools.lru_cache(maxsize=32)
def _digest_and_plan(path: Path) -> tuple[str, Plan]:
    spec = load_spec(path)
    return spec.digest[:DIGEST_LENGTH], build_plan(derive_cached(spec))


def _short(fault: QlagenError) -> str:
    return f"{fault.code}: {fault.message}"
