"""`qlagen tune`: from arguments to a search, and from its winners to the schedule file."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import qlagen
from qlagen.algebra.cache import derive_cached
from qlagen.bench.arguments import RESULTS
from qlagen.bench.cases import Case, forward_case, operators
from qlagen.bench.device import gpu_name, slug
from qlagen.bench.records import TUNE_PREFIX, RecordFile
from qlagen.bench.workers import ProcessWorker, Worker
from qlagen.errors import QlagenError
from qlagen.package.compile import schedule_plan
from qlagen.program.plan import build_plan
from qlagen.schedule.options import parse_options
from qlagen.spec.document import read_text
from qlagen.spec.load import load_spec
from qlagen.spec.model import OpSpec
from qlagen.tune.build import CACHE_VARIABLE, LibraryBuilder, import_path
from qlagen.tune.candidates import find_entries
from qlagen.tune.check import Checker, Explored, lost_variants
from qlagen.tune.edit import comment_lines, edit_entry, format_value
from qlagen.tune.measure import ProcessMeasurer
from qlagen.tune.search import Search, Tools, Winner

SPECS = Path("specs")


def run(options: argparse.Namespace) -> int:
    """0, whether entries were replaced or not; raises QlagenError for a fault of the user's."""
    begun = time.monotonic()
    job = read_job(options)
    gpu = "" if options.dry_run else _gpu()
    explored = job.explore(options)
    if options.dry_run:
        print(listing(explored))
        return 0
    date = options.date or str(datetime.date.today())
    path = options.results or RESULTS / f"{TUNE_PREFIX}{slug(gpu)}-{date}.jsonl"
    records = RecordFile(path)
    records.add(
        {
            "kind": "tune",
            "gpu": gpu,
            "date": date,
            "qlagen": qlagen.__version__,
            "operator": job.spec.name,
            "schedule": str(job.file),
            "rows": list(job.cases),
            "budget": options.budget,
        }
    )
    with _work_folder(options.work) as work:
        _search(job, options, explored, work, records, f"{gpu}, {date}", begun)
    _say(f"what became of each candidate is in {path}")
    return 0


@dataclass
class TuneJob:
    """What is to be tuned. `text` is the schedule file's as it was read, `written` as it is on disk now."""

    spec_path: Path
    spec: OpSpec
    file: Path
    text: str
    cases: Mapping[str, Case]
    written: str

    def explore(self, options: argparse.Namespace) -> list[Explored]:
        """Every entry that is to be tuned, with its candidates."""
        schedules = parse_options(self.text, str(self.file))
        plan = build_plan(derive_cached(self.spec))
        scheduled = schedule_plan(plan, schedules.target, schedules)
        entries = find_entries(self.text, schedules, scheduled, options.part, options.variant)
        # Fresh interpreters: forking a process that has threads is unsafe.
        with ProcessPoolExecutor(options.processes, mp_context=multiprocessing.get_context("spawn")) as pool:
            checker = Checker(self.spec_path, self.text, str(self.file), schedules.target, pool)
            return [checker.explore(entry, dict(plan.dims)) for entry in entries]

    def objection(self, text: str) -> str:
        """What other operators, whose specs lie beside this one, would lose with another text."""
        return lost_variants(sorted(self.spec_path.parent.glob("*.toml")), self.text, text, str(self.file))

    def write(self, winner: Winner, where: str) -> None:
        """Puts a winner into the file, with a comment on its measurement."""
        entry = winner.entry
        comment = measurement_comment(winner, where)
        changes = dict(winner.candidate.changes)
        self.written = edit_entry(self.written, str(self.file), entry.part, entry.index, changes, comment)
        handle, name = tempfile.mkstemp(prefix=".", dir=self.file.absolute().parent)
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.write(self.written)
        os.chmod(name, self.file.stat().st_mode)
        os.replace(name, self.file)


def read_job(options: argparse.Namespace) -> TuneJob:
    """Raises E-TUNE-SPEC, E-BENCH-CASE, and what reading a spec and a schedule file raises."""
    known = operators()[0]
    path = options.spec or SPECS / f"{known}.toml"
    spec = load_spec(path)
    if spec.name != known:
        notes = [f"its inputs and its float64 reference are those of {known}"]
        hints = ["tune with that operator's spec: a schedule file serves all operators"]
        raise QlagenError("E-TUNE-SPEC", f"the benchmark cannot run {spec.name}", notes=notes, hints=hints)
    file = options.schedule or path.parent / "schedules" / f"{options.target}.toml"
    text = read_text(file, "schedule")
    return TuneJob(path, spec, file, text, {label: forward_case(label) for label in options.rows}, text)


def measurement_comment(winner: Winner, where: str) -> tuple[str, ...]:
    """`where` is the GPU and the date."""
    before = [
        f"{key} = {format_value(winner.entry.values[key])}" if key in winner.entry.values else f"no {key}"
        for key, _ in winner.candidate.changes
    ]
    rows = winner.comparison.rows.items()
    times = [f"{label} {1e3 * row.before:.4g} -> {1e3 * row.after:.4g}" for label, row in rows]
    return comment_lines(f"{where}, before: {', '.join(before)}. Milliseconds of a call:", times)


def listing(explored: list[Explored]) -> str:
    """The candidates as text, those that would be built first at the top."""
    lines = []
    for item in explored:
        lines.append(f"{item.entry.label}: {len(item.kept)} candidates, {len(item.refused)} refused")
        for checked in (item.current, *item.kept):
            lines.append(f"  {checked.clocks} clocks, {checked.shared_bytes} bytes: {checked.candidate}")
        lines += [f"  refused: {checked.candidate}: {checked.reason}" for checked in item.refused]
    return "\n".join(lines)


def _search(
    job: TuneJob,
    options: argparse.Namespace,
    explored: list[Explored],
    work: Path,
    records: RecordFile,
    where: str,
    begun: float,
) -> None:
    target = parse_options(job.text, str(job.file)).target
    builder = LibraryBuilder(job.spec_path, job.spec.name, target, work, options.processes)

    def start(source: Path) -> Worker:
        environment = {"PYTHONPATH": import_path(source), CACHE_VARIABLE: str(builder.cache)}
        command = (sys.executable, "-m", "qlagen.tune.worker")
        return ProcessWorker(environment, options.stall, command, options.log)

    measurer = ProcessMeasurer(start, job.cases)
    tools = Tools(builder, measurer, records.add, job.objection, _say, ahead=options.processes)
    search = Search(tools, job.text, str(job.file), begun + options.budget)
    try:
        search.run(explored, lambda winner: job.write(winner, where))
    finally:
        measurer.close()
        builder.close()


@contextlib.contextmanager
def _work_folder(given: Path | None) -> Iterator[Path]:
    if given is not None:
        given.mkdir(parents=True, exist_ok=True)
        yield given
        return
    with tempfile.TemporaryDirectory(prefix="qlagen-tune-", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def _gpu() -> str:
    name = gpu_name()
    if not name:
        hints = ["run this on a machine with an NVIDIA GPU, or list the candidates with --dry-run"]
        raise QlagenError("E-TUNE-GPU", "nvidia-smi finds no GPU to tune on", hints=hints)
    return name


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
