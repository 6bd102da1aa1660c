"""Entry points: lower a TileLang kernel for sm_90a and build it for the CPU. No GPU and no CUDA toolkit are needed."""

from __future__ import annotations

from pathlib import Path

from qlagen.verify.emulator.kernel import EmulatedKernel
from qlagen.verify.emulator.lower import LoweredKernel, lower_kernel
from qlagen.verify.emulator.source import emulated_source
from qlagen.verify.emulator.toolchain import build_library, default_directory

__all__ = ["build_emulated", "lower_kernel"]


def build_emulated(lowered: LoweredKernel, name: str, out_dir: Path | None = None) -> EmulatedKernel:
    """Compiles `lowered` with the CPU emulator to a library in `out_dir` (default: the user's cache folder).

    `name` is used in file names and messages. A library that was built from the same text before is used again.
    Raises QlagenError E-EMU-COMPILER, E-EMU-COMPILE or E-EMU-UNMODELLED.
    """
    directory = default_directory() if out_dir is None else out_dir
    return EmulatedKernel(name, lowered, build_library(emulated_source(lowered.source), name, directory))
