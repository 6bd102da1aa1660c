"""Rows with times made up so that the right answers can be worked out by hand."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def environment() -> Record:
    return {
        "kind": "environment",
        "environment": "e1",
        "gpu": "NVIDIA H200",
        "multiprocessors": 132,
        "driver": "580.1",
        "cuda": "13.0",
        "python": "3.12.3",
        "implementations": {"qla_ops": "0.1.0+abc", "fla": "0.6.0"},
        "packages": {"torch": "2.11.0"},
        "copy_tb_per_s": 4.31,
        "product_tflop_per_s": 788.0,
    }


def timed(implementation: str, milliseconds: float, **case: str) -> Record:
    fields = {"direction": "forward", "heads": "16:64", "sequences": "1x32768", "gates": "quarter ungated", **case}
    return {
        "kind": "time",
        **fields,
        "implementation": implementation,
        "version": "1",
        "median_ms": milliseconds,
        "peak_mib": 100.0 * milliseconds,
        "environment": "e1",
    }


def refused(implementation: str, reason: str, **case: str) -> Record:
    record = timed(implementation, 0.0, **case)
    del record["median_ms"], record["peak_mib"]
    return record | {"kind": "refused", "reason": reason}


def example() -> list[Record]:
    """Three forward rows and one backward row without ours."""
    short, few = {"sequences": "1x8192"}, {"heads": "2:8"}
    return [
        environment(),
        timed("qla_ops", 9.0),
        timed("qla_ops", 0.8),
        timed("flashinfer", 1.6),
        timed("fla", 3.2),
        timed("qla_ops", 0.5, **short),
        timed("flashinfer", 0.4, **short),
        timed("fla", 1.0, **short),
        timed("portable", 0.1, **short),
        timed("qla_ops", 0.2, **few),
        timed("fla", 0.8, **few),
        refused("flashinfer", "wrong o: relative error 0.3, at most 0.01 is right", **few),
        timed("fla", 6.0, direction="backward", heads="16:32"),
        timed("flash_qla", 3.0, direction="backward", heads="16:32"),
        refused("flashinfer", "has no backward pass", direction="backward", heads="16:32") | {"kind": "unsupported"},
    ]
