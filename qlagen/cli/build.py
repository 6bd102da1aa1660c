"""``qlagen build``: specs to the operator library."""

from __future__ import annotations

import argparse

from qlagen.cli.output import print_json, progress, spec_paths
from qlagen.package.build import build_library
from qlagen.package.write import BuildReport
from qlagen.spec.load import load_specs


def run(options: argparse.Namespace) -> int:
    """0, or 1 when ``--check`` finds stale files."""
    with progress("building") as say:
        report = build_library(
            load_specs(spec_paths(options.specs)),
            options.output,
            check=options.check,
            target=options.target,
            schedules=options.schedules,
            progress=say,
        )
    if options.json:
        print_json(as_record(report))
    else:
        _print(report)
    return 1 if report.checked_only and report.stale else 0


def as_record(report: BuildReport) -> dict[str, object]:
    """The JSON form; with ``--check`` `written` and `removed` are what a build would do."""
    return {
        "folder": report.folder,
        "checked_only": report.checked_only,
        "written": list(report.written),
        "removed": list(report.removed),
        "unchanged": report.unchanged,
    }


def _print(report: BuildReport) -> None:
    for path in report.stale:
        state = "removed" if path in report.removed else "written"
        print(f"{'stale' if report.checked_only else state}: {path}")
    changed = "stale" if report.checked_only else "changed"
    print(f"{report.folder}: {report.unchanged} files up to date, {len(report.stale)} {changed}")
    if report.checked_only and report.stale:
        print("run `qlagen build` and commit the result")
