"""The report's numbers are those of the rows: recomputed here another way."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from qlagen.bench.cases import make_case
from qlagen.bench.document import host_losses, losses, make_document
from qlagen.bench.floors import floor_of, least_bytes, multiply_adds
from qlagen.bench.records import RecordFile, latest, read_records, row_files
from qlagen.bench.report import geometric_mean, make_report
from qlagen.bench.tables import as_text, summary_table, times_table
from qlagen.errors import QlagenError
from tests.bench.rows import environment, example, refused, timed

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def test_ratios_and_means_by_hand() -> None:
    report = make_report(example())
    assert list(report) == ["forward", "backward"]
    forward = report["forward"]
    assert set(forward) == {"rows", "geomean_vs_best", "min_vs_best", "geomean_vs", "floor_fraction"}
    assert [row["vs_best"] for row in forward["rows"]] == [2.0, 0.8, 4.0]
    assert [row["best_peer"] for row in forward["rows"]] == ["flashinfer", "flashinfer", "fla"]
    assert forward["geomean_vs_best"] == pytest.approx((2.0 * 0.8 * 4.0) ** (1 / 3), rel=1e-3)
    assert forward["min_vs_best"] == 0.8
    assert forward["geomean_vs"] == {
        "flashinfer": pytest.approx((2.0 * 0.8) ** 0.5, rel=1e-3),
        "fla": pytest.approx((4.0 * 2.0 * 4.0) ** (1 / 3), rel=1e-3),
        "portable": pytest.approx(0.2),
    }
    assert list(forward["rows"][0]["ms"]) == ["qla_ops", "flashinfer", "fla"]
    assert forward["rows"][0]["ms"]["qla_ops"] == 0.8  # the newest row counts


def test_rows_of_another_operator_stand_apart() -> None:
    other = {"operator": "delta_rule", "gates": "none"}
    report = make_report([*example(), timed("qla_ops", 1.0, **other), timed("fla", 2.5, **other)])
    assert {name: part for name, part in report.items() if name != "delta_rule"} == make_report(example())
    assert report["delta_rule"]["geomean_vs"] == {"fla": 2.5}
    text = make_document([*example(), timed("qla_ops", 3.0, **other), timed("fla", 2.5, **other)])
    assert "## Forward of `delta_rule`" in text
    assert "- delta_rule 16:64, 1x32768 (none): 3.000 ms, fla 2.500 ms (0.83×)" in text


def test_only_what_ran_together_is_compared() -> None:
    """A peer that was timed later and alone takes no part where there is a run with ours."""
    alone = timed("flashinfer", 0.1) | {"environment": "e2"}
    assert make_report([*example(), alone]) == make_report(example())
    again = [timed("qla_ops", 0.4) | {"environment": "e3"}, timed("fla", 2.0) | {"environment": "e3"}]
    first = make_report([*example(), alone, *again])["forward"]["rows"][0]
    assert first["ms"] == {"qla_ops": 0.4, "fla": 2.0}
    assert first["vs_best"] == 5.0


def test_rows_of_several_versions_are_told_apart() -> None:
    newer = timed("qla_ops", 0.7) | {"version": "2"}
    text = make_document([*example(), newer])
    assert "These rows are of several versions of `qla_ops` (1 of 2, 2 of 1); the newest is 2." in text
    assert "several versions" not in make_document(example())


def test_peers_alone_make_a_report_too() -> None:
    backward = make_report(example())["backward"]
    assert backward["geomean_vs_best"] is None
    assert backward["min_vs_best"] is None
    assert backward["geomean_vs"] == {}
    assert set(backward["floor_fraction"]) == {"flash_qla", "fla"}
    assert backward["rows"][0]["refused"] == {}


def recompute(records: list[dict[str, Any]], part: str) -> dict[str, Any]:
    """The report's sums from the rows of a part, a direction or another operator, in the plainest way."""
    newest: dict[Any, dict[str, Any]] = {}
    for record in records:
        measured = record["kind"] in ("time", "refused", "unsupported")
        if measured and record.get("operator", record["direction"]) == part:
            case = record["heads"], record["sequences"], record["gates"]
            newest[case, record["implementation"]] = record
    times: dict[Any, dict[str, float]] = {}
    for (case, name), record in newest.items():
        if record["kind"] == "time":
            times.setdefault(case, {})[name] = record["median_ms"]
    ratios, best = {}, []
    for row in times.values():
        peers = {name: time for name, time in row.items() if name not in ("qla_ops", "portable")}
        if "qla_ops" in row:
            for name, time in row.items():
                ratios.setdefault(name, []).append(time / row["qla_ops"])
            best += [min(peers.values()) / row["qla_ops"]] if peers else []
    ratios.pop("qla_ops", None)
    means = {name: math.prod(found) ** (1 / len(found)) for name, found in ratios.items()}
    return {"rows": len(times), "vs": means, "best": math.prod(best) ** (1 / len(best)) if best else None, "all": best}


def all_rows() -> list[Any]:
    files = row_files(RESULTS)
    return [pytest.param(example(), id="made up"), *(pytest.param(read_records(file), id=file.stem) for file in files)]


@pytest.mark.parametrize("records", all_rows())
def test_the_report_equals_the_rows(records: list[dict[str, Any]]) -> None:
    for part, found in make_report(records).items():
        want = recompute(records, part)
        assert len(found["rows"]) == want["rows"]
        assert found["geomean_vs"] == pytest.approx(want["vs"], rel=2e-3)
        assert found["geomean_vs_best"] == (None if want["best"] is None else pytest.approx(want["best"], rel=2e-3))
        assert found["min_vs_best"] == (None if not want["all"] else pytest.approx(min(want["all"]), rel=1e-3))


def test_the_floor_is_the_longer_of_products_and_bytes() -> None:
    case = make_case("forward", "16:64", "1x32768", "quarter ungated")
    # Per tile: K S, Q S, K^T N, A R, P N for each value head, Q K^T and K K^T for each key head.
    tiles = 32768 // 64
    assert multiply_adds(case) == tiles * (64 * (3 * 64 * 128 * 128 + 2 * 64 * 64 * 128) + 16 * 2 * 64 * 64 * 128)
    assert least_bytes(case) == 2 * 32768 * (2 * 16 * 128 + 2 * 64 * 128) + 2 * 4 * 32768 * 64 + 2 * 4 * 64 * 128 * 128
    floor = floor_of(case, "NVIDIA H200")
    assert floor is not None
    # 2560 clocks per tile without sharing, 384 fewer with four value heads on a key head, 132 multiprocessors.
    assert floor.tensor == pytest.approx(tiles * 64 * (2560 - 384) / 132 / 1.98e9 * 1e3)
    assert floor.memory == pytest.approx(least_bytes(case) / 4.3e12 * 1e3)
    assert floor.milliseconds == max(floor.tensor, floor.memory)
    assert floor_of(case, "another GPU") is None
    assert make_report([timed("fla", 1.0)])["forward"]["rows"][0]["floor_fraction"] == {}


def test_the_backward_floor_counts_its_products_and_gradients() -> None:
    case = make_case("backward", "16:32", "1x64", "quarter ungated")
    assert multiply_adds(case) == 2048 * (32 * 6400 + 16 * 256)
    keys, values = 64 * 16 * 128 * 2, 64 * 32 * 128 * 2
    assert least_bytes(case) == 4 * keys + 3 * values + 4 * (64 * 32 * 4) + 3 * (32 * 128 * 128 * 4)


def test_the_floor_of_an_operator_without_a_correction_has_fewer_products() -> None:
    fewer = multiply_adds(make_case("forward", "16:16", "1x64", "quarter ungated", "simple_gla"))
    assert fewer == 16 * (2 * 64 * 128 * 128 + 2 * 64 * 64 * 128)


def test_fractions_of_the_floor_are_floor_over_time() -> None:
    report = make_report(example())["forward"]
    for row in report["rows"]:
        for name, time in row["ms"].items():
            assert row["floor_fraction"][name] == pytest.approx(row["floor_ms"] / time, rel=1e-3)
    shares = [row["floor_fraction"]["qla_ops"] for row in report["rows"]]
    assert report["floor_fraction"]["qla_ops"] == pytest.approx(math.prod(shares) ** (1 / 3), rel=1e-3)


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == 2.0
    assert geometric_mean([]) is None


def test_tables_are_aligned_and_mark_the_fastest() -> None:
    report = make_report(example())["forward"]
    lines = as_text(times_table(report, "forward")).splitlines()
    assert lines[0].split() == [
        *("heads", "sequences", "gates", "qla_ops", "flashinfer", "fla", "portable", "vs", "best", "peer", "floor"),
    ]
    assert lines[1].split()[:8] == ["2:8", "1x32768", "quarter", "ungated", "0.200*", "refused", "0.800", "–"]
    assert lines[2].split()[:8] == ["16:64", "1x32768", "quarter", "ungated", "0.800*", "1.600", "3.200", "–"]
    assert lines[3].split()[1] == "1x8192"
    assert summary_table(report)[1][1][:3] == ["flashinfer", "2", "1.26×"]


def test_losses_are_said_worst_first() -> None:
    records = [*example(), timed("qla_ops", 1.0, heads="8:32"), timed("fla", 0.5, heads="8:32")]
    assert losses(make_report(records)).splitlines() == [
        "- backward: there is no row of `qla_ops` yet; the peers are measured alone.",
        "- A peer is faster in 2 of 4 rows with `qla_ops` and a peer.",
        "- forward 8:32, 1x32768 (quarter ungated): 1.000 ms, fla 0.500 ms (0.50×)",
        "- forward 16:64, 1x8192 (quarter ungated): 0.500 ms, flashinfer 0.400 ms (0.80×)",
    ]


def test_samples_that_were_too_short_are_said() -> None:
    long, short = timed("qla_ops", 1.0), timed("fla", 0.5, heads="8:32")
    modes = {"mode": "graph", "calls_per_sample": 4}
    assert "samples were shorter" not in make_document([{**long, **modes}])
    text = " ".join(make_document([{**long, **modes}, {**short, **modes}]).split())
    assert "In 1 of these 2 times samples were shorter, down to 2.0 ms" in text


def test_losses_of_the_host_are_said_too() -> None:
    """With the import, which the first call of a process waits for."""
    case = {"heads": "2:8", "sequences": "1x1024"}
    host = [
        {"kind": "host", **case, "implementation": n, "enqueue_us": t} for n, t in (("qla_ops", 99.0), ("fla", 98.0))
    ]
    first = [
        {
            "kind": "first call",
            **case,
            "implementation": name,
            "cache": cache,
            "import_s": 5.0 * (name == "fla"),
            "call_s": s,
        }
        for name, cache, s in (
            ("qla_ops", "cold", 8.0),
            ("fla", "cold", 2.5),
            ("qla_ops", "warm", 1.0),
            ("fla", "warm", 0.1),
        )
    ]
    assert host_losses([*host, *first]) == [
        "- host 2:8, 1x1024: 99.0 us, fla 98.0 us",
        "- first call 2:8, 1x1024, cold cache: 8.0 s, fla 7.5 s",
    ]
    assert host_losses([*host, *first], "fla") == ["- first call 2:8, 1x1024, warm cache: 5.1 s, qla_ops 1.0 s"]
    assert "worst row.\n- host" not in make_document([*example(), *host])
    assert "- host 2:8, 1x1024: 99.0 us, fla 98.0 us" in make_document([*example(), *host])


def test_the_document_holds_every_row_and_refusal() -> None:
    host = {"kind": "host", "heads": "2:8", "sequences": "1x1024", "implementation": "fla", "enqueue_us": 412.4}
    first = {
        "kind": "first call",
        "implementation": "fla",
        "cache": "cold",
        "import_s": 4.0,
        "call_s": 31.25,
        "at_once": 3,
    }
    text = make_document([*example(), host, first], ["benchmarks/forward-heads.png"])
    assert "| 16:64 | 1x8192 | quarter ungated | 0.500 | 0.400 | 1.000 | **0.100** | 0.80× |" in text
    assert "## Not served\n\n- flashinfer, 1 row: has no backward pass" in text
    assert "## Refused\n\n- flashinfer, 1 row: wrong o: relative error 0.3, at most 0.01 is right" in text
    assert "![benchmarks/forward-heads.png](benchmarks/forward-heads.png)" in text
    assert "| fla | 2:8 | 1x1024 | 412 |" in text
    assert "| fla | cold | 4.0 | 31.2 |" in text
    assert "- NVIDIA H200, 132 multiprocessors, driver 580.1, CUDA 13.0, Python 3.12.3. Copy 4.31 TB/s" in text
    assert "| fla | 600 | backward 16:32 1x32768 |" in text
    assert text == make_document([*example(), host, first], ["benchmarks/forward-heads.png"])


def test_a_file_cut_off_in_the_middle_of_a_row_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(timed("fla", 1.0)) + "\n" + '{"kind": "ti')
    file = RecordFile(path)
    file.add(timed("qla_ops", 2.0))
    assert [record["implementation"] for record in read_records(path)] == ["fla", "qla_ops"]


def test_a_line_that_is_no_row_is_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"kind": "time"}\n[1]\n')
    with pytest.raises(QlagenError) as fault:
        read_records(path)
    assert fault.value.message == f"{path}:2 is not a row of measurements"
    assert fault.value.code == "E-BENCH-ROWS"


def test_the_newest_row_counts_also_when_it_is_a_refusal() -> None:
    records = [environment(), timed("fla", 1.0), refused("fla", "broke")]
    assert [row["kind"] for row in latest(records).values()] == ["refused"]
    assert make_report(records) == {}
