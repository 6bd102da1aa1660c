"""PNG plots of Pareto sets. Needs matplotlib, which nothing else in this stage does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from qlagen.algebra.report import Report
from qlagen.errors import QlagenError

_LABEL = 60


def draw_pareto(report: Report, path: Path) -> None:
    """Work against the serial chain, colour for memory traffic: one panel for each direction that the report has.

    Raises E-PLOT when matplotlib is not installed, or the file cannot be written.
    """
    pyplot = _pyplot()
    panels = [("forward", _forward_points(report))]
    if report.backward is not None:
        panels.append(("backward", _backward_points(report)))
    figure, axes = pyplot.subplots(1, len(panels), figsize=(7.5 * len(panels), 5.5), squeeze=False)
    for axis, (title, points) in zip(axes[0], panels, strict=True):
        _draw_panel(pyplot, axis, f"{report.derivation.spec.name}, {title}", points)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=120, metadata={"Software": None}, format="png")
    except OSError as fault:
        raise QlagenError("E-PLOT", f"cannot write {path}: {fault.strerror or fault}") from None
    finally:
        pyplot.close(figure)


Labelled = tuple[float, float, float, str]
"""Multiply-adds, serial clocks, bytes and what the point is."""


def _forward_points(report: Report) -> list[Labelled]:
    return [
        (point.bill.multiply_adds, point.bill.serial_clocks, point.bill.hbm_bytes, point.plan.describe())
        for point in report.forward.points
    ]


def _backward_points(report: Report) -> list[Labelled]:
    found: list[Labelled] = []
    for plan in report.plans:
        saved = " ".join(plan.saved) or "nothing"
        kernels = "chain | gradients" if plan.split else "one kernel"
        states = "all states" if plan.checkpoint == 1 else f"states / {plan.checkpoint}"
        bill, text = plan.bill, f"{saved}, {states}, {kernels}"
        found.append((bill.multiply_adds, bill.serial_clocks, bill.hbm_bytes, text))
    return found


def _draw_panel(pyplot: Any, axis: Any, title: str, points: Sequence[Labelled]) -> None:
    work, serial = [point[0] / 1e6 for point in points], [point[1] for point in points]
    memory = [point[2] / 1024 for point in points]
    drawn = axis.scatter(work, serial, c=memory, cmap="viridis_r", s=60, edgecolors="black")
    pyplot.colorbar(drawn, ax=axis, label="memory traffic, KB")
    best = {min(range(len(points)), key=lambda i: points[i][k]) for k in range(3)}
    for place in sorted(best):
        right = work[place] > (min(work) + max(work)) / 2
        axis.annotate(
            points[place][3][:_LABEL],
            (work[place], serial[place]),
            xytext=(-4 if right else 4, 6),
            textcoords="offset points",
            horizontalalignment="right" if right else "left",
        )
    axis.set_xlabel("million multiply-adds")
    axis.set_ylabel("serial clocks (modelled)")
    axis.set_title(f"{title}: per chunk and value head", fontsize=10)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError:
        hints = ["pip install 'qlagen[plots]'"]
        raise QlagenError("E-PLOT", "plots need matplotlib, which is not installed", hints=hints) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
