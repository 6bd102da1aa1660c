"""Static checks of a finished schedule. Each fault has its own code and says what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from qlagen.errors import QlagenError
from qlagen.schedule.handover import check_handover
from qlagen.schedule.model import Barrier, Instruction, Ring, Role, Schedule, Step
from qlagen.schedule.protocol import check_items, check_protocol
from qlagen.schedule.target import Target, load_target


def check_schedule(schedule: Schedule, target: Target | None = None) -> None:
    """Check budgets, arrive counts, registers and slots in flight, fences, hand-over between threads, and the barrier
    protocol. `target`: the GPU, sm_90a unless given.

    Raises E-SHARED, E-REGISTERS, E-ESTIMATE, E-MOVERS, E-ARRIVALS, E-FLIGHT, E-GROUPS, E-FENCE, E-SYNC, E-RACE,
    E-PHASE and E-DEADLOCK.
    """
    target = target or load_target("sm_90a")
    check_shared_memory(schedule, target)
    check_registers(schedule, target)
    check_movers(schedule)
    check_arrivals(schedule)
    for role in schedule.roles:
        check_flight(schedule, role)
        check_fences(schedule, role)
        check_handover(role.name, role.body, schedule.rings)
    check_protocol(schedule.roles, schedule.rings, schedule.barriers)
    if schedule.options.persistent:
        check_items(schedule.roles, schedule.rings, schedule.barriers)


def check_shared_memory(schedule: Schedule, target: Target) -> None:
    limit = target.shared_limit(schedule.options.ctas_per_sm)
    needed = schedule.shared_bytes + target.shared_alignment
    if needed > limit:
        largest = sorted(schedule.rings, key=lambda ring: -ring.bytes)[:3]
        notes = [f"the largest rings: {', '.join(f'{r.name} {r.bytes} ({r.stages} stages)' for r in largest)}"]
        message = f"{needed} bytes of shared memory with alignment, a CTA can have {limit}"
        raise QlagenError("E-SHARED", message, notes=notes, hints=["use fewer stages or a smaller value tile"])


def check_registers(schedule: Schedule, target: Target) -> None:
    """Budgets are possible, and every role's estimate is within its own."""
    options = schedule.options
    for name, registers in options.registers:
        if registers % target.register_granule or not target.least_registers <= registers <= target.most_registers:
            message = f"{registers} registers for role {name}: setmaxnreg takes multiples of {target.register_granule}"
            message += f" from {target.least_registers} to {target.most_registers}"
            raise QlagenError("E-REGISTERS", message)
    even = target.registers_without_setmaxnreg(schedule.threads, options.ctas_per_sm)
    if options.registers:
        _check_register_file(schedule, target)
        _check_launch(schedule, target, even)
    for role in schedule.roles:
        budget = role.registers if role.registers is not None else even
        if role.estimate > budget:
            message = f"role {role.name} needs about {role.estimate} registers per thread, and has {budget}"
            hints = ["give the role more registers, or use a smaller value tile"]
            raise QlagenError("E-ESTIMATE", message, hints=hints)


def _check_register_file(schedule: Schedule, target: Target) -> None:
    compute = [role for role in schedule.roles if role.kind == "compute"]
    rest = schedule.threads - 32 * sum(role.warps for role in compute)
    movers = dict(schedule.options.registers).get("movers", 0)
    for role in schedule.roles:
        if role.registers is None:
            message = f"the schedule sets registers, but not those of role {role.name}"
            raise QlagenError("E-REGISTERS", message, hints=["set them for every role, or for none"])
    total = sum(32 * role.warps * (role.registers or 0) for role in compute) + rest * movers
    limit = target.register_pool(schedule.threads, schedule.options.ctas_per_sm)
    if total > limit:
        parts = [f"{role.name} {32 * role.warps} x {role.registers}" for role in compute]
        parts.append(f"movers {rest} x {movers}")
        message = f"{total} registers per CTA, and {limit} are there for {schedule.threads} threads"
        raise QlagenError("E-REGISTERS", message, notes=[", ".join(parts)], hints=["lower a role's registers"])


def _check_launch(schedule: Schedule, target: Target, even: int) -> None:
    """ptxas takes a product only if the registers of the launch hold its accumulators, whatever setmaxnreg adds."""
    made = {i.step.writes for role in schedule.roles for i in role.body if i.step is not None and i.step.kind == "gemm"}
    largest = max((f.registers for f in schedule.fragments if made.intersection(f.values)), default=0)
    needed = largest + target.overhead_state
    if needed > even:
        message = f"a product needs about {needed} registers per thread, and the launch gives {even}"
        notes = [f"{schedule.threads} threads, {schedule.options.ctas_per_sm} CTAs per SM; setmaxnreg comes too late"]
        raise QlagenError("E-REGISTERS", message, notes=notes, hints=["ask for fewer CTAs per SM"])


def check_movers(schedule: Schedule) -> None:
    movers = [role for role in schedule.roles if role.kind == "mover"]
    if len(movers) > schedule.options.mover_warps:
        message = f"{len(movers)} mover warps, at most {schedule.options.mover_warps} are allowed"
        raise QlagenError("E-MOVERS", message, notes=[", ".join(role.name for role in movers)])


def check_arrivals(schedule: Schedule) -> None:
    """Every barrier's count is the arrivals of one iteration; its bytes are those of the loads that it announces."""
    rings = {ring.name: ring for ring in schedule.rings}
    for barrier in schedule.barriers:
        arrivals = sum(r.warps for r in schedule.roles for i in r.body if _arrives(i, barrier))
        if arrivals != barrier.count:
            message = f"{barrier.name} counts to {barrier.count}, and {arrivals} arrivals come in one iteration"
            raise QlagenError("E-ARRIVALS", message, hints=["an arrival is one per warp of the role that makes it"])
        landing = [rings[r] for r in barrier.rings if rings[r].load is not None and len(rings[r].shape) == 2]
        expected = 0 if barrier.releases else sum(ring.bytes // ring.stages for ring in landing)
        if expected != barrier.transaction_bytes:
            message = f"{barrier.name} expects {barrier.transaction_bytes} bytes, its loads bring {expected}"
            raise QlagenError("E-ARRIVALS", message)


def _arrives(instruction: Instruction, barrier: Barrier) -> bool:
    return instruction.kind == "arrive" and instruction.barrier == barrier.name


def check_flight(schedule: Schedule, role: Role) -> None:
    """While a wgmma group is in flight its result is not read, none of its registers is overwritten, and no slot that
    it reads is released; no group is in flight over the loop's edge."""
    fragment = dict(schedule.fragment_of)
    releases = {barrier.name: barrier.rings for barrier in schedule.barriers if barrier.releases}
    flight: list[Step] = []
    for instruction in role.body:
        if instruction.kind == "wait_groups":
            flight = flight[max(0, len(flight) - instruction.groups) :]
        elif instruction.kind == "arrive":
            _check_release(role, flight, releases.get(instruction.barrier or "", ()), instruction.barrier or "")
        elif instruction.step is not None:
            _check_step_in_flight(role, flight, instruction.step, fragment.__getitem__)
            flight += [instruction.step] if instruction.step.kind == "gemm" else []
    if flight:
        message = f"role {role.name}: the product {flight[-1].name} is in flight over the loop's edge"
        hint = "end the iteration with wait_groups(0): ptxas serialises all products otherwise"
        raise QlagenError("E-GROUPS", message, hints=[hint])


def _check_release(role: Role, flight: Iterable[Step], rings: Iterable[str], barrier: str) -> None:
    for gemm in flight:
        for ring in rings:
            if ring in gemm.rings:
                message = f"role {role.name} releases {ring} through {barrier} while {gemm.name} still reads it"
                raise QlagenError("E-FLIGHT", message, hints=["wait for the product's group before the arrival"])


def _check_step_in_flight(role: Role, flight: Iterable[Step], step: Step, fragment: Callable[[str], str]) -> None:
    for gemm in flight:
        result = fragment(gemm.writes or "")
        chained = step.kind == "gemm" and step.writes is not None and fragment(step.writes) == result
        if any(fragment(read) == result for read in step.reads):
            what = f"{step.name} reads the result of {gemm.name}"
        elif step.writes is not None and fragment(step.writes) in (result, *map(fragment, gemm.reads)):
            what = f"{step.name} overwrites registers of {gemm.name}"
        else:
            continue
        message = f"role {role.name}: {what} while it is in flight"
        hint = "put wait_groups before the step" if not chained else "wait for the product that is accumulated onto"
        raise QlagenError("E-FLIGHT", message, hints=[hint])


def check_fences(schedule: Schedule, role: Role) -> None:
    """A generic write that wgmma of another role reads is fenced before it is announced; one that only TMA reads, by
    the role that stores it, between its wait for the write and the store."""
    rings = {ring.name: ring for ring in schedule.rings}
    ready = {ring: barrier.name for barrier in schedule.barriers if not barrier.releases for ring in barrier.rings}
    _check_stores(rings, ready, role)
    unfenced: dict[str, str] = {}
    for instruction in role.body:
        step = instruction.step
        if instruction.kind == "fence":
            unfenced.clear()
        elif step is not None and step.ring_out in ready and rings[step.ring_out or ""].fenced_by_writer:
            unfenced[ready[step.ring_out or ""]] = step.ring_out or ""
        elif instruction.kind == "arrive" and instruction.barrier in unfenced:
            ring = unfenced[instruction.barrier or ""]
            message = f"role {role.name} announces {ring} through {instruction.barrier} without a proxy fence"
            raise QlagenError("E-FENCE", message, hints=["put a fence between the write and the arrival"])


def _check_stores(rings: Mapping[str, Ring], ready: Mapping[str, str], role: Role) -> None:
    """A missing or late wait is left to the protocol check."""
    fenced_here = {name for name, ring in rings.items() if ring.fenced_by_reader}
    announced = {ready.get(name) for name in fenced_here}
    fenced = False
    for instruction in role.body:
        if instruction.kind == "fence":
            fenced = True
        elif instruction.kind == "wait" and instruction.barrier in announced:
            fenced = False
        elif instruction.kind == "store" and instruction.ring in fenced_here and not fenced:
            barrier = ready[instruction.ring or ""]
            message = f"role {role.name} stores {instruction.ring} by TMA without a proxy fence behind {barrier}"
            raise QlagenError("E-FENCE", message, hints=["put a fence between the wait and the store"])
