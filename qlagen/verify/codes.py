"""Every error code of the emulator, with one line on what it means. Codes are stable: tests and tools rely on them.

The C++ sources of the emulator name a code without its prefix ``E-EMU-``.
"""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-EMU-TILELANG": "TileLang cannot be imported.",
    "E-EMU-LOWER": "TileLang cannot lower the kernel.",
    "E-EMU-COMPILER": "There is no fit C++ compiler: the emulator needs g++ 12 or newer.",
    "E-EMU-COMPILE": "The C++ compiler rejects the emulated kernel.",
    "E-EMU-UNMODELLED": "The kernel uses something that the emulator does not model.",
    "E-EMU-ARGUMENT": "A kernel's argument is missing, unknown, or of another shape or type than declared.",
    "E-EMU-LAUNCH": "A launch that the hardware would refuse: threads, grid or shared memory.",
    "E-EMU-ORDER": "Results differ in some bit between orders of execution that the hardware leaves open.",
    "E-EMU-DEADLOCK": "No thread can go on, or all poll memory that nothing changes.",
    "E-EMU-OVER-ARRIVAL": "An mbarrier gets an arrival more than its phase counts.",
    "E-EMU-UNINITIALISED": "An mbarrier is used before it is initialised.",
    "E-EMU-BARRIER-COUNT": "A barrier's number, count or bytes that cannot be, or that its users do not agree on.",
    "E-EMU-PROXY-FENCE": "wgmma or TMA reads what an ordinary write left in shared memory without a proxy fence.",
    "E-EMU-IN-FLIGHT": "A block ends while one of its asynchronous operations is in flight.",
    "E-EMU-DIVERGED": "Lanes of a warp that do not meet in an operation of the whole warp.",
    "E-EMU-SHUFFLE": "A shuffle that reads a lane outside its mask.",
    "E-EMU-REGISTERS": "A setmaxnreg that the hardware cannot follow.",
    "E-EMU-MISALIGNED": "An address that an asynchronous copy, TMA or a matrix load cannot take.",
    "E-EMU-TENSOR-MAP": "A TMA operation that does not fit its tensor map.",
    "E-EMU-SHARED-BOUNDS": "An access outside the block's shared memory.",
    "E-EMU-OUT-OF-BOUNDS": "A write outside a tensor in global memory.",
    "E-EMU-MEMORY": "This machine has no address space for the threads' stacks.",
}
