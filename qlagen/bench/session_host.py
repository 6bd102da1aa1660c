"""The part of a run that measures the host: enqueueing, first calls of fresh processes, sizes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from qlagen.bench.host import CACHE_VARIABLES, first_call_case, host_cases
from qlagen.bench.session import Session
from qlagen.bench.workers import WorkerLostError

SKIPPED = ("portable",)
"""Nothing is compiled and nothing is tuned there."""


def run_host(session: Session) -> None:
    """Write the records "host", "size" and "first call" of every implementation of the session."""
    names = [name for name in session.versions if name not in SKIPPED]
    request = {"task": "host", "implementations": names, "cases": [case.as_json() for case in host_cases()]}
    try:
        for event in session.worker.ask(request):
            if event["event"] == "record":
                session.file.add({**event["record"], "environment": session.environment})
            elif event["event"] == "failed":
                session.crew.say(f"host time of {event['implementation']}: {event['reason']}")
    except (WorkerLostError, RuntimeError) as fault:
        session.crew.say(f"host times: {fault}")
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("cold", "warm"):
            _first_calls(session, names, cache, Path(folder))


def _first_calls(session: Session, names: list[str], cache: str, folder: Path) -> None:
    """All implementations at once, each in a process of its own that keeps its compiled kernels in its own folder."""
    with ThreadPoolExecutor(max(1, len(names))) as executor:
        answers = executor.map(lambda name: _first_call(session, name, folder / name), names)
        for name, answer in zip(names, answers, strict=True):
            if "reason" in answer:
                session.crew.say(f"first call of {name} ({cache} cache): {answer['reason']}")
                continue
            session.crew.say(f"first call of {name} ({cache} cache): {answer['call_s']} s")
            record = {"kind": "first call", **first_call_case().as_json(), "implementation": name, "cache": cache}
            times = {field: answer[field] for field in ("version", "import_s", "call_s")}
            session.file.add({**record, **times, "at_once": len(names), "environment": session.environment})


def _first_call(session: Session, name: str, folder: Path) -> Mapping[str, Any]:
    folder.mkdir(exist_ok=True)
    worker = session.crew.start(dict.fromkeys(CACHE_VARIABLES, str(folder)))
    request = {"task": "first call", "implementation": name, "case": first_call_case().as_json()}
    try:
        return next(iter(list(worker.ask(request))), {"reason": "no answer"})
    except (WorkerLostError, RuntimeError) as fault:
        return {"reason": str(fault)}
    finally:
        worker.close()
