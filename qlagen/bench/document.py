"""docs/benchmarks.md, written from the rows and from nothing else."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from qlagen.bench.cases import DIRECTIONS
from qlagen.bench.peers import OURS
from qlagen.bench.records import Record, environments, latest, latest_of, side_by_side
from qlagen.bench.report import Report, make_report
from qlagen.bench.tables import as_markdown, milliseconds, ratio_text, summary_table, times_table
from qlagen.bench.timing import SAMPLE_SECONDS

_METHOD = """\
Each row runs every implementation on the same inputs, in one process, in turns. A time is the median over samples; a
sample is the replay of a CUDA graph of many calls, about 4 ms long. Inputs that fit into the L2 cache are rotated
over three times its size. A library whose interface takes lengths on the host gets them there; the others read them
back before the capture. Everything is compiled and tuned before it is timed. A row is written only for results that
agree with a float64 reference; what is refused, and what a library does not serve, is listed below. Gates: *quarter
ungated* has a quarter of the heads with g = 0 and the rest with g = logsigmoid(x)/16; *model init* has the gates of a
Qwen3-Next layer at initialisation. All heads are 128 wide; heads are written key:value. Initial and final states are
in every row. The floor is the longer of two times: the products of the 64-token chunked form on all tensor cores at
full clock, and every input and output moved once at the measured copy bandwidth. Reproduce with `qlagen bench run`,
then `qlagen bench report`."""

_SHORT = 0.75
"""Of the length that a sample should have."""


def make_document(records: Sequence[Record], plots: Sequence[str] = (), ours: str = OURS) -> str:
    """The Markdown text. `plots` are file names beside the document."""
    report = make_report(records, ours)
    parts = ["# Benchmarks", "Written by `qlagen bench report --docs` from the measured rows; do not edit by hand."]
    lost = [losses(report, ours), *host_losses(records, ours)]
    parts += ["## Where we lose", "\n".join(lost), _ages(records, ours)]
    for direction, found in report.items():
        title = direction.capitalize() if direction in DIRECTIONS else f"Forward of `{direction}`"
        parts += [f"## {title}", as_markdown(summary_table(found)), _sentence(found)]
        parts += [f"![{plot}]({plot})" for plot in plots if plot.rsplit("/", 1)[-1].startswith(direction)]
        parts += ["Milliseconds; the fastest in bold.", as_markdown(times_table(found, direction))]
    parts += _host(records)
    parts += _reasons(records, "refused", "Refused")
    parts += _reasons(records, "unsupported", "Not served")
    parts += ["## Method", _METHOD, _shortest(records), "## Machines", _machines(records)]
    return "\n\n".join(part for part in parts if part) + "\n"


def losses(report: Report, ours: str = OURS) -> str:
    """In plain words: the rows in which a peer is faster, the worst first."""
    rows = [(direction, row) for direction, found in report.items() for row in found["rows"]]
    compared = [(direction, row) for direction, row in rows if row["vs_best"] is not None]
    missing = [direction for direction, found in report.items() if all(row["vs_best"] is None for row in found["rows"])]
    lines = [f"- {direction}: there is no row of `{ours}` yet; the peers are measured alone." for direction in missing]
    slower = sorted((pair for pair in compared if pair[1]["vs_best"] < 1), key=lambda pair: pair[1]["vs_best"])
    if compared:
        lines.append(f"- A peer is faster in {len(slower)} of {len(compared)} rows with `{ours}` and a peer.")
    for direction, row in slower:
        best = row["best_peer"]
        lines.append(
            f"- {direction} {row['heads']}, {row['sequences']} ({row['gates']}): {milliseconds(row['ms'][ours])} ms, "
            f"{best} {milliseconds(row['ms'][best])} ms ({ratio_text(row['vs_best'])})"
        )
    return "\n".join(lines)


def host_losses(records: Sequence[Record], ours: str = OURS) -> list[str]:
    """The same of what the host does: enqueueing, and the first call of a process with its imports, in each cache."""
    times: dict[tuple[str, str], dict[str, float]] = {}
    for case, unit, implementation, taken in _host_times(records):
        times.setdefault((case, unit), {})[implementation] = taken
    lines = []
    for (case, unit), found in times.items():
        best = min(found, key=lambda name: found[name])
        if ours in found and best != ours:
            lines.append(f"- {case}: {found[ours]:.1f} {unit}, {best} {found[best]:.1f} {unit}")
    return lines


def _host_times(records: Sequence[Record]) -> Iterator[tuple[str, str, str, float]]:
    """Case, unit, implementation and time."""
    for r in latest_of(records, "host"):
        yield f"host {r.get('heads')}, {r.get('sequences')}", "us", r["implementation"], r["enqueue_us"]
    for r in latest_of(records, "first call"):
        case = f"first call {r.get('heads')}, {r.get('sequences')}, {r['cache']} cache"
        yield case, "s", r["implementation"], r["import_s"] + r["call_s"]


def _ages(records: Sequence[Record], ours: str) -> str:
    """How many rows each version of ours has, when there are several: old rows say nothing about new kernels."""
    rows = [row for row in side_by_side(records, ours) if row["implementation"] == ours and row["kind"] == "time"]
    counts = Counter(row["version"] for row in rows)
    if len(counts) < 2:
        return ""
    newest = [row["version"] for row in records if row["kind"] == "time" and row["implementation"] == ours][-1]
    text = ", ".join(f"{count} of {version}" for version, count in counts.items())
    said = f"These rows are of several versions of `{ours}` ({text}); the newest is {newest}."
    return textwrap.fill(said, width=120, break_long_words=False)


def _sentence(found: Report) -> str:
    if found["geomean_vs_best"] is None:
        return ""
    return (
        f"Against the best peer of each row: {ratio_text(found['geomean_vs_best'])} in the geometric mean, "
        f"{ratio_text(found['min_vs_best'])} in the worst row."
    )


def _shortest(records: Sequence[Record]) -> str:
    """Samples that were shorter than they should be: then the launch of a replay is part of the times."""
    rows = [row for row in latest(records).values() if row["kind"] == "time" and row.get("mode") == "graph"]
    lengths = [row["median_ms"] * row["calls_per_sample"] for row in rows]
    short = [length for length in lengths if length < _SHORT * 1e3 * SAMPLE_SECONDS]
    if not short:
        return ""
    said = (
        f"In {len(short)} of these {len(rows)} times samples were shorter, down to {min(short):.1f} ms: they were "
        "measured when the host's time for a call decided how many calls a sample has. The launch of a replay, "
        "some tens of microseconds, is part of them, and changes them by a few percent from run to run."
    )
    return textwrap.fill(said, width=120, break_long_words=False)


def _host(records: Sequence[Record]) -> list[str]:
    parts = []
    enqueue = list(latest_of(records, "host"))
    if enqueue:
        rows = [[r["implementation"], r["heads"], r["sequences"], f"{r['enqueue_us']:.0f}"] for r in enqueue]
        head = ["implementation", "heads", "sequences", "µs of the CPU per call"]
        parts += [
            "## Host",
            "Time to enqueue one forward call, without waiting for the GPU.",
            as_markdown((head, rows)),
        ]
    first = list(latest_of(records, "first call"))
    if first:
        head = ["implementation", "cache", "import, s", "first forward call, s"]
        rows = [[r["implementation"], r["cache"], f"{r['import_s']:.1f}", f"{r['call_s']:.1f}"] for r in first]
        at_once = max(r["at_once"] for r in first)
        text = f"First call of a fresh process, with {at_once} libraries starting at once on one machine."
        parts += [text, as_markdown((head, rows))]
    size = list(latest_of(records, "size"))
    if size:
        head = ["implementation", "installed, MiB", "packed, MiB"]
        rows = [[r["implementation"], str(r["installed_mib"]), str(r.get("wheel_mib", "–"))] for r in size]
        parts += [as_markdown((head, rows))]
    return parts + _memory(records)


def _memory(records: Sequence[Record]) -> list[str]:
    """The largest row of each implementation."""
    most: dict[str, Record] = {}
    for row in latest(records).values():
        if row["kind"] == "time" and row["peak_mib"] >= most.get(row["implementation"], row)["peak_mib"]:
            most[row["implementation"]] = row
    if not most:
        return []
    head = ["implementation", "most memory of a call, MiB", "in"]
    rows = [
        [n, f"{r['peak_mib']:.0f}", f"{r['direction']} {r['heads']} {r['sequences']}"]
        if round(r["peak_mib"])
        else [n, "–", "–"]
        for n, r in most.items()
    ]
    text = "Memory that a call allocates, its results included; –: none through torch."
    return [text, as_markdown((head, rows))]


def _reasons(records: Sequence[Record], kind: str, title: str) -> list[str]:
    """Why there is no time, equal reasons together."""
    reasons: dict[tuple[str, str], int] = {}
    for row in latest(records).values():
        if row["kind"] == kind:
            key = row["implementation"], row["reason"]
            reasons[key] = reasons.get(key, 0) + 1
    lines = [f"- {name}, {count} row{'s' * (count > 1)}: {reason}" for (name, reason), count in reasons.items()]
    wrapped = [textwrap.fill(line, 120, subsequent_indent="  ", break_on_hyphens=False) for line in lines]
    return [f"## {title}", "\n".join(wrapped)] if lines else []


def _machines(records: Iterable[Record]) -> str:
    lines = []
    for record in environments(records).values():
        if "gpu" not in record:
            continue
        versions = ", ".join(f"{name} {version}" for name, version in _versions(record))
        ceilings = ""
        if "copy_tb_per_s" in record:
            ceilings = f" Copy {record['copy_tb_per_s']} TB/s, bf16 product {record['product_tflop_per_s']} TFLOP/s."
        text = (
            f"- {record['gpu']}, {record['multiprocessors']} multiprocessors, driver {record['driver']}, "
            f"CUDA {record['cuda']}, Python {record['python']}.{ceilings} {versions}."
        )
        lines.append(textwrap.fill(text, width=120, subsequent_indent="  ", break_long_words=False))
    return "\n".join(dict.fromkeys(lines))


def _versions(record: Record) -> list[tuple[str, Any]]:
    return [*record["implementations"].items(), *record["packages"].items()]
