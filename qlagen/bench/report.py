"""Numbers from rows: ratios to the peers, geometric means, and how near the floor each implementation comes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from qlagen.bench.cases import DIRECTIONS, Case, case_of
from qlagen.bench.floors import floor_of
from qlagen.bench.peers import OURS, REGISTRY
from qlagen.bench.records import Record, environments, row_key, side_by_side

Report = dict[str, Any]
NOT_A_RIVAL = ("portable",)
"""Timed for comparison; never the best peer."""


def make_report(records: Sequence[Record], ours: str = OURS) -> Report:
    """``{"forward" | "backward": {rows, geomean_vs_best, min_vs_best, geomean_vs, floor_fraction}}``.

    Rows of other operators stand under the operator's name instead of the direction.

    A ratio is a peer's time over ours: above one, ours is faster. `floor_fraction` is the floor over the time, one at
    best; per implementation its geometric mean over the rows. A number is None where there is nothing to compute it
    from, and a direction is left out when it has no rows. What is compared ran in one environment (`side_by_side`).
    """
    gpus = {name: record["gpu"] for name, record in environments(records).items() if "gpu" in record}
    rows = _rows(side_by_side(records, ours), ours, gpus)
    parts: dict[str, list[Report]] = {direction: [] for direction in DIRECTIONS}
    for case, row in rows:
        parts.setdefault(case.operator or case.direction, []).append(row)
    return {part: _summary(found, ours) for part, found in parts.items() if found}


def _rows(records: Iterable[Record], ours: str, gpus: Mapping[str, str]) -> list[tuple[Case, Report]]:
    """One row per case that has a time, in the order of the file."""
    together: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        together.setdefault(row_key(record, ""), []).append(record)
    timed = [found for found in together.values() if any(record["kind"] == "time" for record in found)]
    return [(case_of(found[0]), _row(case_of(found[0]), found, ours, gpus)) for found in timed]


def _row(case: Case, found: Sequence[Record], ours: str, gpus: Mapping[str, str]) -> Report:
    times = {record["implementation"]: record["median_ms"] for record in found if record["kind"] == "time"}
    times = {name: times[name] for name in sorted(times, key=_place)}
    rivals = {name: time for name, time in times.items() if name != ours and name not in NOT_A_RIVAL}
    best = min(rivals, key=lambda name: rivals[name]) if rivals else None
    mine = times.get(ours)
    vs = {} if mine is None else {name: _round(time / mine) for name, time in times.items() if name != ours}
    floor = floor_of(case, gpus.get(found[-1]["environment"], ""))
    return {
        "heads": case.heads,
        "sequences": case.label,
        "gates": case.gates,
        "tokens": case.tokens,
        "ms": times,
        "best_peer": best,
        "vs_best": vs.get(best) if best else None,
        "vs": vs,
        "floor_ms": floor and _round(floor.milliseconds),
        "floor": floor and floor.limit,
        "floor_fraction": {name: _round(floor.milliseconds / time) for name, time in times.items()} if floor else {},
        "refused": {record["implementation"]: record["reason"] for record in found if record["kind"] == "refused"},
    }


def _summary(rows: Sequence[Report], ours: str) -> Report:
    ratios = [row["vs_best"] for row in rows if row["vs_best"] is not None]
    names = sorted({name for row in rows for name in row["ms"]}, key=_place)
    return {
        "rows": list(rows),
        "geomean_vs_best": geometric_mean(ratios),
        "min_vs_best": min(ratios, default=None),
        "geomean_vs": {
            name: geometric_mean([row["vs"][name] for row in rows if name in row["vs"]])
            for name in names
            if name != ours and any(name in row["vs"] for row in rows)
        },
        "floor_fraction": {
            name: geometric_mean([row["floor_fraction"][name] for row in rows if name in row["floor_fraction"]])
            for name in names
        },
    }


def geometric_mean(values: Sequence[float]) -> float | None:
    """Of positive numbers; None of no numbers."""
    return _round(math.exp(math.fsum(map(math.log, values)) / len(values))) if values else None


def _place(name: str) -> tuple[int, str]:
    """The order of the tables: ours, then the peers as registered, then whatever else."""
    order = list(REGISTRY)
    return (order.index(name) if name in order else len(order)), name


def _round(value: float) -> float:
    return float(f"{value:.4g}")
