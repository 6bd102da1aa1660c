"""The processes' protocol, with small programs in the workers' place."""

from __future__ import annotations

import sys

import pytest

from qlagen.bench.workers import ProcessWorker, WorkerLostError

ECHO = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    if request["task"] == "fail":
        print(json.dumps({"event": "error", "reason": "no"}), flush=True)
        continue
    print(json.dumps({"event": "seen", "request": request}), flush=True)
    print(json.dumps({"event": "end"}), flush=True)
"""


def worker(program: str, stall: float = 20.0) -> ProcessWorker:
    return ProcessWorker({"GIVEN": "x"}, stall, (sys.executable, "-c", program))


def test_events_end_with_the_answer() -> None:
    process = worker(ECHO)
    assert list(process.ask({"task": "a"})) == [{"event": "seen", "request": {"task": "a"}}]
    with pytest.raises(RuntimeError, match=r"^no$"):
        list(process.ask({"task": "fail"}))
    assert list(process.ask({"task": "b"})) == [{"event": "seen", "request": {"task": "b"}}]
    process.close()
    assert process.process.returncode == 0


def test_a_silent_process_is_ended() -> None:
    process = worker("import time; time.sleep(60)", stall=0.2)
    with pytest.raises(WorkerLostError, match=r"^hung: no sign of life for 0 s$"):
        list(process.ask({"task": "a"}))
    assert process.process.returncode is not None


SLOW = """
import sys, time
from qlagen.bench import worker
worker.PULSE_SECONDS = 0.05
worker.make_bench = lambda: "a bench"
def respond(request, bench):
    time.sleep(1.0)
    yield {"event": "compiled"}
sys.exit(worker.serve(respond))
"""


def test_compiling_may_take_longer_than_a_silence() -> None:
    """Only compiling: a kernel that hangs must be noticed."""
    process = worker(SLOW, stall=20.0)
    assert list(process.ask({"task": "warm up"})) == [{"event": "compiled"}]
    process.stall_seconds = 0.6
    events = [event["event"] for event in process.ask({"task": "compile"})]
    assert events[-1] == "compiled"
    assert set(events[:-1]) == {"alive"}
    assert len(events) > 5
    with pytest.raises(WorkerLostError, match="hung"):
        list(process.ask({"task": "measure"}))


def test_a_dead_process_is_noticed() -> None:
    process = worker("import os, sys; sys.stdin.readline(); os._exit(7)")
    with pytest.raises(WorkerLostError, match=r"^the process died \(exit code 7\)$"):
        list(process.ask({"task": "a"}))
    with pytest.raises(WorkerLostError, match=r"^the process "):
        list(process.ask({"task": "a"}))


def test_the_environment_reaches_the_process() -> None:
    process = worker(
        "import os, json; input(); print(json.dumps({'event': os.environ['GIVEN']})); print('{\"event\": \"end\"}')"
    )
    assert list(process.ask({"task": "a"})) == [{"event": "x"}]
    process.close()


def test_the_real_worker_answers_even_where_it_cannot_measure(monkeypatch: pytest.MonkeyPatch) -> None:
    process = ProcessWorker({"CUDA_VISIBLE_DEVICES": ""})
    with pytest.raises(RuntimeError):
        list(process.ask({"task": "environment"}))
    process.close()
