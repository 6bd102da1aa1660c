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
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qlagen.bench.cases import Case, forward_case
from tools.kernel_times import caller, say

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

    from qla_ops.runtime.plan import only
    from qlagen.bench.timing import summarise

    with seen_plans(wish) as seen, only(*wish.only):
        replay = timer.prepare([caller(i, wish.auto_cp, known=True) for i in inputs])
        times = summarise([timer.sample(replay) for _ in range(SAMPLES)])
    plan = seen[-1]
    return {
        "kind": "plan",
        **case.as_json(),
        "chosen": wish.auto_cp is True,
        "segments": plan.cutting.segments,
        "variants": variant_names(filter(None, (plan.forward, plan.segment))),
        "turns": plan.turns,
        "median_us": round(times.median * 1e6, 1),
        "least_us": round(times.least * 1e6, 1),
        "modelled_ns": vars(plan.times[0]),
        "gpu": torch.cuda.get_device_name(),
    }


def variant_names(kernels: Iterable[Any]) -> list[str]:
    """What `only` calls them."""
    return [kernel.module.rpartition(".")[2] for kernel in kernels]


def rows(case: Case, end: float) -> Iterator[dict[str, Any]]:
    """Lines of one row, while there is time."""
    import torch

    from qla_ops.runtime.choose import OPERATORS, device_facts
    from qla_ops.runtime.plan import variants
    from qlagen.bench.inputs import make_inputs
    from qlagen.bench.measure import input_sets
    from qlagen.bench.timing import CudaTimer

    cuda: Any = torch.cuda
    inputs = input_sets(make_inputs(case), cuda.get_device_properties(0).L2_cache_size)
    timer = CudaTimer(cuda.current_stream())
    operator = OPERATORS["gated_delta_rule"]
    forwards, segments = (variant_names(variants(operator, kind)) for kind in ("carried", "segment"))
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
            say(found, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
