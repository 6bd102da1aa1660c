"""The command line: ``qlagen check | explain | show | build | verify | simulate | targets | bench | tune``."""

from __future__ import annotations

from qlagen.cli.main import main

__all__ = ["main"]
