"""Time the kernels of a call one by one, to find out where its time goes. Needs a GPU; compares with no other library.

A row is heads/sequences as in the benchmark, with ``@N`` for N segments (``@F``: never cut) and ``!NAME`` to force a
variant: ``2:8/1x32768@16!segment_v64``. For each row one JSON line is printed and, with --output, added to a file: the
median of each kernel's times by the profiler, the median and the least time of a call in a CUDA graph of four, and the
errors against the float64 reference. Kernels start while the one before them runs, so that their times add up to more
than the call's. The library is the `qla_ops` on the path; its kernels are built when first used, unless `python -m
qla_ops build` was run before.

From a checkout: PYTHONPATH=.:generated/qla_ops/src python -m tools.kernel_times 16:64/4x8192 2:8/1x32768
    [--what TEXT] [--output FILE] [--no-check]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qlagen.bench.cases import Case, forward_case

GRAPH_CALLS, GRAPH_SAMPLES, PROFILED_CALLS = 4, 25, 6
REFERENCE_SHARE = 0.4
"""Of the free memory, for the reference."""
_ROW = re.compile(r"(?P<label>[\d:]+/[^@!]+)(@(?P<cut>F|\d+))?(!(?P<only>[\w!]+))?")


@dataclass(frozen=True)
class Row:
    case: Case
    auto_cp: bool | int
    only: tuple[str, ...]

    @property
    def plan(self) -> str:
        cut = {True: "auto", False: "never cut"}.get(self.auto_cp, f"{self.auto_cp} segments")
        return ", ".join((cut, *self.only))


def read_row(text: str) -> Row:
    """``2:8/1x32768@16!segment_v64``. Raises argparse's error for other text, E-BENCH-CASE for unknown labels."""
    found = _ROW.fullmatch(text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not HEADS/SEQUENCES[@SEGMENTS][!VARIANT]")
    cut = found["cut"]
    auto_cp: bool | int = True if cut is None else False if cut == "F" else int(cut)
    return Row(forward_case(found["label"]), auto_cp, tuple((found["only"] or "").split("!")) if found["only"] else ())


def measure(row: Row, check: bool) -> dict[str, Any]:
    """What is printed of a row."""
    import torch

    from qla_ops.runtime.plan import only
    from qlagen.bench.gate import Reference
    from qlagen.bench.inputs import make_inputs

    i = make_inputs(row.case)
    plain = caller(i, row.auto_cp)

    def call() -> Any:
        with only(*row.only) if row.only else nullcontext():
            return plain()

    o, state = call()
    found: dict[str, Any] = {
        "kind": "kernels",
        **row.case.as_json(),
        "plan": row.plan,
        "gpu": torch.cuda.get_device_name(),
    }
    if check:
        reference = Reference(i, int(torch.cuda.mem_get_info()[0] * REFERENCE_SHARE))
        errors = reference.errors({"o": o, "final_state": state})
        found["errors"] = {name: float(f"{error.head:.3g}") for name, error in errors.items()}
    times = graph_times(call)
    found |= {"median_ms": round(statistics.median(times), 4), "least_ms": round(min(times), 4)}
    return found | {"kernel_us": kernel_times(call)}


def caller(i: Any, auto_cp: bool | int, known: bool = False) -> Callable[[], Any]:
    """The library's call for the benchmark's inputs, which are packed where there are several sequences. `known`: then
    the host knows their lengths."""
    import qla_ops

    options = {"scale": i.scale, "initial_state": i.initial_state, "output_final_state": True, "strict": True}
    if len(i.case.lengths) > 1:
        options["cu_seqlens"] = i.cu_seqlens
        if known:
            options["cu_seqlens_cpu"] = i.cu_seqlens.cpu()
    return lambda: qla_ops.chunk_gated_delta_rule(i.q, i.k, i.v, i.g, i.beta, auto_cp=auto_cp, **options)


def graph_times(call: Callable[[], Any]) -> list[float]:
    """Milliseconds of a call, one number for each replay."""
    import torch

    cuda: Any = torch.cuda
    stream, graph = cuda.current_stream(), cuda.CUDAGraph()
    with cuda.graph(graph, stream=stream):
        for _ in range(GRAPH_CALLS):
            call()
    start, stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
    times = []
    for _ in range(GRAPH_SAMPLES):
        start.record(stream)
        graph.replay()
        stop.record(stream)
        stop.synchronize()
        times.append(start.elapsed_time(stop) / GRAPH_CALLS)
    return times


def kernel_times(call: Callable[[], Any]) -> dict[str, float]:
    """Microseconds of each kernel, by the last part of its name."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        for _ in range(PROFILED_CALLS):
            call()
        torch.cuda.synchronize()
    times: dict[str, list[float]] = {}
    for event in profiled.events() or ():
        if event.device_type.name == "CUDA":
            times.setdefault(short_name(event.name), []).append(event.device_time)
    return {name: round(statistics.median(found), 1) for name, found in times.items()}


def short_name(name: str) -> str:
    """``gated_delta_rule_forward_v128_kernel`` -> ``forward_v128``; ``void join_kernel<128>(...)`` -> ``join``."""
    plain = name.removeprefix("void ").partition("<")[0].partition("(")[0].removesuffix("_kernel")
    return re.sub(r"^.*_(?=(prepare|segment|forward)_)", "", plain)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time the kernels of a call one by one.")
    parser.add_argument("rows", type=read_row, nargs="+", metavar="HEADS/SEQUENCES[@SEGMENTS][!VARIANT]")
    parser.add_argument("--what", default="", help="a remark for each line")
    parser.add_argument("--output", type=Path, metavar="FILE", help="add the lines to a file")
    parser.add_argument("--no-check", action="store_true", help="leave out the float64 reference")
    options = parser.parse_args(arguments)
    import torch

    cuda: Any = torch.cuda
    cuda.set_stream(cuda.Stream())
    for row in options.rows:
        say({"what": options.what, **measure(row, not options.no_check)}, options.output)
    return 0


def say(found: dict[str, Any], output: Path | None) -> None:
    """Prints a line, and adds it to a file."""
    line = json.dumps(found)
    print(line, flush=True)
    if output:
        with output.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main())
