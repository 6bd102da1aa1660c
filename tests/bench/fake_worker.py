"""A worker process like the real one, with fake implementations on the CPU: one is right, one wrong, one dies."""

from __future__ import annotations

import os
import sys
from typing import Any

from qlagen.bench import worker
from qlagen.bench.inputs import Inputs
from qlagen.bench.peers.base import Call
from tests.bench.fakes import Fake, make_bench


class Chatty(Fake):
    """Prints to standard output, as compilers do."""

    def forward(self, inputs: Inputs) -> Call:
        print("noise on standard output")
        os.write(1, b"more noise\n")
        return super().forward(inputs)


class Dies(Fake):
    def forward(self, inputs: Inputs) -> Call:
        if len(inputs.case.lengths) == 2:
            os._exit(9)
        return super().forward(inputs)


def wrong(results: dict[str, Any]) -> None:
    results["final_state"][0, 1] *= 1.1


if __name__ == "__main__":
    worker.make_bench = lambda: make_bench(
        {"good": Chatty("good"), "wrong": Fake("wrong", wrong), "dies": Dies("dies")}
    )
    sys.exit(worker.serve())
