"""Every error code of the algebra stage beside those of specs, with one line on what it means. Codes are stable."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-PLOT": "A plot cannot be drawn (matplotlib is not installed) or its file not written.",
    "E-TARGET": "A GPU that this release has no facts for.",
}
