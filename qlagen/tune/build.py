"""Libraries of candidates: a package of the operator for each, its kernels built by the package itself.

All packages share one folder of built kernels, whose files are named by their content: what two candidates have in
common is built once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import qlagen

CACHE_VARIABLE = "QLA_OPS_CACHE"
_LINES = 3


@dataclass(frozen=True)
class Built:
    """A library's import folder, and why it cannot be used; empty when it can."""

    source: Path
    reason: str = ""


class Builder(Protocol):
    """Builds the library that a schedule file's text gives; tests have one that builds nothing."""

    def submit(self, text: str, kernels: Sequence[str] = ()) -> Future[Built]:
        """`kernels`: those that must neither spill nor have serialised wgmma. A text is built once."""
        ...

    def close(self) -> None:
        """Ends what is still building."""
        ...


class LibraryBuilder:
    """Builds in processes: `qlagen.tune.generate` for the sources, then ``python -m qla_ops build`` for the kernels."""

    def __init__(self, spec: Path, operator: str, target: str, work: Path, processes: int) -> None:
        """`work` takes everything; `operator` is the spec's name."""
        self.spec, self.operator, self.target, self.work = spec.absolute(), operator, target, work.absolute()
        self.pool = ThreadPoolExecutor(max(1, processes))
        self.known: dict[str, Future[Built]] = {}
        self.running: set[subprocess.Popen[str]] = set()
        self.lock = threading.Lock()
        self.closed = False

    @property
    def cache(self) -> Path:
        """The folder of built kernels."""
        return self.work / "kernels"

    def submit(self, text: str, kernels: Sequence[str] = ()) -> Future[Built]:
        if text not in self.known:
            self.known[text] = self.pool.submit(self._build, text, tuple(kernels))
        return self.known[text]

    def close(self) -> None:
        with self.lock:
            self.closed = True
            for process in self.running:
                # Each leads a process group of its own: its compilers end with it.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGTERM)
        self.pool.shutdown(cancel_futures=True)

    def _build(self, text: str, kernels: tuple[str, ...]) -> Built:
        folder = self.work / hashlib.sha256(text.encode()).hexdigest()[:12]
        schedules, library = folder / "schedules", folder / "library"
        source = library / "src"
        schedules.mkdir(parents=True, exist_ok=True)
        (schedules / f"{self.target}.toml").write_text(text, encoding="utf-8")
        generate = ("qlagen.tune.generate", str(self.spec), self.target, str(schedules), str(library))
        status, said = self._run(generate, {})
        if status:
            return Built(source, _last(said))
        environment = {CACHE_VARIABLE: str(self.cache), "PYTHONPATH": import_path(source)}
        # Kernels that all candidates share are built by whoever comes first; the others wait for a lock.
        jobs = "1" if kernels else "4"
        command = ("qla_ops", "build", "--operator", self.operator, "--json", "--jobs", jobs)
        status, said = self._run(command, environment)
        return Built(source, _last(said) if status else fault_of(said, kernels))

    def _run(self, arguments: Sequence[str], environment: Mapping[str, str]) -> tuple[int, str]:
        """Exit status and what was said: standard output when it went well, standard error when it did not."""
        environment = {"PYTHONPATH": import_path(), **environment}
        with self.lock:
            if self.closed:
                return 1, "stopped"
            process = subprocess.Popen(
                (sys.executable, "-m", *arguments),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env={**os.environ, **environment},
                start_new_session=True,
            )
            self.running.add(process)
        out, err = process.communicate()
        with self.lock:
            self.running.discard(process)
        return process.returncode, err if process.returncode else out


def import_path(*first: Path) -> str:
    """PYTHONPATH for another process: `first`, what it was, and this qlagen."""
    given = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    own = Path(qlagen.__file__).absolute().parents[1]
    return os.pathsep.join([*map(str, first), *(path for path in given if path), str(own)])


def fault_of(report: str, kernels: Sequence[str]) -> str:
    """What the compiler says against some kernels in the JSON of ``python -m qla_ops build``; empty for nothing."""
    rows: list[dict[str, Any]] = [row for row in json.loads(report) if row["kernel"] in kernels]
    faults = [f"{row['kernel']} spills {row['spill_bytes']} bytes" for row in rows if row["spill_bytes"]]
    faults += [
        f"{row['kernel']} has {row['serialised_wgmma']} wgmma that wait for one another (C75xx)"
        for row in rows
        if row["serialised_wgmma"]
    ]
    return "; ".join(faults)


def _last(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    return " / ".join(lines[-_LINES:])[-400:] or "ended without a message"
