"""From a program and its options to a schedule: the rules in their order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from qlagen.errors import QlagenError
from qlagen.program.dims import operands
from qlagen.program.ir import Gate, Load, Operation, Program
from qlagen.schedule.analysis import Analysis, analyse, misplaced, roots
from qlagen.schedule.checks import check_schedule
from qlagen.schedule.handover import insert_syncs
from qlagen.schedule.head_role import lower_heads
from qlagen.schedule.key_heads import for_key_heads
from qlagen.schedule.model import Options, Ring, Role, Schedule
from qlagen.schedule.movers import MoverWarp, assign_movers
from qlagen.schedule.order import Order, candidate_orders, choose, order_as_written, rank
from qlagen.schedule.orient import orient
from qlagen.schedule.plain_role import lower_plain
from qlagen.schedule.rings import build_rings
from qlagen.schedule.state_role import STATE, lower_state, state_operations
from qlagen.schedule.steps import RoleSteps
from qlagen.schedule.synchronise import Skeleton, Synchronised, prune, synchronise
from qlagen.schedule.target import Target

AUXILIARY = "auxiliary"
TILE = "tile"
MOVERS = "movers"
BARRIER_BYTES = 8


@dataclass(frozen=True)
class Lowered:
    """Steps of every compute role, before orders and rings."""

    analysis: Analysis
    roles: tuple[RoleSteps, ...]
    transposed: bool


def build_schedule(program: Program, dims: Mapping[str, int], options: Options, target: Target) -> Schedule:
    """Schedule one kernel. `dims`: sizes of C, K and V.

    Raises E-DIMENSION, E-PLACE, E-ORIENT, E-ORDER, E-PIN, E-ESTIMATE, E-MOVERS, and all that `check_schedule` raises:
    a schedule that is returned has passed it.
    """
    lowered = lower(program, dims, options, target)
    orders = {role.name: _orders(lowered, role, options, target) for role in lowered.roles}
    lines = {name: candidates[0].lines for name, candidates in orders.items()}
    rings = build_rings(lowered.analysis, lowered.roles, options)
    # With the fewest registers that there are, a warp has room for little.
    spread = dict(options.registers).get(MOVERS) == target.least_registers
    movers, rings = assign_movers(rings, lines, options.mover_warps, spread)
    best = {name: candidates[0] for name, candidates in orders.items()}
    skeleton = Skeleton(_roles(lowered, best, movers, options, target), lines, {m.name: m for m in movers}, rings)
    synchronised = prune(synchronise(skeleton), rings)
    ranked = orders[lowered.roles[0].name]
    overhead = _overhead(lowered.roles[0].name, target)
    schedule = Schedule(
        program=lowered.analysis.program,
        options=options,
        dims=tuple((name, dims[name]) for name in ("C", "K", "V")),
        transposed=lowered.transposed,
        roles=tuple(_with_syncs(role, skeleton) for role in synchronised.roles),
        rings=rings,
        barriers=synchronised.barriers,
        fragments=tuple(f for role in lowered.roles for f in best[role.name].allocation.fragments),
        fragment_of=tuple(pair for role in lowered.roles for pair in best[role.name].allocation.fragment_of.items()),
        values=tuple(value for role in lowered.roles for value in role.values),
        carried_operand=_carried_operand(lowered),
        shared_bytes=_shared_bytes(rings, synchronised),
        threads=_threads(lowered.roles, movers, options),
        modelled_clocks=ranked[0].clocks,
        busiest_clocks=max(_tensor_clocks(lowered.roles), *(order.clocks for order in best.values())),
        delays=ranked[0].delays,
        candidates=len(ranked),
        ranked=tuple(replace(order.ranked, registers=order.allocation.peak + overhead) for order in ranked),
        implied=synchronised.implied,
        overlapped=_overlapped(lowered, options, target),
    )
    check_schedule(schedule, target)
    return schedule


def lower(program: Program, dims: Mapping[str, int], options: Options, target: Target) -> Lowered:
    """Rules 1 to 3: which role does what, which way round, as which steps."""
    analysis = analyse(program, dims, options.value_tile)
    if program.carry is None:
        if options.heads == 1:
            tile = lower_plain(TILE, analysis, target.clocks, analysis.program.operations)
        else:
            analysis = analysis if options.keys == 1 else for_key_heads(analysis, options.keys)
            tile = lower_heads(TILE, analysis, target.clocks, options.keys)
        return Lowered(analysis, (tile,), transposed=False)
    if program.carry.next not in analysis.dependent:
        reason = f"replaces {program.carry.name} without depending on it"
        raise misplaced(analysis, program.carry.next, reason, "such chunks are independent: drop the carry")
    transposed = orient(analysis)
    state = lower_state(analysis, target.clocks, transposed)
    own = {operation.name for operation in state_operations(analysis, transposed)}
    handed = tuple(dict.fromkeys(read.ring for read in state.reads if not analysis.is_load(read.ring)))
    others = _auxiliary_operations(analysis, own, handed)
    taken = (value.name for value in state.values)
    auxiliary = lower_plain(AUXILIARY, analysis, target.clocks, others, handed, taken)
    return Lowered(analysis, (state, auxiliary) if auxiliary.steps else (state,), transposed)


def _auxiliary_operations(analysis: Analysis, own: set[str], handed: Sequence[str]) -> tuple[Operation, ...]:
    """What the state role reads from rings and no load provides, what is stored beside, and what these need."""
    stored = (name for name in roots(analysis.program) if name not in own and not analysis.is_load(name))
    needed = {*handed, *stored}
    for operation in reversed(analysis.program.operations):
        if operation.name in needed:
            needed.update(operands(operation))
            if isinstance(operation, Gate) and operation.kind == "total":
                needed.add(analysis.start_decay(operation))
    chosen = (o for o in analysis.program.operations if o.name in needed and o.name not in own)
    return tuple(o for o in chosen if not isinstance(o, Load))


def _orders(lowered: Lowered, role: RoleSteps, options: Options, target: Target) -> tuple[Order, ...]:
    """Rule 4: the candidates of a role that fit, best first. Only the state role has delays to pin; where no other
    order fits, any other role does one thing after the other."""
    carry = lowered.analysis.program.carry
    goal = carry.next if carry is not None and role.name == STATE else None
    tie, overhead = target.clocks.tie_percent, _overhead(role.name, target)
    budget = _budget(lowered.roles, role.name, options, target)
    orders = candidate_orders(role, goal, tie)
    if goal is None and all(order.allocation.peak + overhead > budget for order in orders):
        orders = (order_as_written(role),)
    first = role.name == lowered.roles[0].name
    return rank(choose(role, orders, dict(options.delays) if first else {}, overhead, budget), tie)


def _overhead(role: str, target: Target) -> int:
    return target.overhead_state if role == STATE else target.overhead_other


def _budget(roles: Sequence[RoleSteps], role: str, options: Options, target: Target) -> int:
    """Registers per thread that a role may use."""
    given = dict(options.registers)
    if role in given:
        return given[role]
    if given:
        message = f"the schedule sets registers, but not those of role {role}"
        notes = [f"set: {', '.join(given)}"]
        raise QlagenError("E-REGISTERS", message, notes=notes, hints=[f"add registers.{role}, or set none"])
    threads = sum(r.threads for r in roles) + 32 * options.mover_warps
    return target.registers_without_setmaxnreg(threads, options.ctas_per_sm)


def _roles(
    lowered: Lowered, orders: Mapping[str, Order], movers: Sequence[MoverWarp], options: Options, target: Target
) -> tuple[Role, ...]:
    registers = dict(options.registers)
    roles = []
    thread = 0
    for steps in lowered.roles:
        estimate = orders[steps.name].allocation.peak + _overhead(steps.name, target)
        roles.append(Role(steps.name, "compute", steps.warps, thread, registers.get(steps.name), estimate, ()))
        thread += steps.threads
    for mover in movers:
        roles.append(Role(mover.name, "mover", 1, thread, registers.get(MOVERS), 0, ()))
        thread += 32
    return tuple(roles)


def _threads(roles: Sequence[RoleSteps], movers: Sequence[MoverWarp], options: Options) -> int:
    """setmaxnreg works on whole warpgroups: then the movers' is filled up."""
    warps = -(-len(movers) // 4) * 4 if options.registers else len(movers)
    return sum(role.threads for role in roles) + 32 * warps


def _overlapped(lowered: Lowered, options: Options, target: Target) -> bool:
    """Between two items the role that holds the carried value has registers for it twice, for nothing else lives then:
    the next item's comes in while the last one's goes out. Only on a persistent grid do items follow one another."""
    if not options.persistent or lowered.analysis.program.carry is None:
        return False
    role = lowered.roles[0]
    held = sum(value.registers for value in role.values if value.carried and value.dtype == "float32")
    budget = _budget(lowered.roles, role.name, options, target)
    return 2 * held + _overhead(role.name, target) <= budget


def _with_syncs(role: Role, skeleton: Skeleton) -> Role:
    return replace(role, body=insert_syncs(role.name, role.body, skeleton.rings))


def _carried_operand(lowered: Lowered) -> str | None:
    carried = (v.name for role in lowered.roles for v in role.values if v.carried and v.dtype == "data")
    return next(carried, None)


def _tensor_clocks(roles: Sequence[RoleSteps]) -> int:
    """Of one iteration's products, warpgroup by warpgroup."""
    return sum(role.warps // 4 * step.cost for role in roles for step in role.steps if step.kind == "gemm")


def _shared_bytes(rings: Sequence[Ring], synchronised: Synchronised) -> int:
    barriers = sum(BARRIER_BYTES * barrier.stages for barrier in synchronised.barriers)
    return sum(ring.bytes for ring in rings) + barriers
