"""Processes that measure or compile, seen from the process that leads the run and never touches the GPU itself."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Protocol

from qlagen.bench.arguments import STALL_SECONDS
from qlagen.bench.measure import Bench, Event
from qlagen.bench.worker import Request, handle


class WorkerLostError(Exception):
    """The process died, or was ended because it gave no sign of life; the message says which."""


class Worker(Protocol):
    def ask(self, request: Request) -> Iterator[Event]:
        """The events of a request. Raises WorkerLostError, RuntimeError for a request that failed as a whole."""
        ...

    def close(self) -> None: ...


class LocalWorker:
    """Answers in this process; for tests, and for a debugger."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def ask(self, request: Request) -> Iterator[Event]:
        try:
            yield from handle(request, self.bench)
        except Exception as fault:
            raise RuntimeError(f"{type(fault).__name__}: {fault}") from fault

    def close(self) -> None:
        pass


class ProcessWorker:
    """A `qlagen.bench.worker` process with additions to this process's environment."""

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        stall_seconds: float = STALL_SECONDS,
        command: Sequence[str] = (sys.executable, "-m", "qlagen.bench.worker"),
        log: Path | None = None,
    ) -> None:
        """`log` takes what libraries print, this process's standard error otherwise."""
        self.stall_seconds = stall_seconds
        self.log = log.open("ab") if log else None
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self.lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pass_lines, args=(self.process.stdout, self.lines), daemon=True).start()

    def ask(self, request: Request) -> Iterator[Event]:
        try:
            assert self.process.stdin is not None
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise WorkerLostError(f"the process had ended ({self._status()})") from None
        while True:
            event = self._next()
            if event["event"] == "end":
                return
            if event["event"] == "error":
                raise RuntimeError(event["reason"])
            yield event

    def _next(self) -> Event:
        try:
            line = self.lines.get(timeout=self.stall_seconds)
        except queue.Empty:
            self.process.kill()
            self.close()
            raise WorkerLostError(f"hung: no sign of life for {self.stall_seconds:.0f} s") from None
        if not line:
            raise WorkerLostError(f"the process died ({self._status()})")
        event: Event = json.loads(line)
        return event

    def _status(self) -> str:
        code = self.process.wait(timeout=10)
        return f"signal {-code}" if code < 0 else f"exit code {code}"

    def close(self) -> None:
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
                self.process.wait(timeout=5)
            except (OSError, subprocess.TimeoutExpired):
                self.process.kill()
        self.process.wait()
        if self.log is not None:
            self.log.close()


def _pass_lines(source: IO[str] | None, lines: queue.Queue[str]) -> None:
    for line in source or ():
        lines.put(line)
    lines.put("")
