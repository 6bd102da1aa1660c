"""``qlagen tune``: faster schedule parameters, measured on this GPU."""

from __future__ import annotations

from qlagen.tune.cli import run

__all__ = ["run"]
