"""Every error code of the command line itself, with one line on what it means. Codes are stable: tests and tools rely
on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-EMPTY": "No spec is named, and the current folder has no specs/*.toml.",
    "E-LIBRARY": "A folder without a generated library, or a library that cannot be imported or lacks an operator.",
    "E-KERNEL": "A kernel or variant name that the operator does not have.",
}
