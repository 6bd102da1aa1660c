from __future__ import annotations

import pytest

from qlagen.bench.timing import LEAST_SAMPLES, MOST_SAMPLES, Replay, host_seconds, interleave, percentile, summarise


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
