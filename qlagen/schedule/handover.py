"""Shared memory handed between the threads of one role: where a named barrier, and a proxy fence, must stand.

A warp's mbarrier arrival orders only what crosses roles. What a role writes to a ring and reads itself needs a named
barrier between write and read, and between the last read of a slot and its next write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from qlagen.errors import QlagenError
from qlagen.schedule.model import Instruction, Ring, Step


@dataclass(frozen=True)
class Hazard:
    """The step at `position` uses `ring` before a named barrier, or even (`fence`) before a proxy fence."""

    position: int
    ring: str
    step: str
    fence: bool


@dataclass
class _Slot:
    written: bool = False
    """Written since the last named barrier."""
    fenced: bool = True
    """A proxy fence came after the write."""
    published: bool = True
    """A named barrier came after that fence."""
    read: bool = False
    """Read since the last named barrier."""
    flying: int = 0
    """wgmma groups in flight that read it."""


@dataclass
class _Walk:
    """One role's loop, run for a few iterations."""

    own: Mapping[str, Ring]
    slots: dict[tuple[str, int], _Slot] = field(default_factory=dict)
    flight: list[list[_Slot]] = field(default_factory=list)

    def slot(self, ring: str, iteration: int) -> _Slot:
        return self.slots.setdefault((ring, iteration % self.own[ring].stages), _Slot())

    def visit(self, instruction: Instruction, iteration: int) -> tuple[str, bool] | None:
        """A ring used too early, and whether a fence is missing too."""
        if instruction.kind == "sync":
            for slot in self.slots.values():
                slot.written = slot.read = False
                slot.published = slot.published or slot.fenced
        elif instruction.kind == "fence":
            for slot in self.slots.values():
                slot.fenced = True
        elif instruction.kind == "wait_groups":
            while len(self.flight) > instruction.groups:
                for slot in self.flight.pop(0):
                    slot.flying -= 1
                    slot.read = True
        elif instruction.step is not None:
            return self._step(instruction.step, iteration)
        return None

    def _step(self, step: Step, iteration: int) -> tuple[str, bool] | None:
        asynchronous = step.kind == "gemm"
        read = {ring: self.slot(ring, iteration) for ring in step.rings if ring in self.own}
        for ring, slot in read.items():
            if slot.written or (asynchronous and not slot.published):
                return ring, asynchronous and not slot.fenced
        for slot in read.values():
            slot.read = slot.read or not asynchronous
            slot.flying += asynchronous
        if asynchronous:
            self.flight.append(list(read.values()))
        if step.scratch is not None:
            slot = self.slot(step.scratch, iteration)
            if slot.read:
                return step.scratch, False
            slot.read = True
        if step.ring_out is not None and step.ring_out in self.own:
            slot = self.slot(step.ring_out, iteration)
            if slot.read or slot.flying:
                return step.ring_out, False
            slot.written, slot.fenced, slot.published = True, False, False
        return None


def find_hazard(role: str, body: Sequence[Instruction], rings: Iterable[Ring]) -> Hazard | None:
    """The first use of a ring that the role hands to itself without what must stand before it."""
    own = {ring.name: ring for ring in rings if ring.producer == role and role in ring.consumers}
    if not own:
        return None
    walk = _Walk(own)
    for iteration in range(2 * max(ring.stages for ring in own.values()) + 1):
        for position, instruction in enumerate(body):
            found = walk.visit(instruction, iteration)
            if found is not None:
                step = instruction.step.name if instruction.step is not None else ""
                return Hazard(position, found[0], step, found[1])
    return None


def insert_syncs(role: str, body: Sequence[Instruction], rings: Sequence[Ring]) -> tuple[Instruction, ...]:
    """The body with the fences and named barriers that its own rings need."""
    lines = list(body)
    while (hazard := find_hazard(role, lines, rings)) is not None:
        added = [Instruction("fence")] if hazard.fence else []
        lines[hazard.position : hazard.position] = [*added, Instruction("sync")]
    return tuple(lines)


def check_handover(role: str, body: Sequence[Instruction], rings: Iterable[Ring]) -> None:
    """Raises E-SYNC or E-FENCE for a ring that threads of one role hand to each other unguarded."""
    hazard = find_hazard(role, body, rings)
    if hazard is None:
        return
    if hazard.fence:
        message = f"role {role}: {hazard.step} reads {hazard.ring} through the async proxy without a fence before it"
        raise QlagenError("E-FENCE", message, hints=["put a fence between the write and the named barrier"])
    message = f"role {role}: {hazard.step} uses {hazard.ring} before all threads are done with it"
    raise QlagenError("E-SYNC", message, hints=["put a named barrier of the role's threads before the step"])
