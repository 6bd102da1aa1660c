"""PNG plots of a report. Needs matplotlib, which nothing else here does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qlagen.bench.cases import DIRECTIONS, head_order, sequence_order
from qlagen.bench.peers import OURS
from qlagen.bench.report import Report
from qlagen.errors import QlagenError

_COLOURS = {
    "qla_ops": "#c0392b",
    "flash_qla": "#2471a3",
    "flashinfer": "#1e8449",
    "fla": "#b9770e",
    "cudnn": "#7d3c98",
    "portable": "#7f8c8d",
}
_USUAL = "quarter ungated"


def draw(report: Report, folder: Path, gpu: str = "", ours: str = OURS) -> list[Path]:
    """Two plots for each direction of a report: ratios over heads and sequences, time against length."""
    pyplot = _pyplot()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for direction, found in report.items():
        if direction not in DIRECTIONS:
            continue  # a dozen rows are read from their table
        rows = [row for row in found["rows"] if row["gates"] == _USUAL] or found["rows"]
        for kind, draw_one in (("heads", _heat_map), ("length", _lengths)):
            figure = draw_one(pyplot, rows, direction, f", {gpu}" if gpu else "", ours)
            if figure is None:
                continue
            path = folder / f"{direction}-{kind}.png"
            figure.savefig(path, dpi=110, bbox_inches="tight", metadata={"Software": None})
            pyplot.close(figure)
            written.append(path)
    return written


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        hints = ["pip install 'qlagen[plots]'"]
        raise QlagenError("E-BENCH-PLOT", "plots need matplotlib, which is not installed", hints=hints) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _heat_map(pyplot: Any, rows: Sequence[Report], direction: str, where: str, ours: str) -> Any:
    """Cells: the best peer's time over ours; without ours, the fastest implementation's fraction of the floor."""
    import numpy as np

    compared = any(row["vs_best"] is not None for row in rows)
    cells = {(row["heads"], row["sequences"]): _cell(row, compared) for row in rows}
    heads = sorted({head for head, _ in cells}, key=head_order)
    sequences = sorted({sequence for _, sequence in cells}, key=lambda label: sequence_order(direction, label))
    values = np.array([[cells.get((head, s), (np.nan, ""))[0] for s in sequences] for head in heads])
    figure, axes = pyplot.subplots(figsize=(2.5 + 0.72 * len(sequences), 1.9 + 0.5 * len(heads)))
    limits = {"vmin": -1.0, "vmax": 1.0, "cmap": "RdYlGn"} if compared else {"vmin": 0.0, "vmax": 1.0, "cmap": "YlGn"}
    axes.imshow(np.log2(values) if compared else values, aspect="auto", **limits)
    for y, head in enumerate(heads):
        for x, sequence in enumerate(sequences):
            value, text = cells.get((head, sequence), (0.0, ""))
            dark = not 0.6 < value < 1.7 if compared else value > 0.6
            axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white" if dark else "black")
    axes.set_xticks(range(len(sequences)), sequences, rotation=55, ha="right", fontsize=8)
    axes.set_yticks(range(len(heads)), heads, fontsize=9)
    axes.set_ylabel("heads, key:value")
    what = (
        f"best peer's time / {ours}'s (above 1: ours is faster)"
        if compared
        else "the fastest peer's share of the floor"
    )
    axes.set_title(f"{direction.capitalize()}{where}: {what}", fontsize=10)
    return figure


def _cell(row: Report, compared: bool) -> tuple[float, str]:
    if compared:
        value = row["vs_best"]
        return (float("nan"), "") if value is None else (value, f"{value:.2f}")
    value = max(row["floor_fraction"].values(), default=None)
    return (float("nan"), "") if value is None else (value, f"{value:.0%}")


def _lengths(pyplot: Any, rows: Sequence[Report], direction: str, where: str, ours: str) -> Any:
    """One panel per head count with at least two lengths of a single sequence; both axes logarithmic."""
    single: dict[str, list[Report]] = {}
    for row in rows:
        if row["sequences"].startswith("1x"):
            single.setdefault(row["heads"], []).append(row)
    panels = [head for head in sorted(single, key=head_order) if len(single[head]) > 1]
    if not panels:
        return None
    columns = min(3, len(panels))
    lines = -(-len(panels) // columns)
    figure, grid = pyplot.subplots(lines, columns, figsize=(4.4 * columns, 3.3 * lines), squeeze=False)
    names = list(dict.fromkeys(name for row in rows for name in row["ms"]))
    for place, axes in enumerate(grid.flat):
        if place >= len(panels):
            axes.set_axis_off()
            continue
        _panel(axes, sorted(single[panels[place]], key=lambda row: row["tokens"]), names, ours)
        axes.set_title(f"heads {panels[place]}", fontsize=10)
    handles = {h: label for axes in grid.flat for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    unique = {label: handle for handle, label in handles.items()}
    figure.legend(unique.values(), unique.keys(), loc="lower center", ncol=len(unique), bbox_to_anchor=(0.5, -0.02))
    figure.suptitle(f"{direction.capitalize()}{where}: one sequence, time against length", fontsize=11)
    figure.tight_layout(rect=(0, 0.03, 1, 0.99))
    return figure


def _panel(axes: Any, rows: Sequence[Report], names: Sequence[str], ours: str) -> None:
    for name in names:
        points = [(row["tokens"], row["ms"][name]) for row in rows if name in row["ms"]]
        if points:
            width = 2.2 if name == ours else 1.4
            axes.plot(*zip(*points, strict=True), "o-", label=name, color=_COLOURS.get(name), lw=width, ms=3.5)
    floor = [(row["tokens"], row["floor_ms"]) for row in rows if row["floor_ms"]]
    if floor:
        axes.plot(*zip(*floor, strict=True), "k:", label="floor", lw=1)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = [row["tokens"] for row in rows]
    axes.set_xticks(ticks, [f"{tick // 1024}k" if tick % 1024 == 0 else str(tick) for tick in ticks], fontsize=8)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel("tokens", fontsize=8)
    axes.set_ylabel("ms", fontsize=8)
    axes.grid(alpha=0.3)
