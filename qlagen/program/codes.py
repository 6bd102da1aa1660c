"""Every error code of the program stage, with one line on what it means. Codes are stable: tests and tools rely on
them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-UNSUPPORTED": "An operator that is right, but that kernels cannot run yet; the portable implementation can.",
    "E-PROGRAM": "A form that tile operations cannot express, or a program that is not well formed.",
}
