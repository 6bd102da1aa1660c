"""Says once for each operator and reason that the portable implementation takes a call. Never silent, never a flood."""

from __future__ import annotations

import logging
import threading

from qla_ops.runtime.tracing import constant_while_traced

_LOGGER = logging.getLogger("qla_ops")
_LOCK = threading.Lock()
_SEEN: set[tuple[str, str]] = set()


@constant_while_traced
def note_fallback(function: str, reason: str) -> bool:
    """One INFO line for a new (function, reason). Returns whether it was new.

    Its result counts as a constant under `torch.compile`, so that a traced call logs while it is traced.
    """
    with _LOCK:
        if (function, reason) in _SEEN:
            return False
        _SEEN.add((function, reason))
    _LOGGER.info("%s uses the portable implementation: %s", function, reason)
    return True


def forget_fallbacks() -> None:
    """Makes every (function, reason) new again, for tests."""
    with _LOCK:
        _SEEN.clear()
