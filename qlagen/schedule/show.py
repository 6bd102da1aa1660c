"""A schedule as stable text: what ``qlagen show --stage schedule`` prints and golden tests pin."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from qlagen.schedule.model import Barrier, Fragment, Instruction, Ring, Role, Schedule


def show_schedule(schedule: Schedule) -> str:
    """Roles with their order and waits, rings, barriers with counts, fragments, budgets and candidate orders."""
    blocks = [
        list(_head(schedule)),
        ["roles", *_table(_role(schedule, role) for role in schedule.roles)],
        ["rings", *_table(_ring(ring) for ring in schedule.rings)],
        ["barriers", *_table(_barrier(barrier) for barrier in schedule.barriers)],
        ["fragments", *_table(_fragment(fragment) for fragment in schedule.fragments)],
        *([f"{role.name}, each iteration", *_body(role)] for role in schedule.roles),
        ["implied by the rest, left out", *(f"  {what}" for what in schedule.implied)],
        list(_candidates(schedule)),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if len(block) > 1) + "\n"


def _head(schedule: Schedule) -> Iterator[str]:
    options = schedule.options
    sizes = ", ".join(f"{name} = {size}" for name, size in schedule.dims)
    yield f"schedule {schedule.program.name}_{options.name} of {schedule.program.operator}"
    yield f"  {sizes}; value tile {options.value_tile}"
    memory = f"{schedule.shared_bytes} bytes of shared memory"
    yield f"  {schedule.threads} threads, {memory}, CTAs per SM: {options.ctas_per_sm}"
    carry = schedule.program.carry
    if carry is not None:
        yield f"  carries {carry.name}, held {'transposed' if schedule.transposed else 'as written'}"
    if schedule.overlapped:
        yield "  loads what an item starts from before it stores what the last one left"
    yield f"  {schedule.modelled_clocks} clocks per iteration in the model"


def _role(schedule: Schedule, role: Role) -> Sequence[str]:
    threads = f"threads {role.first_thread}..{role.first_thread + 32 * role.warps - 1}"
    registers = "" if role.registers is None else f"{role.registers} registers"
    return role.name, role.kind, threads, registers, f"estimate {role.estimate}" if role.estimate else ""


def _ring(ring: Ring) -> Sequence[str]:
    notes = ["async"] if ring.async_read else []
    notes += ["swizzled"] if ring.swizzle_annotated else []
    flow = f"{ring.producer} -> {', '.join(ring.consumers)}"
    shape = f"{list(ring.shape)} {ring.dtype}"
    return ring.name, shape, f"{ring.stages} x {ring.stage_class}", f"{ring.bytes} bytes", flow, " ".join(notes)


def _barrier(barrier: Barrier) -> Sequence[str]:
    flow = f"{', '.join(barrier.producers)} -> {', '.join(barrier.consumers)}"
    size = f"{barrier.transaction_bytes} bytes" if barrier.transaction_bytes else ""
    return (
        barrier.name,
        f"{barrier.stages} x {barrier.stage_class}",
        f"count {barrier.count}",
        size,
        flow,
        " ".join(barrier.rings),
    )


def _fragment(fragment: Fragment) -> Sequence[str]:
    notes = ["transposed view"] if fragment.transposed_view else []
    notes += ["carried"] if fragment.carried else []
    shape = f"{list(fragment.shape)} {fragment.dtype}"
    values = " ".join(fragment.values)
    return fragment.name, shape, f"{fragment.registers} registers", fragment.role, values, ", ".join(notes)


def _table(rows: Iterator[Sequence[str]]) -> list[str]:
    """Rows with aligned columns, indented."""
    lines = list(rows)
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))] if lines else []
    aligned = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in lines)
    return [f"  {line.rstrip()}" for line in aligned]


def _body(role: Role) -> Iterator[str]:
    for instruction in role.body:
        yield f"  {_instruction(instruction)}"


def _instruction(instruction: Instruction) -> str:
    step = instruction.step
    if step is not None:
        target = step.ring_out if step.writes is None else step.writes
        operands = ", ".join((*step.reads, *(f"[{ring}]" for ring in step.rings)))
        origin = f"  # {step.origin}" if step.origin else ""
        return f"{step.kind:<8} {target} <- {operands}  ({step.note}){origin}"
    if instruction.kind == "wait_groups":
        return f"wait for products, {instruction.groups} left in flight"
    if instruction.kind == "wait":
        return f"wait for {instruction.barrier}"
    if instruction.kind == "arrive":
        return f"arrive at {instruction.barrier}"
    if instruction.kind in ("load", "store"):
        return f"{instruction.kind:<8} [{instruction.ring}]"
    return {"fence": "fence for the async proxy", "sync": "named barrier"}[instruction.kind]


def _candidates(schedule: Schedule) -> Iterator[str]:
    yield "candidate orders, best first"
    if len(schedule.ranked) > 1:
        for order in schedule.ranked:
            delays = ", ".join(f"{gemm} behind {delay}" for gemm, delay in order.delays)
            chosen = "  (chosen)" if order.delays == schedule.delays else ""
            yield f"  {order.clocks} clocks, {order.registers} registers: {delays}{chosen}"
