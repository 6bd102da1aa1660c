"""A process that works for the benchmark: it reads one request a line and answers with one event a line.

Measuring happens in a process of its own, so that a kernel that hangs or breaks the GPU context costs one row and not
the run; compiling happens in several at once. Every answer ends with {"event": "end"} or {"event": "error"}.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from qlagen.bench.cases import case_of
from qlagen.bench.device import describe_environment, measure_ceilings, read_clocks
from qlagen.bench.host import first_call, host_rows
from qlagen.bench.inputs import make_inputs
from qlagen.bench.measure import Bench, Event, Measurement
from qlagen.bench.peers import REGISTRY

Request = dict[str, Any]
PULSE_SECONDS = 10.0
LONGEST_COMPILE_SECONDS = 900.0
"""Compiling is silent, and takes minutes where sixteen processes do it at once: until then the process says itself that
it is alive."""


def handle(request: Request, bench: Bench) -> Iterator[Event]:
    """The events of one request, without the last one.

    Tasks: "environment"; "keys" (implementation, cases); "compile" (implementation, case); "measure" (case,
    implementations, gated); "host" (implementations, cases); "first call" (implementation, case).
    """
    task = request["task"]
    if task == "environment":
        yield from _environment(bench)
    elif task == "keys":
        implementation = bench.implementation(request["implementation"])
        cases = [case_of(fields) for fields in request["cases"]]
        yield {
            "event": "keys",
            "keys": [None if implementation.unsupported(case) else implementation.compile_key(case) for case in cases],
        }
    elif task == "compile":
        yield from _compile(request, bench)
    elif task == "measure":
        case = case_of(request["case"])
        yield from Measurement(bench, case, request["implementations"], request.get("gated", True)).run()
    elif task == "host":
        yield from host_rows(bench, request["implementations"], [case_of(fields) for fields in request["cases"]])
    elif task == "first call":
        yield first_call(bench, request["implementation"], case_of(request["case"]))
    else:
        raise ValueError(f"unknown task {task!r}")


def _environment(bench: Bench) -> Iterator[Event]:
    versions, missing = bench.versions()
    record = describe_environment(versions) if bench.device != "cpu" else {"kind": "environment", "environment": "cpu"}
    compiles = {name: bench.implementation(name).compiles for name in versions}
    settings = {key: value for name in versions for key, value in bench.implementation(name).environment.items()}
    yield {
        "event": "environment",
        "record": record,
        "versions": versions,
        "missing": missing,
        "compiles": compiles,
        "compile environment": settings,
    }
    if bench.device != "cpu":
        yield {"event": "ceilings", "ceilings": measure_ceilings()}


def _compile(request: Request, bench: Bench) -> Iterator[Event]:
    """Run a case once for its compiled kernels. In a process that only compiles, no tuning by timing."""
    implementation, case = bench.implementation(request["implementation"]), case_of(request["case"])
    if request["only_compiles"]:
        implementation.before_compiling()
    begun = time.perf_counter()
    inputs = make_inputs(case, bench.device)
    call = implementation.forward(inputs) if case.direction == "forward" else implementation.backward(inputs)
    call()
    _settle(bench)
    yield {"event": "compiled", "seconds": round(time.perf_counter() - begun, 1)}


def _settle(bench: Bench) -> None:
    if bench.device != "cpu":
        import torch

        torch.cuda.synchronize()
        torch.cuda.empty_cache()


def make_bench() -> Bench:
    """The real one, on the current CUDA device, with a stream of its own as the current stream."""
    import torch

    from qlagen.bench.timing import CudaTimer

    cuda: Any = torch.cuda
    stream = cuda.Stream()
    cuda.set_stream(stream)
    return Bench(
        REGISTRY,
        "cuda",
        lambda: CudaTimer(stream),
        read_clocks,
        lambda: torch.cuda.mem_get_info()[0],
        torch.cuda.get_device_properties(0).L2_cache_size,
    )


@contextmanager
def pulse(answer: Callable[[Event], None]) -> Iterator[None]:
    """While it is open, a sign of life every few seconds, for as long as compiling may take."""
    done = threading.Event()

    def run() -> None:
        for _ in range(int(LONGEST_COMPILE_SECONDS / PULSE_SECONDS)):
            if done.wait(PULSE_SECONDS):
                return
            answer({"event": "alive"})

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def serve(respond: Callable[[Request, Bench], Iterator[Event]] = handle) -> int:
    """Answer requests from standard input until it ends. What libraries print goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    lock = threading.Lock()

    def answer(event: Event) -> None:
        with lock:
            answers.write(json.dumps(event) + "\n")
            answers.flush()

    bench = None
    for line in sys.stdin:
        try:
            bench = bench or make_bench()
            request = json.loads(line)
            with pulse(answer) if request["task"] == "compile" else nullcontext():
                for event in respond(request, bench):
                    answer(event)
            answer({"event": "end"})
        except Exception as fault:
            answer({"event": "error", "reason": f"{type(fault).__name__}: {fault}"[:400]})
    return 0


if __name__ == "__main__":
    sys.exit(serve())
