"""From a schedule to the text of a kernel file."""

from __future__ import annotations

from dataclasses import replace

from qlagen import __version__
from qlagen.emit import file_views, views
from qlagen.emit.check import check_text
from qlagen.emit.constants import Entries, candidate_constants, exports, kernel_name, used_constants
from qlagen.emit.context import WARP, Context, end_thread
from qlagen.emit.lines import clear_lines, role_lines
from qlagen.emit.memory import barrier_views, layouts, register_views, shared_views, written_integers
from qlagen.emit.movers import first_element, mover_loops, token_stride
from qlagen.emit.parameters import check_names, dynamic_dimensions, parameters, scalars, token_stores
from qlagen.emit.templates import KERNEL, environment, template_digest
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
    lines = [line for role in (*compute_views, *mover_views) for loop in role.loops for line in loop.lines]
    prologue = _prologue(context)
    return file_views.KernelView(
        name=kernel_name(schedule),
        summary=_summary(schedule),
        banner=file_views.Banner(__version__, spec_digest, template_digest(), target, _options_text(schedule)),
        role_rows=tuple(_role_row(role) for role in schedule.roles),
        constants=candidate_constants(context),
        exports=exports(context),
        turned=any(fragment.transposed_view for fragment in schedule.fragments),
        accumulated=any(isinstance(line, views.Inverse) for line in lines),
        helpers=_helpers(context, lines),
        parameters=parameters(context),
        scalars=scalars(context),
        dynamic=dynamic_dimensions(context),
        grid="TILES * value_heads * sequences" if context.carried else "workers",
        shared=shared_views(context),
        barriers=barrier_views(context),
        registers=register_views(context, lines),
        integers=written_integers(prologue, lines),
        prologue=prologue,
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
        return "one chunk of one value head at a time, on a persistent grid"
    held = "transposed " if schedule.transposed else ""
    return f"the chunks of a sequence in order, {held}{schedule.program.carry.name} resident in fp32 registers"


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
    loop = file_views.LoopView("0", "iterations", role_lines(context, role))
    before, after = _state_lines(context, role)
    before = (*clear_lines(context, role), *before)
    return file_views.RoleView(
        name=role.name,
        end=end_thread(role),
        registers=None if role.registers is None else f"{role.name.upper()}_REGISTERS",
        increase=_increases(context.schedule, role.registers),
        before=before,
        loops=(loop,),
        after=after,
    )


def _mover_role(context: Context, role: Role) -> file_views.RoleView:
    return file_views.RoleView(
        name=role.name,
        end=end_thread(role),
        registers=None,
        increase=False,
        before=(),
        loops=mover_loops(context, role),
        after=(),
    )


def _state_lines(context: Context, role: Role) -> tuple[tuple[views.Line, ...], tuple[views.Line, ...]]:
    """Loading and storing the carried value, in the role that holds it."""
    carry = context.schedule.program.carry
    if carry is None or not any(f.carried and f.role == role.name for f in context.schedule.fragments):
        return (), ()
    tile = context.fragment(carry.name)
    rows, columns = context.extents(carry.name)
    flipped = context.is_flipped(role)
    index = dict(zip(carry.dims, ("column", "row") if flipped else ("row", "column"), strict=True))
    strides = (("V", "state_value_stride"), ("K", "state_key_stride"))
    offset = " + ".join(f"{_state_index(dim, index[dim])} * {stride}" for dim, stride in strides)
    operand = context.schedule.carried_operand
    load = views.LoadState(tile, rows, columns, offset, None if operand is None else context.fragment(operand))
    return (load,), (views.StoreState(tile, rows, columns, offset),)


def _state_index(dim: str, index: str) -> str:
    return f"(value_column + {index})" if dim == "V" else index


def _prologue(context: Context) -> Entries:
    """What every thread works out first: where its CTA's work lies."""
    if not context.carried:
        items = "chunk_count * value_heads"
        return (("iterations", f"T.truncdiv({items} - block + workers - 1, workers)"), ("cuts", "0"))
    tensors = [ring.load.tensor for ring in context.schedule.rings if ring.load is not None]
    values = [
        ("sequence", "T.truncdiv(block, TILES * value_heads)"),
        ("value_head", "T.truncmod(T.truncdiv(block, TILES), value_heads)"),
    ]
    if any(tensor.head == "key" for tensor in tensors):
        values += [("key_head", "T.truncdiv(value_head, T.truncdiv(value_heads, key_heads))")]
    values += [
        ("value_column", "T.truncmod(block, TILES) * VALUE_TILE"),
        ("first", "cu_seqlens[sequence]"),
        ("end", "cu_seqlens[sequence + 1]"),
    ]
    if any(tensor.layout == "chunk" for tensor in tensors):
        values += [("first_slot", "chunk_offsets[sequence]")]
    values += [
        ("whole", "T.truncdiv(end - first, CHUNK)"),
        ("iterations", "T.truncdiv(end - first + CHUNK - 1, CHUNK)"),
    ]
    return tuple(values)


def _helpers(context: Context, lines: list[views.Line]) -> tuple[str, ...]:
    """Device functions in use, in a fixed order."""
    cut = any(isinstance(line, views.LoadTiles) and line.cut for line in lines)
    stored = any(isinstance(line, views.StoreRows) for line in lines)
    used = {"zero_rows": cut, "store_rows": stored, "zero_global_rows": bool(token_stores(context))}
    used["matrix_moves"] = any(_moves_matrices(line) for line in lines)
    used["decay"] = any(isinstance(line, views.Map) and line.decay is not None for line in lines)
    inverted = any(isinstance(line, views.Inverse) for line in lines)
    used |= {"block_products": inverted, "unit_lower_inverse": inverted}
    return tuple(name for name, wanted in used.items() if wanted)


def _moves_matrices(line: views.Line) -> bool:
    return isinstance(line, views.FetchMatrices) or (isinstance(line, views.Put) and line.matrices is not None)


def _padding(context: Context) -> tuple[file_views.PaddedTensor, ...]:
    """Outputs by token, whose rows past the last sequence must be zero."""
    return tuple(
        file_views.PaddedTensor(
            name=store.tensor.name,
            first=first_element(store.tensor, "end", context.carried),
            stride=token_stride(store.tensor),
            parts=f"{'VALUE_TILE' if store.tensor.dims[1] == 'V' else 'KEY_DIM'} // SWIZZLE_COLUMNS",
        )
        for store in token_stores(context)
    )
