"""``qlagen bench``: time the emitted library beside its peers, and report."""

from __future__ import annotations

from qlagen.bench.cli import run

__all__ = ["run"]
