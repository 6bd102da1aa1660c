"""Where the carried value starts from, and where it goes."""

from __future__ import annotations

from qlagen.emit import views
from qlagen.emit.context import Context, first_thread, role_warp
from qlagen.emit.matrices import WARP_ROWS
from qlagen.errors import QlagenError
from qlagen.schedule.model import Role

Lines = tuple[views.Line, ...]


def state_lines(context: Context, role: Role) -> tuple[Lines, Lines]:
    """What stands before and after the loop of the role that holds the carried value; in other roles at most what they
    do for it."""
    carry = context.schedule.program.carry
    if carry is None or not _holds_state(context, role):
        return prefetch_lines(context, role), ()
    tile = context.fragment(carry.name)
    if context.values[carry.name].shape[0] != WARP_ROWS * role.warps:
        message = f"role {role.name} holds {carry.name} in more than {WARP_ROWS} rows a warp"
        raise QlagenError("E-EMIT", message, notes=[f"{role.warps} warps, shape {context.values[carry.name].shape}"])
    rows, columns = context.extents(carry.name)
    operand = context.schedule.carried_operand
    form = None if operand is None else context.fragment(operand)
    sources = _sources(context, role)
    condition, out = _target(context, role)
    load = views.LoadState(tile, rows, columns, sources, form, role_warp(role))
    joins = (_join(role),) if context.segment is not None else ()
    return (*joins, load), (views.StoreState(tile, columns, condition, out, role_warp(role)),)


def prefetch_lines(context: Context, role: Role) -> Lines:
    """What a role that is ahead does before an item's loop for the one that holds the carried value: from memory that
    takes longer than an iteration."""
    carry = context.schedule.program.carry
    if carry is None or context.schedule.prefetcher != role.name:
        return ()
    holder = next(other for other in context.schedule.roles if _holds_state(context, other))
    guard = "lane < 1" if role.kind == "mover" else f"tx < {first_thread(role)} + 1"
    return (views.PrefetchState(guard, *context.extents(carry.name), _sources(context, holder)),)


def _holds_state(context: Context, role: Role) -> bool:
    return any(f.carried and f.role == role.name for f in context.schedule.fragments)


def _join(role: Role) -> views.Join:
    """The first tile of values speaks for all."""
    condition = "active != 0 and value_column == 0"
    return views.Join(first_thread(role), condition, "segment_joined[segment - sequence, value_head]")


def _sources(context: Context, role: Role) -> tuple[views.StateSource, ...]:
    """What the segment before left, or the caller's state at a sequence's start."""
    if context.segment is not None:
        return _segment_sources(context, role)
    return (
        views.StateSource("follows != 0", _reached(context, role, "segment - 1 - sequence")),
        views.StateSource("opens * has_initial_state != 0", _callers(context, role, "initial_state")),
    )


def _segment_sources(context: Context, role: Role) -> tuple[views.StateSource, ...]:
    """A segment's map starts from the identity, its own state from zero; at a sequence's start, unless that is
    forgotten, from the caller's state: then it needs no map."""
    column, key = ("row", "column") if context.is_flipped(role) else ("column", "row")
    unit = f"T.if_then_else((value_column + {column}) - VALUE_DIM == {key}, 1.0, 0.0)"
    given = "active * opens * has_initial_state * T.if_then_else(warm_up == 0, 1, 0) != 0"
    return (
        views.StateSource("value_column >= VALUE_DIM", None, unit),
        views.StateSource(given, _callers(context, role, "initial_state")),
    )


def _target(context: Context, role: Role) -> tuple[str, views.StateTile]:
    """When the carried value is stored, and where to."""
    if context.segment is not None:
        return "active != 0", _reached(context, role, "segment - sequence")
    return "closes * has_final_state != 0", _callers(context, role, "final_state")


def _callers(context: Context, role: Role, tensor: str) -> views.StateTile:
    """The caller's state of a sequence, in either layout."""
    first = f"{tensor}[sequence, value_head, value_column * state_value_stride]"
    return _tile(context, role, first, "state_value_stride", "state_key_stride")


def _reached(context: Context, role: Role, joint: str) -> views.StateTile:
    """The state that a segment ended with; the segments before it but one of each sequence have a row."""
    first = f"segment_state[{joint}, value_head, value_column * KEY_DIM]"
    return _tile(context, role, first, "KEY_DIM", "1")


def _tile(context: Context, role: Role, first: str, value_stride: str, key_stride: str) -> views.StateTile:
    strides = (value_stride, key_stride) if context.is_flipped(role) else (key_stride, value_stride)
    return views.StateTile(first, *strides)
