"""Every error code of packaging, with one line on what it means. Codes are stable: tests and tools rely on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-RESERVED": "An operator or input with a name that the library needs for itself.",
    "E-EMPTY": "No spec to build a library from.",
    "E-OUTPUT": "A folder that cannot be written, or that holds files but no generated library.",
}
