"""Exit codes."""

from __future__ import annotations

from qlagen.errors import QlagenError

OK, FAILED, BAD_INPUT, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 130
FAILED_CHECKS = frozenset({"E-PROOF"})
"""Codes of faults that mean a failed check rather than bad input."""


def status_of(fault: QlagenError) -> int:
    """The exit code of a fault that a user caused."""
    return FAILED if fault.code in FAILED_CHECKS else BAD_INPUT
