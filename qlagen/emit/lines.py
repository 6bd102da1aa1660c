"""Views of the instructions of compute roles."""

from __future__ import annotations

from collections.abc import Callable

from qlagen.emit import views
from qlagen.emit.context import (
    STAGES,
    Context,
    chunk_item,
    end_thread,
    first_thread,
    ring_name,
    role_warp,
    slot,
    slot_extent,
    stage,
    stage_head,
)
from qlagen.emit.maps import comment_of, map_view, vector_view
from qlagen.emit.matrices import fetched_matrices, put_matrices
from qlagen.errors import QlagenError
from qlagen.program.triangle import strips
from qlagen.schedule.model import Instruction, Ring, Role, Step

CHUNK_ROWS = 64
"""The scan, the inverse and one warpgroup's accumulator are spelled for chunks of this length."""


def role_lines(context: Context, role: Role) -> tuple[views.Line, ...]:
    """The loop body of a compute role."""
    lines = tuple(_line(context, role, instruction) for instruction in role.body)
    counted = any(isinstance(line, views.InverseHeads) for line in lines)
    return (views.Assign((chunk_item(context), *head_counts(context))), *lines) if counted else tuple(lines)


GROUP = ("group", "T.truncmod(item, groups)")
"""Which of the groups of a key head's value heads an item works on."""


def head_counts(context: Context) -> tuple[tuple[str, str], ...]:
    """How many value heads an iteration has, of each of its key heads, and how many key heads: the last of a key head's
    groups, and the last key heads, may be fewer."""
    if context.keys == 1:
        return (GROUP, ("heads", "T.min(HEADS, ratio - group * HEADS)"))
    return (
        GROUP,
        ("key_head", "T.truncdiv(T.truncmod(item, units), groups) * KEYS"),
        ("heads", "T.min(HEADS_PER_KEY, ratio - group * HEADS_PER_KEY)"),
        ("keys", "T.min(KEYS, key_heads - key_head)"),
    )


def has_head(context: Context, head: str) -> str:
    """Whether an iteration has the value head of that number."""
    if context.keys == 1:
        return f"{head} < heads"
    return f"T.And({head} % HEADS_PER_KEY < heads, {head} // HEADS_PER_KEY < keys)"


def barrier_line(context: Context, instruction: Instruction) -> views.Line:
    """A wait for, or an arrival on, a barrier."""
    assert instruction.barrier is not None
    barrier = context.barriers[instruction.barrier]
    stages = STAGES[barrier.stage_class]
    if instruction.kind == "wait":
        return views.Wait(barrier.name, stages, free=instruction.side == "producer")
    return views.Arrive(barrier.name, stages)


def _line(context: Context, role: Role, instruction: Instruction) -> views.Line:
    match instruction.kind:
        case "wait" | "arrive":
            return barrier_line(context, instruction)
        case "wait_groups":
            return views.WaitGroups(instruction.groups)
        case "fence":
            return views.Fence()
        case "sync":
            return views.Sync(role_barrier(role), role_threads(role))
        case "step" if instruction.step is not None:
            return _STEPS[instruction.step.kind](context, role, instruction.step)
    raise QlagenError("E-EMIT", f"role {role.name} cannot do {instruction.kind!r}: only movers load and store")


def role_barrier(role: Role) -> str:
    """The constant that numbers the named barrier of the role's threads."""
    return f"{role.name.upper()}_BARRIER"


def role_thread(role: Role) -> str:
    """A thread's number inside its role."""
    return f"(tx - {first_thread(role)})" if role.first_thread else "tx"


def role_threads(role: Role) -> str:
    return f"{end_thread(role)} - {first_thread(role)}"


def _operand(context: Context, name: str | None) -> Ring:
    if name is None or name not in context.rings:
        raise QlagenError("E-EMIT", f"operand {name!r} is in no ring")
    return context.rings[name]


def _written(step: Step) -> str:
    if step.writes is None:
        raise QlagenError("E-EMIT", f"step {step.name} ({step.kind}) writes no register value")
    return step.writes


def _gemm(context: Context, role: Role, step: Step) -> views.Line:
    in_registers = step.left_home == "registers" and step.left is not None
    left = context.fragment(str(step.left)) if in_registers else slot(_operand(context, step.left))
    return views.Gemm(
        left=left,
        right=slot(_operand(context, step.right)),
        out=context.fragment(_written(step)),
        transpose_left=step.transpose_left,
        transpose_right=step.transpose_right,
        clear=step.clear,
        comment=comment_of(step),
    )


def _fetch(context: Context, role: Role, step: Step) -> views.Line:
    ring, out = _operand(context, step.rings[0]), context.fragment(_written(step))
    matrices = fetched_matrices(context, role, step)
    if matrices is not None:
        return views.FetchMatrices(out, matrices, comment_of(step))
    return views.Copy(slot(ring), out, comment_of(step))


def _cast(context: Context, role: Role, step: Step) -> views.Line:
    return views.Copy(context.fragment(step.reads[0]), context.fragment(_written(step)), comment_of(step))


def _turn(context: Context, role: Role, step: Step) -> views.Line:
    out = _written(step)
    rows, columns = context.extents(out)
    return views.Turn(rows, columns, context.fragment(step.reads[0]), context.fragment(out), comment_of(step))


def _put(context: Context, role: Role, step: Step) -> views.Line:
    source = step.reads[0]
    ring = _operand(context, step.ring_out)
    matrices = put_matrices(context, role, step)
    if step.writes is None:
        return views.Put("", "", context.fragment(source), None, False, slot(ring), matrices, comment_of(step))
    via = context.values[step.writes]
    rows, columns = context.extents(source)
    turned = via.transposed_view != context.values[source].transposed_view
    return views.Put(
        rows=rows,
        columns=columns,
        source=context.fragment(source),
        via=context.fragment(via.name),
        turned=turned,
        out=slot(ring),
        matrices=matrices,
        comment=comment_of(step),
    )


def _scan(context: Context, role: Role, step: Step) -> views.Line:
    _check_chunk(context, step)
    source, out = _operand(context, step.rings[0]), _operand(context, step.ring_out)
    warp = role_warp(role)
    return views.Scan(
        guard=f"{warp} < HEADS" if out.heads > 1 else f"tx < {first_thread(role)} + WARP",
        source=ring_name(source),
        source_stage=stage_head(source, warp),
        out=ring_name(out),
        out_stage=stage_head(out, warp),
        comment=comment_of(step),
    )


def _inverse(context: Context, role: Role, step: Step) -> views.Line:
    _check_chunk(context, step)
    if role.warps != 4:
        message = f"step {step.name}: an inverse takes a role of 4 warps, {role.name} has {role.warps}"
        raise QlagenError("E-EMIT", message)
    work, out, warp = _operand(context, step.scratch), _operand(context, step.ring_out), role_warp(role)
    return views.Inverse(
        warp=warp,
        matrix=context.fragment(step.reads[0]),
        scales=None if step.columns is None else _vector(_operand(context, step.columns), warp),
        work=f"{ring_name(work)}[{stage(work)}, 0]",
        work_extent=str(work.shape[0]),
        out=f"{ring_name(out)}[{stage(out)}, 0, 0]",
        out_extent=slot_extent(out),
        barrier=role_barrier(role),
        threads=role_threads(role),
        comment=comment_of(step),
    )


def _share(context: Context, role: Role, step: Step) -> views.Line:
    _check_chunk(context, step)
    out = _operand(context, step.ring_out)
    matrix = context.fragment(step.reads[0])
    return views.Share(role_warp(role), matrix, _vector(out, str(step.key)), str(out.shape[0]), comment_of(step))


def _inverse_heads(context: Context, role: Role, step: Step) -> views.Line:
    matrix, out = _operand(context, step.matrix), _operand(context, step.ring_out)
    warp = role_warp(role)
    vectors = (step.factors, step.decay, step.columns)
    factors, decay, scales = (None if r is None else _vector(_operand(context, r), warp) for r in vectors)
    return views.InverseHeads(
        guard=has_head(context, warp),
        matrix=_vector(matrix, f"{warp} // HEADS_PER_KEY"),
        extent=str(matrix.shape[0]),
        factors=factors,
        gates=decay,
        whole=not _has_quarter_free(context, out),
        scales=scales,
        out=f"{ring_name(out)}[{stage_head(out, warp)}, 0, 0]",
        out_extent=slot_extent(out),
        comment=comment_of(step),
    )


def _has_quarter_free(context: Context, ring: Ring) -> bool:
    """Whether no strip of the tensor that a tile is stored to holds entries of the tile's upper right quarter."""
    half = context.size("C") // 2
    packed = ring.store is not None and ring.store.tensor.lower
    return packed and all(s.columns <= half for s in strips(context.size("C")) if s.first < half)


def _vector(ring: Ring, head: str) -> str:
    """The first entry of a vector, of a head where it has several."""
    return f"{ring_name(ring)}[{stage_head(ring, head)}, 0]"


def clear_lines(context: Context, role: Role) -> tuple[views.Line, ...]:
    """What a role's inverses need before the loop."""
    steps = (i.step for i in role.body if i.step is not None and i.step.kind in ("inverse", "inverse_heads"))
    return tuple(_clear(context, role, step) for step in steps)


def _clear(context: Context, role: Role, step: Step) -> views.Line:
    ring = _operand(context, step.ring_out)
    work = None if step.scratch is None else _operand(context, step.scratch)
    heads = "HEADS * " if ring.heads > 1 else ""
    return views.ClearSlots(
        thread=role_thread(role),
        work=None if work is None else f"{ring_name(work)}[{stage(work)}, 0]",
        work_extent="" if work is None else str(work.shape[0]),
        out=f"{ring_name(ring)}[{'0, 0' if ring.heads > 1 else '0'}, 0, 0]",
        extent=f"{STAGES[ring.stage_class]} * {heads}{slot_extent(ring)}",
        barrier=role_barrier(role),
        threads=role_threads(role),
    )


def _check_chunk(context: Context, step: Step) -> None:
    if context.size("C") != CHUNK_ROWS:
        raise QlagenError(
            "E-EMIT",
            f"step {step.name} ({step.kind}) is made for chunks of {CHUNK_ROWS} tokens, not {context.size('C')}",
            hints=[f"set chunk = [{CHUNK_ROWS}] in the spec"],
        )


_STEPS: dict[str, Callable[[Context, Role, Step], views.Line]] = {
    "gemm": _gemm,
    "map": map_view,
    "fetch": _fetch,
    "cast": _cast,
    "turn": _turn,
    "vector": lambda context, role, step: vector_view(context, step),
    "put": _put,
    "scan": _scan,
    "inverse": _inverse,
    "share": _share,
    "inverse_heads": _inverse_heads,
}
