"""CPU emulator of the CUDA that TileLang generates for sm_90a.

The generated source is compiled as C++ against headers that model the instructions it uses: threads are fibers, TMA,
mbarriers, wgmma and the rest are functions. It checks what a kernel computes, how it synchronises under adverse orders
(see `Mode`), barrier counts, register budgets, bounds of shared memory, and proxy fences. It does not see other
memory-ordering faults, clusters or speed, and a pass is no proof of freedom from races.
"""

from __future__ import annotations

from qlagen.verify.emulator.compile import build_emulated, lower_kernel
from qlagen.verify.emulator.kernel import STANDARD_MODES, EmulatedKernel, Mode
from qlagen.verify.emulator.lower import Launch, LoweredKernel, Parameter

__all__ = [
    "STANDARD_MODES",
    "EmulatedKernel",
    "Launch",
    "LoweredKernel",
    "Mode",
    "Parameter",
    "build_emulated",
    "lower_kernel",
]
