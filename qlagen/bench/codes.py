"""Every error code of benchmarking, with one line on what it means. Codes are stable: tests and tools rely on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-BENCH-CASE": "A part, direction, head count, sequence label or gate kind that the benchmark does not have.",
    "E-BENCH-GPU": "There is no GPU, or this machine cannot measure on it.",
    "E-BENCH-LIB": "An implementation that is not known, or none that can run here.",
    "E-BENCH-ROWS": "A file of rows that has none, or a line that is no record.",
    "E-BENCH-PLOT": "Plots need matplotlib, which is not installed.",
}
