"""Every error code of scheduling, with one line on what it means. Codes are stable: tests and tools rely on them."""

from __future__ import annotations

CODES: dict[str, str] = {
    "E-TARGET": "A GPU that this release has no facts for.",
    "E-VARIANT": "A schedule file without a variant that fits the program.",
    "E-DIMENSION": "Sizes of C, K, V or of the value tile that the kernels cannot have.",
    "E-TILE": "A product that contracts over V where a CTA has some of its columns only.",
    "E-HEADS": "A program that cannot be done for several value heads at once.",
    "E-PLACE": "An operation in a role that cannot do it.",
    "E-ORIENT": "No orientation keeps what depends on the carried value in registers, tiled over V.",
    "E-ORDER": "No legal issue order.",
    "E-PIN": "A pinned delay that fits no order.",
    "E-ESTIMATE": "A role needs more registers than it has.",
    "E-REGISTERS": "Register budgets that the hardware cannot give.",
    "E-SHARED": "More shared memory than a CTA can have.",
    "E-MOVERS": "More mover warps than allowed.",
    "E-ARRIVALS": "A barrier whose count is not the number of arrivals, or whose bytes are not those of its loads.",
    "E-FLIGHT": "Registers or slots used while a wgmma group still reads or writes them.",
    "E-GROUPS": "A wgmma group left in flight over the loop's edge.",
    "E-FENCE": "A generic write announced to wgmma, or stored by TMA, without a fence.",
    "E-SYNC": "Shared memory handed between threads of one role without a named barrier.",
    "E-RACE": "A slot read before it is filled or overwritten before it is released.",
    "E-PHASE": "A wait that may see another phase's parity.",
    "E-DEADLOCK": "Roles that wait for each other.",
}
