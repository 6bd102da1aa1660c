from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest
import torch

from qlagen.bench import timing
from qlagen.bench.timing import (
    LEAST_SAMPLES,
    MOST_SAMPLES,
    CudaTimer,
    Replay,
    host_seconds,
    interleave,
    percentile,
    summarise,
)


class Steps:
    """A timer whose samples are given in advance."""

    def __init__(self, times: dict[str, float]) -> None:
        self.times = times

    def sample(self, replay: Replay) -> float:
        return self.times[replay.mode]


def test_statistics_are_order_statistics() -> None:
    found = summarise([5.0, 1.0, 4.0, 2.0, 3.0])
    assert (found.median, found.least, found.samples) == (3.0, 1.0, 5)
    assert found.p10 == pytest.approx(1.4)
    assert found.p90 == pytest.approx(4.6)
    assert percentile([7.0], 0.9) == 7.0


def test_sampling_goes_on_until_each_has_its_seconds() -> None:
    replays = {"long": Replay(print, 1, "long"), "short": Replay(print, 10, "short"), "tiny": Replay(print, 1, "tiny")}
    timer = Steps({"long": 0.05, "short": 1e-3, "tiny": 1e-9})
    found = interleave(replays, timer, 0.12)  # type: ignore[arg-type]
    assert len(found["long"]) == LEAST_SAMPLES
    assert len(found["short"]) == 12
    assert len(found["tiny"]) == MOST_SAMPLES


def test_host_time_is_per_call() -> None:
    made = []
    seconds = host_seconds(lambda: made.append(1), lambda: made.append(0), calls=5, rounds=3)
    assert made == [0, 1, 1, 1, 1, 1] * 3 + [0]
    assert 0 < seconds < 0.1


class FakeCuda:
    """The parts of torch.cuda that the timer uses; a call takes a millisecond, a replay of ten calls ten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capture_fails: bool = False) -> None:
        self.now, self.made, self.capture_fails = 0.0, 0, capture_fails
        self.made_before_capture, self.captures, self.on_gpu = 0, False, 1e-3
        clock = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                assert enable_timing

            def record(self, stream: object) -> None:
                self.at = clock.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, other: Event) -> float:
                return (other.at - self.at) * 1e3

        class Graph:
            def replay(self) -> None:
                clock.now += self.seconds

        @contextmanager
        def capture(graph: Graph, stream: object) -> Iterator[None]:
            assert stream is clock
            clock.made_before_capture = clock.made
            before = clock.now
            clock.captures = True
            yield
            clock.captures = False
            graph.seconds = clock.now - before
            clock.now = before
            if clock.capture_fails:
                raise RuntimeError("operation not permitted when stream is capturing")

        for name, value in {"Event": Event, "CUDAGraph": Graph, "graph": capture}.items():
            monkeypatch.setattr(torch.cuda, name, value)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def synchronize(self) -> None:
        pass

    def call(self) -> None:
        self.made += 1
        self.now += self.on_gpu if self.captures else 1e-3


@pytest.mark.parametrize(("sets", "calls"), [(1, 8), (2, 8), (5, 10)])
def test_a_graph_holds_whole_rounds_of_the_input_sets(monkeypatch: pytest.MonkeyPatch, sets: int, calls: int) -> None:
    cuda = FakeCuda(monkeypatch)
    timer = CudaTimer(cuda)  # type: ignore[arg-type]
    replay = timer.prepare([cuda.call] * sets)
    assert (replay.mode, replay.calls) == ("graph", calls)
    made = cuda.made
    assert timer.sample(replay) == pytest.approx(1e-3)
    assert cuda.made == made  # replayed, not called


def test_every_input_set_is_called_before_the_capture(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch)
    seen: list[tuple[int, int]] = []

    def call(number: int) -> None:
        seen.append((number, cuda.made_before_capture))
        cuda.call()

    CudaTimer(cuda).prepare([partial(call, number) for number in range(7)])  # type: ignore[arg-type]
    assert {number for number, captured in seen if captured == 0} == set(range(7))


@pytest.mark.parametrize("capture_fails", [False, True])
def test_what_the_calls_hold_lives_as_long_as_the_replay(monkeypatch: pytest.MonkeyPatch, capture_fails: bool) -> None:
    """A graph replays on the memory of the inputs that an implementation converted for its calls."""
    cuda = FakeCuda(monkeypatch, capture_fails)
    converted = torch.zeros(3)
    held = weakref.ref(converted)

    def call(tensor: torch.Tensor) -> None:
        cuda.call()

    calls = [partial(call, converted)]
    replay = CudaTimer(cuda).prepare(calls)  # type: ignore[arg-type]
    del converted, calls
    gc.collect()
    assert held() is not None
    del replay
    gc.collect()
    assert held() is None


def test_where_capture_fails_calls_are_timed_and_the_row_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, capture_fails=True)
    timer = CudaTimer(cuda)  # type: ignore[arg-type]
    replay = timer.prepare([cuda.call])
    assert (replay.mode, replay.calls) == ("events (RuntimeError in capture)", 8)
    made = cuda.made
    assert timer.sample(replay) == pytest.approx(1e-3)
    assert cuda.made == made + 8


@pytest.mark.parametrize(("on_gpu", "calls"), [(1e-4, 42), (1e-6, 240), (4e-4, 12), (1e-2, 9)])
def test_the_gpu_decides_how_long_a_sample_is(monkeypatch: pytest.MonkeyPatch, on_gpu: float, calls: int) -> None:
    """Not the host, which takes a millisecond for a call here: a short graph would be mostly its launch."""
    cuda = FakeCuda(monkeypatch)
    cuda.on_gpu = on_gpu
    replay = CudaTimer(cuda).prepare([cuda.call] * 3)  # type: ignore[arg-type]
    assert (replay.mode, replay.calls) == ("graph", calls)
