"""Every error code of emitting, with one line on what it means. Codes are stable: tests and tools rely on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-EMIT": "A schedule that the kernel templates have no text for, or a text that is no kernel.",
    "E-EMIT-NAME": "An input whose name the kernel's text needs for something else, or two parameters of one name.",
    "E-TEMPLATES": "Kernel templates that are missing, or do not agree with what they are given.",
    "E-KERNEL": "A kernel file that is missing, cannot be imported, or is rejected by TileLang.",
    "E-COMPILE": "nvcc is missing, or rejects a kernel.",
    "E-SLOW": "A kernel that spills registers, or whose wgmma ptxas serialises.",
}
