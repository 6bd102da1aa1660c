"""One row: run every implementation on the same inputs, judge it, then time those that are right, in turns."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from qlagen.bench import gate
from qlagen.bench.cases import Case
from qlagen.bench.inputs import Inputs, make_inputs
from qlagen.bench.peers.base import Call, Implementation, UnsupportedError
from qlagen.bench.reference import reference_bytes
from qlagen.bench.timing import Replay, Timer, interleave, summarise

Event = dict[str, Any]
"""What a measurement reports while it runs: {"event": "begin" | "record" | "broken", ...}."""

SECONDS = 0.12
"""Samples are taken until an implementation has this much time of them."""
BEYOND_CACHE = 3
"""Inputs are rotated over this many times the L2 cache."""
MOST_SETS = 64
_REFERENCE_SHARE = 0.4
NOT_CHECKED = "not checked"

TURNS = "all"
"""Stands for an implementation while all of them take turns."""


@dataclass
class Bench:
    """Where measurements run. Tests put a fake timer and fake implementations here."""

    registry: Mapping[str, Callable[[], Implementation]]
    device: str
    make_timer: Callable[[], Timer]
    read_clocks: Callable[[], dict[str, Any]]
    free_bytes: Callable[[], int]
    """Memory that a reference may think of as its own."""
    cache_bytes: int
    seconds: float = SECONDS
    made: dict[str, Implementation] = field(default_factory=dict)

    def implementation(self, name: str) -> Implementation:
        """The implementation of a name, made once. Raises ImportError when it is not there."""
        if name not in self.made:
            self.made[name] = self.registry[name]()
        return self.made[name]

    def versions(self) -> tuple[dict[str, str], dict[str, str]]:
        """Versions of the implementations that are there, and why the others are not."""
        found, missing = {}, {}
        for name in self.registry:
            try:
                found[name] = self.implementation(name).version()
            except Exception as fault:  # a library that breaks on import is as absent as one that is not installed
                missing[name] = _reason(fault)
        return found, missing


@dataclass
class _Candidate:
    name: str
    implementation: Implementation
    checked: str = NOT_CHECKED
    errors: dict[str, gate.Error] = field(default_factory=dict)
    peak_bytes: int = 0
    results: dict[str, Any] = field(default_factory=dict)
    replay: Replay | None = None


class Measurement:
    """Measures one case. `run` yields events, among them records without their environment.

    A record's kind is "time", "refused" for what raised or gave wrong results, or "unsupported" for a case that an
    implementation does not claim to serve.
    """

    def __init__(self, bench: Bench, case: Case, names: Sequence[str], gated: bool = True) -> None:
        self.bench, self.case, self.gated = bench, case, gated
        self.candidates = [_Candidate(name, bench.implementation(name)) for name in names]
        self._free()
        self.inputs = make_inputs(case, bench.device)
        self.timer = bench.make_timer()
        self.reference: gate.Reference | None = None
        self.sets = 0

    def run(self) -> Iterator[Event]:
        yield from self.prepare()
        yield {"event": "begin", "implementation": TURNS}
        yield from self._time()

    def prepare(self) -> Iterator[Event]:
        """Judge and warm up every implementation; `samples` times those that are left."""
        self.reference = self._reference()
        yield from self._each(self._check)
        if self.gated and self.reference is None:
            yield from self._compare()
        for candidate in self.candidates:
            candidate.results = {}
        self.reference = None
        sets = input_sets(self.inputs, self.bench.cache_bytes)
        self.sets = len(sets)
        yield from self._each(lambda candidate: self._prepare(candidate, sets))

    def samples(self) -> dict[str, list[float]]:
        """Seconds per call of each implementation that is prepared, taken in turn."""
        return interleave(self._replays(), self.timer, self.bench.seconds)

    def _replays(self) -> dict[str, Replay]:
        return {c.name: c.replay for c in self.candidates if c.replay is not None}

    def _each(self, step: Callable[[_Candidate], str]) -> Iterator[Event]:
        """Run a step for every candidate that is still in; those with a reason against them leave."""
        for candidate in list(self.candidates):
            yield {"event": "begin", "implementation": candidate.name}
            kind = "refused"
            try:
                reason = step(candidate)
            except UnsupportedError as fault:
                kind, reason = "unsupported", str(fault)
            except Exception as fault:  # whatever a library raises is a verdict on it
                reason = _reason(fault)
            if reason:
                yield from self._refuse(candidate, reason, kind)
                self._free()

    def _refuse(self, candidate: _Candidate, reason: str, kind: str = "refused") -> Iterator[Event]:
        self.candidates.remove(candidate)
        candidate.results, candidate.replay = {}, None
        yield {"event": "record", "record": self._record(candidate, kind) | {"reason": reason}}
        if broken := self._broken():
            yield {"event": "broken", "implementation": candidate.name, "reason": broken}

    def _reference(self) -> gate.Reference | None:
        """None when it is not wanted, or when it does not fit into memory."""
        if not self.gated:
            return None
        memory = int(self.bench.free_bytes() * _REFERENCE_SHARE)
        group = self.case.value_heads // self.case.key_heads
        if reference_bytes(self.inputs, group) > memory:
            return None
        reference = gate.Reference(self.inputs, memory)
        self._free()
        return reference

    def _check(self, candidate: _Candidate) -> str:
        if reason := candidate.implementation.unsupported(self.case):
            raise UnsupportedError(reason)
        call = self._call(candidate, self.inputs)
        call()  # compiles and tunes, which must not count as this call's memory
        _poison(self.inputs)
        returned, candidate.peak_bytes = self.timer.peak_bytes(call)
        if not self.gated:
            return ""
        results = candidate.implementation.results(self.case.direction, returned)
        if fault := gate.shape_fault(results, self.inputs):
            return fault
        if self.reference is None:
            candidate.results = results
            return ""
        candidate.checked = "float64 reference"
        candidate.errors = self.reference.errors(results)
        return gate.verdict(candidate.errors)

    def _compare(self) -> Iterator[Event]:
        """Where there is no reference: right is what another implementation agrees with."""
        found = gate.peer_errors({c.name: c.results for c in self.candidates}, self.case.direction)
        for candidate in list(self.candidates):
            other, candidate.errors = found.get(candidate.name, ("", {}))
            candidate.checked = f"agrees with {other}"
            reason = gate.verdict(candidate.errors, gate.PEER_FACTOR) if other else "nothing to check it against"
            if reason:
                yield from self._refuse(candidate, reason + (f" (compared with {other})" if other else ""))

    def _call(self, candidate: _Candidate, inputs: Inputs) -> Call:
        implementation = candidate.implementation
        return implementation.forward(inputs) if self.case.direction == "forward" else implementation.backward(inputs)

    def _prepare(self, candidate: _Candidate, sets: Sequence[Inputs]) -> str:
        candidate.replay = self.timer.prepare([self._call(candidate, inputs) for inputs in sets])
        return ""

    def _time(self) -> Iterator[Event]:
        replays, samples = self._replays(), self.samples()
        for replay in replays.values():
            replay.run()
        clocks = self.bench.read_clocks()
        for candidate in self.candidates:
            statistics, replay = summarise(samples[candidate.name]), replays[candidate.name]
            yield {
                "event": "record",
                "record": self._record(candidate, "time")
                | {
                    "median_ms": _milliseconds(statistics.median),
                    "p10_ms": _milliseconds(statistics.p10),
                    "p90_ms": _milliseconds(statistics.p90),
                    "least_ms": _milliseconds(statistics.least),
                    "samples": statistics.samples,
                    "calls_per_sample": replay.calls,
                    "mode": replay.mode,
                    "input_sets": self.sets,
                    "peak_mib": round(candidate.peak_bytes / 2**20, 1),
                    "together": list(replays),
                    "clocks": clocks,
                },
            }

    def _record(self, candidate: _Candidate, kind: str) -> dict[str, Any]:
        errors = {name: [_error(e.head), _error(e.row)] for name, e in candidate.errors.items()}
        return {
            "kind": kind,
            **self.case.as_json(),
            "implementation": candidate.name,
            "version": candidate.implementation.version(),
            "checked": candidate.checked,
            "errors": errors,
        }

    def _broken(self) -> str:
        """Why this process can use the GPU no longer; empty when it can."""
        if self.bench.device == "cpu":
            return ""
        import torch

        try:
            torch.cuda.synchronize()
        except Exception as fault:
            return _reason(fault)
        return ""

    def _free(self) -> None:
        """Give back what the last case left, once nothing runs any more."""
        if self.bench.device != "cpu":
            import torch

            gc.collect()
            torch.cuda.synchronize()
            torch.cuda.empty_cache()


def input_sets(inputs: Inputs, cache_bytes: int) -> list[Inputs]:
    """As many copies of the inputs as it takes for no call to find its own in the cache."""
    count = math.ceil(BEYOND_CACHE * cache_bytes / max(1, inputs.bytes))
    return [inputs, *(inputs.copy() for _ in range(min(MOST_SETS, count) - 1))]


def _poison(inputs: Inputs) -> None:
    """Leave NaN in the memory that results of these sizes will be given, so that what is not written shows."""
    import torch

    blocks = [torch.full_like(value, math.nan) for value in inputs.tensors().values()]
    del blocks


def _reason(fault: Exception) -> str:
    first = next((line for line in str(fault).splitlines() if line.strip()), "")
    return f"{type(fault).__name__}: {first[:200]}"


def _error(value: float) -> float:
    """Three digits; what is not finite becomes a number that JSON can hold."""
    return float(f"{min(value, 1e30):.3g}")


def _milliseconds(seconds: float) -> float:
    return float(f"{seconds * 1e3:.5g}")
