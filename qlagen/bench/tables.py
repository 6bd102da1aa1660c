"""Rows as tables, for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qlagen.bench.cases import gate_order, head_order, sequence_order
from qlagen.bench.report import Report

Table = tuple[list[str], list[list[str]]]
"""A head and its rows."""


def times_table(report: Report, direction: str) -> Table:
    """Milliseconds of every implementation in every row, the ratio to the best peer, and the floor."""

    def place(row: Report) -> tuple[Any, ...]:
        return head_order(row["heads"]), sequence_order(direction, row["sequences"]), gate_order(row["gates"])

    names = implementations(report)
    ours = any(row["vs_best"] is not None for row in report["rows"])
    head = ["heads", "sequences", "gates", *names, *(["vs best peer"] if ours else []), "floor"]
    return head, [_times_row(row, names, ours) for row in sorted(report["rows"], key=place)]


def _times_row(row: Report, names: Sequence[str], ours: bool) -> list[str]:
    fastest = min(row["ms"].values())
    times = []
    for name in names:
        time = row["ms"].get(name)
        if time is None:
            times.append("refused" if name in row["refused"] else "–")
        else:
            times.append(f"**{milliseconds(time)}**" if time == fastest else milliseconds(time))
    ratio = [ratio_text(row["vs_best"])] if ours else []
    floor = milliseconds(row["floor_ms"]) if row["floor_ms"] else "–"
    return [row["heads"], row["sequences"], row["gates"], *times, *ratio, floor]


def summary_table(report: Report) -> Table:
    """Per implementation: rows, our geometric mean against it, its fraction of the floor."""
    head = ["implementation", "rows", "ours is faster by (geometric mean)", "fraction of the floor (geometric mean)"]
    rows = []
    for name in implementations(report):
        count = sum(name in row["ms"] for row in report["rows"])
        fraction = report["floor_fraction"].get(name)
        ratio = ratio_text(report["geomean_vs"].get(name))
        rows.append([name, str(count), ratio, f"{fraction:.0%}" if fraction else "–"])
    return head, rows


def implementations(report: Report) -> list[str]:
    """Those with a time or a refusal that is worth a column, in the order of the report."""
    return list(report["floor_fraction"])


def milliseconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.2f}"


def ratio_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def as_text(table: Table) -> str:
    """Columns aligned by spaces; the bold marks of Markdown become a star."""
    head, rows = table
    plain = [head, *([_starred(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in plain) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in plain]
    return "\n".join(lines)


def _starred(cell: str) -> str:
    return f"{cell[2:-2]}*" if cell.startswith("**") else cell


def as_markdown(table: Table) -> str:
    head, rows = table
    lines: list[Sequence[Any]] = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
