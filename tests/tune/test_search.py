"""Who wins a search, and when it stops, with fake builds and fake times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from qlagen.errors import QlagenError
from qlagen.tune.candidates import Candidate
from qlagen.tune.check import Explored
from qlagen.tune.search import FINAL_ROUNDS, FINALISTS, ROUNDS, Search, Tools, Winner
from tests.tune.entries import FILE, TEXT, explore
from tests.tune.fakes import FakeBuilder, FakeClock, FakeMeasurer, Settings

TILE = "chunk_parallel 0"


@pytest.fixture(scope="module")
def tile() -> list[Explored]:
    return explore("chunk_parallel")


@dataclass
class Run:
    """A search over the first chunk-parallel entry, and what came of it."""

    entries: list[Explored]
    measurer: FakeMeasurer
    records: list[dict[str, Any]]
    winners: list[Winner]

    def outcomes(self, outcome: str) -> list[dict[str, Any]]:
        return [record for record in self.records if record.get("outcome") == outcome]

    @property
    def verdict(self) -> dict[str, Any]:
        (record,) = (record for record in self.records if record["kind"] == "entry")
        return record


def run(entries: list[Explored], budget: float = 1e6, **faked: Any) -> Run:
    clock = FakeClock()
    builder = FakeBuilder(faked.pop("spills", lambda settings: ""))
    objection = faked.pop("objection", lambda text: "")
    launches = faked.pop("launches", {"full": entries[0].entry.kernels, "other": ("another_kernel",)})
    measurer = FakeMeasurer(builder, clock, launches, **faked)
    records: list[dict[str, Any]] = []
    winners: list[Winner] = []
    tools = Tools(builder, measurer, records.append, objection, clock=clock)
    Search(tools, TEXT, FILE, budget).run(entries, winners.append)
    return Run(entries, measurer, records, winners)


def two_stages(settings: Settings) -> float:
    return 0.95 if settings[TILE].stages == 2 else 1.02


def test_the_fastest_wins(tile: list[Explored]) -> None:
    """Less time with two stages, least with three CTAs beside: the combination is found and measured again."""

    def ratio(settings: Settings) -> float:
        return two_stages(settings) * (0.98 if settings[TILE].ctas_per_sm == 3 else 1.0)

    found = run(tile, ratio=ratio)
    (winner,) = found.winners
    assert dict(winner.candidate.changes)["stages"] == 2
    assert dict(winner.candidate.changes)["ctas_per_sm"] == 3
    assert winner.comparison.ratio == pytest.approx(0.95 * 0.98, rel=1e-3)
    assert list(winner.comparison.rows) == ["full"]
    assert len(winner.comparison.rows["full"].current) == FINAL_ROUNDS
    assert found.verdict["outcome"] == "replaced"
    assert found.verdict["changes"] == dict(winner.candidate.changes)
    assert len(found.outcomes("measured")) == len(tile[0].kept)
    assert len(found.outcomes("measured again")) == 3
    assert len(found.outcomes("refused")) == len(tile[0].refused)
    assert [rounds for _, rounds in found.measurer.compared] == [ROUNDS] * len(tile[0].kept) + [FINAL_ROUNDS] * 3


def test_single_changes_come_first_and_lead(tile: list[Explored]) -> None:
    """Once a change has shown to help, its combinations come before the others."""
    found = run(tile, ratio=two_stages)
    order = [settings[TILE].stages for settings, rounds in found.measurer.compared if rounds == ROUNDS]
    singles = sum(len(item.candidate.changes) == 1 for item in tile[0].kept)
    combined = order[singles + 4 :]  # four were in the making when the first was measured
    first_without = combined.index(1)
    assert set(combined[:first_without]) == {2}
    assert 2 not in combined[first_without:]


def test_wrong_results_are_rejected(tile: list[Explored]) -> None:
    def fault(settings: Settings) -> str:
        return "full: wrong o: relative error 0.3" if settings[TILE].stages == 2 else ""

    found = run(tile, ratio=two_stages, fault=fault)
    assert found.winners == []
    assert found.verdict["outcome"] == "kept"
    rejected = found.outcomes("rejected")
    assert {record["reason"] for record in rejected} == {"full: wrong o: relative error 0.3"}
    assert all(dict(record["changes"])["stages"] == 2 for record in rejected)


def test_spilling_kernels_are_not_run(tile: list[Explored]) -> None:
    def spills(settings: Settings) -> str:
        return "x spills 8 bytes" if settings[TILE].stages == 2 else ""

    found = run(tile, ratio=two_stages, spills=spills)
    assert found.winners == []
    assert all(settings[TILE].stages == 1 for settings, _ in found.measurer.compared)
    assert "x spills 8 bytes" in {record["reason"] for record in found.outcomes("rejected")}
    assert found.measurer.builder.kernels[1] == tile[0].entry.kernels


def test_a_gain_within_the_spread_changes_nothing(tile: list[Explored]) -> None:
    found = run(tile, ratio=lambda settings: 0.995 if settings[TILE].stages == 2 else 1.0, wobble=0.006)
    assert found.winners == []
    assert found.verdict["reason"] == "the best, stages = 2, gains 0.50 percent; the spread is 0.60"


def test_slower_candidates_change_nothing(tile: list[Explored]) -> None:
    found = run(tile, ratio=lambda settings: 1.03 if settings[TILE].stages == 2 else 1.05)
    assert found.winners == []
    assert found.verdict["reason"].endswith("takes 3.00 percent more time")
    assert found.outcomes("measured again") == []


def test_a_gain_of_next_to_nothing_changes_nothing(tile: list[Explored]) -> None:
    found = run(tile, ratio=lambda settings: 0.999 if settings[TILE].stages == 2 else 1.0, wobble=0.0)
    assert found.winners == []
    assert found.verdict["reason"] == "the best, stages = 2, gains 0.10 percent; the spread is 0.20"


def test_wrong_the_second_time_is_wrong(tile: list[Explored]) -> None:
    """A race can pass once: the next best is taken."""
    seen: list[Settings] = []

    def fault(settings: Settings) -> str:
        seen.append(settings)
        return "full: wrong o" if settings[TILE].mover_warps == 3 and seen.count(settings) > 1 else ""

    def ratio(settings: Settings) -> float:
        """Three CTAs are good, with three movers better: what comes in neither way is slower."""
        options = settings[TILE]
        plain = options.stages == options.output_stages == options.heads == 1 and options.ctas_per_sm == 3
        return {2: 0.9, 3: 0.8}.get(settings[TILE].mover_warps, 1.3) if plain else 1.3

    found = run(tile, ratio=ratio, fault=fault)
    (winner,) = found.winners
    assert winner.candidate == Candidate((("ctas_per_sm", 3),))
    (rejected,) = found.outcomes("rejected")
    assert rejected["changes"] == {"ctas_per_sm": 3, "mover_warps": 3}


def test_the_budget_stops_it(tile: list[Explored]) -> None:
    """Ten seconds each: three fit before the time that the finalists need, and what was found counts."""
    found = run(tile, budget=60.0, ratio=two_stages)
    assert found.measurer.clock.now <= 60.0
    assert found.winners[0].candidate == Candidate((("stages", 2),))
    left = len(found.outcomes("not reached"))
    assert left > 0
    assert left + len(found.outcomes("measured")) == len(tile[0].kept)


def test_a_long_second_measurement_does_not_stop_the_next(tile: list[Explored]) -> None:
    """Twice as long is what is expected of it."""
    enough = 10.0 * len(tile[0].kept) + 20.0 * FINALISTS + 1.0
    found = run(tile, budget=enough, ratio=two_stages, finals_take=20.0)
    assert len(found.outcomes("measured")) == len(tile[0].kept)
    assert len(found.outcomes("measured again")) == FINALISTS
    assert found.measurer.clock.now <= enough


def test_luck_in_the_first_rounds_wins_nothing(tile: list[Explored]) -> None:
    """The best of the first rounds is slower when it is measured again; those that are measured once do not step in."""
    seen: list[Settings] = []

    def ratio(settings: Settings) -> float:
        seen.append(settings)
        if settings[TILE].stages != 2:
            return 1.3
        return 1.01 if seen.count(settings) > ROUNDS else 0.95

    found = run(tile, ratio=ratio)
    assert len(found.outcomes("measured again")) == FINALISTS
    assert sum(record["ratio"] < 1 for record in found.outcomes("measured")) > FINALISTS
    assert found.winners == []
    assert found.verdict["reason"].endswith("takes 1.00 percent more time")


def test_no_time_for_any(tile: list[Explored]) -> None:
    found = run(tile, budget=5.0)
    assert found.verdict["reason"] == "no candidate was measured"
    assert len(found.outcomes("not reached")) == len(tile[0].kept)


def test_a_short_budget_is_for_the_first_entries(tile: list[Explored]) -> None:
    """Shared out evenly, ten seconds would be too few to measure anything."""
    found = run([tile[0]] * 7, budget=70.0, ratio=two_stages)
    reasons = [record.get("reason") for record in found.records if record["kind"] == "entry"]
    assert reasons[2:] == ["no candidate was measured"] * 5
    assert reasons[0] != "no candidate was measured"
    assert found.winners[0].candidate == Candidate((("stages", 2),))
    assert found.measurer.clock.now <= 70.0


def test_rows_that_do_not_run_the_kernel(tile: list[Explored]) -> None:
    found = run(tile, launches={"small": ("another_kernel",)})
    assert found.measurer.compared == []
    assert found.verdict["reason"] == f"none of the rows runs {tile[0].entry.kernels[0]}"


def test_what_others_would_lose_is_not_taken(tile: list[Explored]) -> None:
    found = run(tile, ratio=two_stages, objection=lambda text: "x would lose y" if "stages = 2\n" in text else "")
    assert found.winners == []
    assert found.verdict["reason"].endswith("x would lose y")


def test_a_base_that_cannot_be_built(tile: list[Explored]) -> None:
    with pytest.raises(QlagenError, match="the library as it is cannot be built") as caught:
        run(tile, spills=lambda settings: "no nvcc")
    assert caught.value.code == "E-TUNE-BASE"
    assert caught.value.notes == ("no nvcc",)
