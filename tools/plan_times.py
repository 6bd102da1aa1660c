"""Time the plans of calls that cut sequences into segments, beside what the library's model says of them. Needs a GPU.

A row is heads/sequences as in the benchmark. For each row the library's own choice is timed and then every number of
segments of a list with every variant of the kernels that carry a state, in both orders of the segment kernel's CTAs.
One JSON line for each plan: the median and the least time of a call in a CUDA graph, as the benchmark takes them, and
the modelled times of its kernels but for the prepare kernels. `[plan]` of the target's file was fitted to such lines.

From a checkout: PYTHONPATH=.:generated/qla_ops/src python -m tools.plan_times 2:8/1x32768 16:32/1x8192
    [--seconds N] [--output FILE]
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qlagen.bench.cases import Case, forward_case

SEGMENTS = (2, 3, 4, 6, 8, 10, 12, 14, 16, 20, 24)
SAMPLES = 7
LEAST_CHUNKS = 2
"""Of a segment."""
MOST_TURNS = 3
"""More segments and heads than this many times the SMs only cost more."""


@dataclass(frozen=True)
class Wish:
    """What a call is made to do: `auto_cp`, the variants that it may use, the order of the segment kernel's CTAs."""

    auto_cp: bool | int
    only: tuple[str, ...] = ()
    turns: int | None = None


def wishes(case: Case, forwards: Sequence[str], segments: Sequence[str], processors: int) -> Iterator[Wish]:
    """The library's choice, then whole sequences, then cut ones."""
    yield Wish(True)
    chunks = max(-(-length // 64) for length in case.lengths)
    for forward in forwards:
        yield Wish(False, (forward,))
        for parts in SEGMENTS:
            items = parts * case.value_heads * len(case.lengths)
            if parts * LEAST_CHUNKS > chunks or items > MOST_TURNS * processors:
                continue
            for segment in segments:
                yield from (Wish(parts, (forward, segment), turns) for turns in (1, 2))


@contextmanager
def seen_plans(wish: Wish) -> Iterator[list[Any]]:
    """The plans of the calls inside, in the order of CTAs that is wished for."""
    from qla_ops.runtime import hopper

    chosen, seen = hopper.call_plan, []

    def choose(*values: Any) -> Any:
        plan = chosen(*values)
        if wish.turns is not None and plan.segment is not None:
            plan = replace(plan, turns=wish.turns)
        seen.append(plan)
        return plan

    hopper.call_plan = choose
    try:
        yield seen
    finally:
        hopper.call_plan = chosen


def measure(case: Case, wish: Wish, inputs: Sequence[Any], timer: Any) -> dict[str, Any]:
    """What is printed of a plan."""
    import torch

    import qla_ops
    from qla_ops.runtime.plan import only
    from qlagen.bench.timing import summarise

    def caller(i: Any) -> Callable[[], Any]:
        several = len(case.lengths) > 1
        known = {"cu_seqlens": i.cu_seqlens, "cu_seqlens_cpu": i.cu_seqlens.cpu()} if several else {}
        options = {"initial_state": i.initial_state, "output_final_state": True, "strict": True, "scale": i.scale}
        values = (i.q, i.k, i.v, i.g, i.beta)
        return lambda: qla_ops.chunk_gated_delta_rule(*values, auto_cp=wish.auto_cp, **known, **options)

    with seen_plans(wish) as seen, only(*wish.only):
        replay = timer.prepare([caller(i) for i in inputs])
        times = summarise([timer.sample(replay) for _ in range(SAMPLES)])
    plan = seen[-1]
    variants = [kernel.module.rpartition(".")[2] for kernel in (plan.forward, plan.segment) if kernel is not None]
    return {
        "kind": "plan",
        **case.as_json(),
        "chosen": wish.auto_cp is True,
        "segments": plan.cutting.segments,
        "variants": variants,
        "turns": plan.turns,
        "median_us": round(times.median * 1e6, 1),
        "least_us": round(times.least * 1e6, 1),
        "modelled_ns": vars(plan.times[0]),
        "gpu": torch.cuda.get_device_name(),
    }


def rows(case: Case, end: float) -> Iterator[dict[str, Any]]:
    """Lines of one row, while there is time."""
    import torch

    from qla_ops.runtime.choose import OPERATORS, device_facts
    from qla_ops.runtime.plan import variants
    from qlagen.bench.inputs import make_inputs
    from qlagen.bench.measure import BEYOND_CACHE, MOST_SETS
    from qlagen.bench.timing import CudaTimer

    cuda: Any = torch.cuda
    first = make_inputs(case)
    count = math.ceil(BEYOND_CACHE * cuda.get_device_properties(0).L2_cache_size / first.bytes)
    inputs = [first, *(first.copy() for _ in range(min(MOST_SETS, count) - 1))]
    timer = CudaTimer(cuda.current_stream())
    operator = OPERATORS["gated_delta_rule"]
    forwards, segments = (
        [kernel.module.rpartition(".")[2] for kernel in variants(operator, kind)] for kind in ("carried", "segment")
    )
    for wish in wishes(case, forwards, segments, device_facts(0).processors):
        if time.monotonic() > end:
            return
        yield measure(case, wish, inputs, timer)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Time plans beside the library's model of them.")
    parser.add_argument("cases", type=forward_case, nargs="+", metavar="HEADS/SEQUENCES[/GATES]")
    parser.add_argument("--seconds", type=float, default=300, help="stop after so many (default: 300)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="add the lines to a file")
    options = parser.parse_args(arguments)
    import torch

    cuda: Any = torch.cuda
    cuda.set_stream(cuda.Stream())
    end = time.monotonic() + options.seconds
    for case in options.cases:
        for found in rows(case, end):
            line = json.dumps(found)
            print(line, flush=True)
            if options.output:
                with options.output.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
