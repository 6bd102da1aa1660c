"""``qlagen targets``: the GPUs that kernels are made for, and what is compiled into kernels."""

from __future__ import annotations

import argparse

from qlagen.cli.output import print_json
from qlagen.schedule.target import Target, load_target, target_names

COMPILED_IN = ("data type (bfloat16, float16)", "K", "V", "chunk length C", "schedule variant")
RUN_TIME = ("tokens", "number and lengths of sequences", "head counts", "numbers such as scale", "state layout")


def run(options: argparse.Namespace) -> int:
    """0."""
    targets = [load_target(name) for name in target_names()]
    if options.json:
        print_json([as_record(target) for target in targets])
        return 0
    for target in targets:
        print(f"{target.name}: {target.gpu}, {target.streaming_multiprocessors} SMs")
        print(f"  compiled in: {', '.join(COMPILED_IN)}")
        print(f"  run time:    {', '.join(RUN_TIME)}")
    return 0


def as_record(target: Target) -> dict[str, object]:
    """The JSON form."""
    return {
        "target": target.name,
        "gpu": target.gpu,
        "streaming_multiprocessors": target.streaming_multiprocessors,
        "compiled_in": COMPILED_IN,
        "run_time": RUN_TIME,
    }
