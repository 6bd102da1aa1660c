"""Every error code of tuning, with one line on what it means. Codes are stable: tests and tools rely on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-TUNE-BASE": "The kernels of the schedule file as it is cannot be built, or their results are wrong.",
    "E-TUNE-EDIT": "An entry of a schedule file that is written in a way that tuning cannot edit in place.",
    "E-TUNE-ENTRY": "A part or variant that the schedule file does not have, or that the operator does not use.",
    "E-TUNE-GPU": "There is no GPU to tune on, or this machine cannot measure on it.",
    "E-TUNE-SPEC": "An operator that the benchmark has no inputs and no reference for.",
}
