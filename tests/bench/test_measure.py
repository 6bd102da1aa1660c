"""One row, with fake implementations and a fake timer: who is timed, who is refused, and in which order."""

from __future__ import annotations

from typing import Any

import pytest

from qlagen.bench.inputs import Inputs
from qlagen.bench.measure import NOT_CHECKED, Measurement
from qlagen.bench.peers.base import Call, UnsupportedError
from tests.bench.fakes import Fake, make_bench, small_case


def wrong(results: dict[str, Any]) -> None:
    results["o"][:, :, 1] *= 1.05


def records(bench: Any, case: Any, gated: bool = True) -> dict[str, dict[str, Any]]:
    events = Measurement(bench, case, list(bench.registry), gated).run()
    return {event["record"]["implementation"]: event["record"] for event in events if event["event"] == "record"}


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_right_ones_are_timed(direction: str) -> None:
    bench = make_bench({"a": Fake("a"), "b": Fake("b")}, {"a": 1.0, "b": 2.0})
    found = records(bench, small_case(direction))
    assert found["a"]["kind"] == found["b"]["kind"] == "time"
    assert found["b"]["median_ms"] == pytest.approx(2 * found["a"]["median_ms"])
    assert found["a"]["p10_ms"] < found["a"]["median_ms"] < found["a"]["p90_ms"]
    assert found["a"]["checked"] == "float64 reference"
    assert found["a"]["together"] == ["a", "b"]
    assert found["a"]["clocks"] == {"sm_mhz": 1980}
    assert found["a"]["peak_mib"] == 3
    assert (found["a"]["heads"], found["a"]["sequences"]) == ("2:4", "70+1+64")


def test_a_wrong_kernel_is_refused_and_not_timed() -> None:
    bench = make_bench({"good": Fake("good"), "bad": Fake("bad", wrong)})
    found = records(bench, small_case())
    assert found["bad"]["kind"] == "refused"
    assert found["bad"]["reason"].startswith("wrong o: relative error 0.05")
    assert "median_ms" not in found["bad"]
    assert found["good"]["kind"] == "time"
    assert found["good"]["together"] == ["good"]


def test_without_the_gate_it_is_timed_and_marked() -> None:
    found = records(make_bench({"bad": Fake("bad", wrong)}), small_case(), gated=False)
    assert found["bad"]["kind"] == "time"
    assert found["bad"]["checked"] == NOT_CHECKED
    assert found["bad"]["errors"] == {}


def test_too_large_for_a_reference_is_checked_against_peers() -> None:
    registry = {"a": Fake("a"), "bad": Fake("bad", wrong), "b": Fake("b")}
    found = records(make_bench(registry, free=1000), small_case())
    assert {name: record["kind"] for name, record in found.items()} == {"a": "time", "b": "time", "bad": "refused"}
    assert found["a"]["checked"] == "agrees with b"
    assert found["bad"]["reason"].endswith("(compared with a)")


def test_alone_and_too_large_for_a_reference_is_refused() -> None:
    found = records(make_bench({"a": Fake("a")}, free=1000), small_case())
    assert found["a"]["kind"] == "refused"
    assert found["a"]["reason"] == "nothing to check it against"


def test_what_raises_is_refused_with_its_reason() -> None:
    class Raises(Fake):
        def forward(self, inputs: Inputs) -> Call:
            raise ValueError("no such kernel\nmore")

    class Declines(Fake):
        def forward(self, inputs: Inputs) -> Call:
            raise UnsupportedError("has no such heads")

    found = records(make_bench({"a": Raises("a"), "b": Declines("b"), "c": Fake("c")}), small_case())
    assert found["a"]["reason"] == "ValueError: no such kernel"
    assert (found["b"]["kind"], found["b"]["reason"]) == ("unsupported", "has no such heads")
    assert found["a"]["kind"] == "refused"
    assert found["c"]["kind"] == "time"


def test_results_that_were_never_written_are_refused() -> None:
    def drop(results: dict[str, Any]) -> None:
        del results["final_state"]

    assert records(make_bench({"a": Fake("a", drop)}), small_case())["a"]["reason"] == "gave no final_state"


def test_samples_are_taken_in_turns() -> None:
    bench = make_bench({"a": Fake("a"), "b": Fake("b"), "c": Fake("c")})
    records(bench, small_case())
    order = bench.make_timer().order  # type: ignore[attr-defined]
    rounds = [order[i : i + 3] for i in range(0, 12, 3)]
    assert rounds == [["a", "b", "c"], ["b", "c", "a"], ["c", "a", "b"], ["a", "b", "c"]]


def test_inputs_that_fit_the_cache_are_rotated() -> None:
    bench = make_bench({"a": Fake("a")})
    case = small_case()
    assert records(bench, case)["a"]["input_sets"] == 1
    size = Measurement(bench, case, ["a"]).inputs.bytes
    bench.cache_bytes = size * 2
    found = records(bench, case)["a"]
    assert found["input_sets"] == found["calls_per_sample"] == 6
    bench.cache_bytes = size * 1000
    assert records(bench, case)["a"]["input_sets"] == 64
