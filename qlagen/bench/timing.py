"""Time of a call on a GPU: CUDA-graph replay where capture works, events around plain calls where it does not."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from qlagen.bench.peers.base import Call

if TYPE_CHECKING:
    import torch

WARM_CALLS = 2
SAMPLE_SECONDS = 4e-3
"""One sample is a replay of about this length, so that its launch, tens of microseconds, does not show."""
FIRST_CALLS, MOST_CALLS = 8, 240
"""Calls of the replay that tells how many there should be, and the most."""
LEAST_SAMPLES, MOST_SAMPLES = 9, 60


@dataclass(frozen=True)
class Replay:
    """Something to time: `run` makes `calls` calls, one for each input set in turn. `mode`: how it makes them.

    `keeps`: the calls themselves. A graph reads and writes at the addresses that it was captured with, and only they
    hold the tensors there; without them the next capture, which empties the cache, takes the memory away.
    """

    run: Callable[[], None]
    calls: int
    mode: str
    keeps: Sequence[Call] = ()


class Timer(Protocol):
    """The clock of the benchmark; tests have one that needs no GPU."""

    def prepare(self, calls: Sequence[Call]) -> Replay:
        """Warm up and record the calls, one for each input set."""
        ...

    def sample(self, replay: Replay) -> float:
        """Seconds of one call, from one replay."""
        ...

    def peak_bytes(self, call: Call) -> tuple[Any, int]:
        """What one call returns, and the most memory that it had allocated, its results included."""
        ...


@dataclass(frozen=True)
class Statistics:
    """Seconds per call: the median, the 10th and 90th percentile and the least of the samples."""

    median: float
    p10: float
    p90: float
    least: float
    samples: int


def interleave(replays: Mapping[str, Replay], timer: Timer, seconds: float) -> dict[str, list[float]]:
    """Samples of every replay, taken in turn, until each has `seconds` of them or enough.

    Clocks and temperature drift over a run; taking turns lets every implementation see the same drift. The first one of
    a round changes, so that none always follows the same other.
    """
    names = list(replays)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(MOST_SAMPLES):
        waiting = [name for name in names if not _enough(samples[name], replays[name], seconds)]
        if not waiting:
            break
        first = turn % len(waiting)
        for name in waiting[first:] + waiting[:first]:
            samples[name].append(timer.sample(replays[name]))
    return samples


def _enough(samples: Sequence[float], replay: Replay, seconds: float) -> bool:
    return len(samples) >= LEAST_SAMPLES and sum(samples) * replay.calls >= seconds


def summarise(samples: Sequence[float]) -> Statistics:
    ordered = sorted(samples)
    median, low, high = (percentile(ordered, share) for share in (0.5, 0.1, 0.9))
    return Statistics(median, low, high, ordered[0], len(ordered))


def percentile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of the sorted samples, in proportion."""
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


class CudaTimer:
    """Times on one CUDA stream, which must be the current one.

    Every graph has a memory pool of its own: a library may keep a buffer that it first made during a capture, and the
    replay of another graph must not write over it.
    """

    def __init__(self, stream: torch.cuda.Stream) -> None:
        import torch

        self.stream = stream
        cuda: Any = torch.cuda
        self.start, self.stop = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)

    def prepare(self, calls: Sequence[Call]) -> Replay:
        for _ in range(WARM_CALLS):
            calls[0]()
        # All of them: what a library makes once for an input must not be made during the capture.
        for call in calls:
            call()
        self.stream.synchronize()
        first = self._record(calls, _rounds(FIRST_CALLS, len(calls)))
        # The host may take longer for a call than the GPU: only a replay says what the GPU takes.
        self.sample(first)
        wanted = _rounds(min(MOST_CALLS, math.ceil(SAMPLE_SECONDS / self.sample(first))), len(calls))
        if wanted <= first.calls:
            return first
        del first  # and the memory of its graph
        replay = self._record(calls, wanted)
        self.sample(replay)
        return replay

    def _record(self, calls: Sequence[Call], count: int) -> Replay:
        """A graph of `count` calls; the calls themselves where they cannot be captured."""
        import torch

        def run() -> None:
            for index in range(count):
                calls[index % len(calls)]()

        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, stream=self.stream):
                run()
        except Exception as fault:
            torch.cuda.synchronize()
            return Replay(run, count, f"events ({type(fault).__name__} in capture)")
        return Replay(graph.replay, count, "graph", calls)

    def sample(self, replay: Replay) -> float:
        self.start.record(self.stream)
        replay.run()
        self.stop.record(self.stream)
        self.stop.synchronize()
        return float(self.start.elapsed_time(self.stop)) * 1e-3 / replay.calls

    def peak_bytes(self, call: Call) -> tuple[Any, int]:
        import torch

        self.stream.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        returned = call()
        self.stream.synchronize()
        return returned, torch.cuda.max_memory_allocated() - before


def _rounds(calls: int, sets: int) -> int:
    """At least so many calls, the same number for each input set."""
    return max(1, -(-calls // sets)) * sets


def host_seconds(call: Call, wait: Callable[[], None], calls: int = 20, rounds: int = 9) -> float:
    """Seconds of the CPU for one call: the median over rounds of calls with an empty queue before each round.

    A round must be short enough for the launch queue never to fill.
    """
    found = []
    for _ in range(rounds):
        wait()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        found.append((time.perf_counter() - begun) / calls)
    wait()
    return summarise(found).median
