"""From a schedule to the text of a kernel file."""

from __future__ import annotations

from dataclasses import replace

from qlagen import __version__
from qlagen.emit import file_views, mover_views, views
from qlagen.emit.check import check_text
from qlagen.emit.constants import candidate_constants, exports, kernel_name, used_constants
from qlagen.emit.context import WARP, Context, end_thread
from qlagen.emit.early import mover_waits, prologue_wait, waits_before
from qlagen.emit.lines import clear_lines, role_lines
from qlagen.emit.memory import barrier_views, layouts, register_views, shared_views, written_integers
from qlagen.emit.movers import first_element, loop_bounds, mover_loops, token_stride
from qlagen.emit.parameters import check_names, dynamic_dimensions, parameters, scalars, token_stores
from qlagen.emit.places import finds_places
from qlagen.emit.prologue import JOINT_SEGMENT, WARM_UP, grid, item_count, item_prologue, next_item, prologue, strips
from qlagen.emit.state import state_lines
from qlagen.emit.templates import KERNEL, environment, template_digest
from qlagen.program.ir import Tensor
from qlagen.schedule.model import Role, Schedule

REGISTERS_PER_SM = 65536


def emit_kernel(schedule: Schedule, spec_digest: str, target: str = "sm_90a") -> str:
    """The Python text of a kernel file: constants, exports, and `build(data_type)`, which gives a TileLang prim_func.

    `spec_digest` names the spec in the banner. The text depends on the arguments, the templates and the generator's
    version only. Raises QlagenError E-EMIT, E-EMIT-NAME, E-TEMPLATES, E-ARRIVALS.
    """
    context = Context(schedule)
    check_names(context)
    view = _kernel_view(context, spec_digest, target)
    template = environment().get_template(KERNEL)
    draft = template.render(kernel=view)
    text = template.render(kernel=replace(view, constants=used_constants(view.constants, draft)))
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    check_text(text, schedule)
    return text


def _kernel_view(context: Context, spec_digest: str, target: str) -> file_views.KernelView:
    schedule = context.schedule
    compute = [role for role in schedule.roles if role.kind == "compute"]
    movers = [role for role in schedule.roles if role.kind == "mover"]
    mover_registers = movers[0].registers if movers else None
    compute_views = tuple(_compute_role(context, role) for role in compute)
    mover_views = tuple(_mover_role(context, role) for role in movers)
    lines = [line for role in (*compute_views, *mover_views) for line in _lines(role)]
    entries = prologue(context)
    return file_views.KernelView(
        name=kernel_name(schedule),
        summary=_summary(schedule),
        banner=file_views.Banner(__version__, spec_digest, template_digest(), target, _options_text(schedule)),
        role_rows=tuple(_role_row(role) for role in schedule.roles),
        constants=candidate_constants(context),
        exports=exports(context),
        turned=any(fragment.transposed_view for fragment in schedule.fragments),
        accumulated=any(isinstance(line, views.Inverse | views.Share) for line in lines),
        helpers=_helpers(context, lines),
        parameters=parameters(context),
        scalars=scalars(context),
        dynamic=dynamic_dimensions(context),
        grid=grid(context),
        shared=shared_views(context),
        barriers=barrier_views(context),
        registers=register_views(context, lines),
        integers=written_integers((*entries, *item_prologue(context)), lines),
        prologue=entries,
        waits_before=waits_before(context, [name for name, _ in entries]),
        wait=prologue_wait(context),
        layouts=layouts(context, lines),
        padding=_padding(context),
        compute=compute_views,
        movers=mover_views,
        mover_registers=None if mover_registers is None else "MOVER_REGISTERS",
        mover_increase=_increases(schedule, mover_registers),
        ctas_per_sm="CTAS_PER_SM" if schedule.options.ctas_per_sm > 1 else None,
    )


def _summary(schedule: Schedule) -> str:
    if schedule.program.carry is None:
        heads = schedule.options.heads
        count = "one value head" if heads == 1 else f"up to {heads} value heads of one key head"
        return f"one chunk of {count} at a time, on a persistent grid"
    held = "transposed " if schedule.transposed else ""
    walk = ", one segment after another on a persistent grid" if schedule.options.persistent else ""
    return f"the chunks of a segment in order, {held}{schedule.program.carry.name} resident in fp32 registers{walk}"


def _options_text(schedule: Schedule) -> tuple[str, ...]:
    options = schedule.options
    registers = ", ".join(f"{name} {count}" for name, count in options.registers) or "as compiled"
    return (
        f"variant {options.name}: value tile {options.value_tile}, {options.stages} load stages, "
        f"ahead {options.ahead}, {options.output_stages} output stages,",
        f"registers {registers}, {options.ctas_per_sm} CTAs per SM",
    )


def _role_row(role: Role) -> file_views.RoleRow:
    registers = "" if role.registers is None else f"{role.registers} registers"
    registers += f" (estimate {role.estimate})" if role.estimate and registers else ""
    return file_views.RoleRow(role.name, f"{role.first_thread}..{role.first_thread + role.warps * WARP - 1}", registers)


def _increases(schedule: Schedule, registers: int | None) -> bool:
    """Whether setmaxnreg raises the number that the launch gives every thread."""
    launch = REGISTERS_PER_SM // (schedule.threads * schedule.options.ctas_per_sm) // 8 * 8
    return registers is not None and registers > launch


def _compute_role(context: Context, role: Role) -> file_views.RoleView:
    first, last = loop_bounds(context)
    state = state_lines(context, role)
    return file_views.RoleView(
        name=role.name,
        end=end_thread(role),
        registers=None if role.registers is None else f"{role.name.upper()}_REGISTERS",
        increase=_increases(context.schedule, role.registers),
        once=(*clear_lines(context, role), *state.once),
        items=item_count(context) if context.persistent else None,
        item=item_prologue(context),
        before=state.before,
        loops=(file_views.LoopView(first, last, role_lines(context, role)),),
        after=(*state.after, *_item_end(context)),
        last=state.last,
    )


def _lines(role: file_views.RoleView) -> tuple[views.Line, ...]:
    looped = tuple(line for loop in role.loops for line in loop.lines)
    return (*role.once, *role.before, *looped, *role.after, *role.last)


def _item_end(context: Context) -> tuple[views.Line, ...]:
    return (views.Assign(next_item(context)),) if context.persistent else ()


def _mover_role(context: Context, role: Role) -> file_views.RoleView:
    once, last = mover_waits(context, role)
    return file_views.RoleView(
        name=role.name,
        end=end_thread(role),
        registers=None,
        increase=False,
        once=once,
        items=item_count(context) if context.persistent else None,
        item=item_prologue(context),
        before=(),
        loops=mover_loops(context, role),
        after=_item_end(context),
        last=last,
    )


def _helpers(context: Context, lines: list[views.Line]) -> tuple[str, ...]:
    """Device functions in use, in a fixed order."""
    cut = any(isinstance(line, mover_views.LoadTiles) and line.cut for line in lines)
    stored = any(isinstance(line, mover_views.StoreRows) for line in lines)
    bounded = context.segment is not None and context.segment.bound is not None
    used = {JOINT_SEGMENT: context.persistent and context.segment is not None, WARM_UP: bounded}
    used |= {"zero_rows": cut, "store_rows": stored, "zero_global_rows": bool(token_stores(context))}
    used["places"] = finds_places(context)
    used["matrix_moves"] = any(_moves_matrices(line) for line in lines)
    used["decay"] = any(isinstance(line, views.Map) and line.decay is not None for line in lines)
    used["state"] = context.carried
    inverted = any(isinstance(line, views.Inverse) for line in lines)
    shared = any(isinstance(line, views.Share) for line in lines)
    used |= {"load_heads": any(isinstance(line, mover_views.FetchHeads) for line in lines)}
    used |= {"block_products": inverted or shared, "unit_lower_inverse": inverted}
    used |= {"clear_tiles": inverted or shared, "head_diagonal": shared, "head_octets": shared, "head_rows": shared}
    return tuple(name for name, wanted in used.items() if wanted)


def _moves_matrices(line: views.Line) -> bool:
    return isinstance(line, views.FetchMatrices) or (isinstance(line, views.Put) and line.matrices is not None)


def _padding(context: Context) -> tuple[file_views.PaddedTensor, ...]:
    """Outputs by token, whose rows past the last sequence must be zero."""
    where, end = "if segment == segments - 1", "end"
    if context.persistent:
        where, end = f"for strip in T.unroll(0, {strips(context)}, unroll_factor=1)", "segment_offsets[segments]"
    return tuple(
        file_views.PaddedTensor(
            name=store.tensor.name,
            where=where,
            first=_first_unused(context, store.tensor, end),
            rows=f"tokens - {end}",
            stride=token_stride(store.tensor),
            parts=f"{'VALUE_TILE' if store.tensor.dims[1] == 'V' else 'KEY_DIM'} // SWIZZLE_COLUMNS",
        )
        for store in token_stores(context)
    )


def _first_unused(context: Context, tensor: Tensor, end: str) -> str:
    if not context.persistent:
        return first_element(tensor, end, context.carried)
    item = "(block + strip * workers)"
    head, column = f"T.truncdiv({item}, TILES)", f"T.truncmod({item}, TILES) * VALUE_TILE"
    if tensor.head == "key":
        head = f"T.truncdiv({head}, T.truncdiv(value_heads, key_heads))"
    return f"{tensor.name}[{end}, {head}, {column if tensor.dims[1] == 'V' else '0'}]"
