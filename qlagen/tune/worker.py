"""The process that measures one library: rows are opened (judged and warmed up), sampled in turns, and closed.

The process that leads the search asks two of them in turn, one with the library as it is and one with a candidate.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from qlagen.bench.cases import Case, case_of
from qlagen.bench.inputs import make_inputs
from qlagen.bench.measure import Bench, Event, Measurement
from qlagen.bench.peers import OURS
from qlagen.bench.timing import summarise
from qlagen.bench.worker import Request, serve

ROUND_SECONDS = 0.04
"""Samples of one round."""


class Rows:
    """The rows that are open in this process."""

    def __init__(self) -> None:
        self.open: dict[str, Measurement] = {}

    def handle(self, request: Request, bench: Bench) -> Iterator[Event]:
        """The events of one request, without the last one.

        Tasks: "kernels" (cases): the library's folder and the kernels that each case runs; "open" (case): a record
        when its results are refused; "sample" (case): the median of a round; "close" (case).
        """
        bench.seconds = ROUND_SECONDS
        if request["task"] == "kernels":
            yield _kernels(bench, [case_of(fields) for fields in request["cases"]])
            return
        case = case_of(request["case"])
        if request["task"] == "open":
            measurement = Measurement(bench, case, [OURS])
            yield from measurement.prepare()
            self.open[case.name] = measurement
        elif request["task"] == "sample":
            samples = self.open[case.name].samples()
            yield {"event": "sample", "seconds": summarise(samples[OURS]).median}
        elif request["task"] == "close":
            self.open.pop(case.name, None)
        else:
            raise ValueError(f"unknown task {request['task']!r}")


def _kernels(bench: Bench, cases: list[Case]) -> Event:
    """What the library says that it would launch; nothing is run."""
    implementation: Any = bench.implementation(OURS)
    return {
        "event": "kernels",
        "folder": str(Path(implementation.library.__file__).parent.parent),
        "kernels": [implementation.kernels(make_inputs(case, bench.device)) for case in cases],
    }


def _warm_up() -> None:
    """Import what every request needs while the process that leads is still busy elsewhere."""
    with contextlib.suppress(Exception):
        import torch

        torch.cuda.init()  # type: ignore[no-untyped-call]
        import qla_ops  # noqa: F401


if __name__ == "__main__":
    _warm_up()
    sys.exit(serve(Rows().handle))
