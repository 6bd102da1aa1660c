"""Where the carried value starts from, and where it goes."""

from __future__ import annotations

from qlagen.emit import views
from qlagen.emit.context import Context
from qlagen.schedule.model import Role

Lines = tuple[views.Line, ...]


def state_lines(context: Context, role: Role) -> tuple[Lines, Lines]:
    """What stands before and after the loop of the role that holds the carried value; nothing in other roles."""
    carry = context.schedule.program.carry
    if carry is None or not any(f.carried and f.role == role.name for f in context.schedule.fragments):
        return (), ()
    tile = context.fragment(carry.name)
    rows, columns = context.extents(carry.name)
    operand = context.schedule.carried_operand
    form = None if operand is None else context.fragment(operand)
    given, reached = _given(context, role), _reached(context, role, "segment - 1")
    final = ("final_state[", *given[1:])
    sources = (
        views.StateSource("follows != 0", reached),
        views.StateSource("opens * has_initial_state != 0", given),
    )
    load = views.LoadState(tile, rows, columns, sources, form)
    return (load,), (views.StoreState(tile, rows, columns, "closes * has_final_state != 0", final),)


def _given(context: Context, role: Role) -> tuple[str, ...]:
    """An entry of the caller's initial state, in either layout."""
    column, key = _column(context, role), _key(context, role)
    return _entry("initial_state", f"sequence, value_head, {column} * state_value_stride + {key} * state_key_stride")


def _reached(context: Context, role: Role, segment: str) -> tuple[str, ...]:
    """An entry of the state that a segment ended with."""
    place = f"{_column(context, role)} * KEY_DIM + {_key(context, role)}"
    return _entry("segment_state", f"{segment}, value_head, {place}")


def _entry(tensor: str, index: str) -> tuple[str, ...]:
    return (f"{tensor}[", f"    {index}", "]")


def _column(context: Context, role: Role) -> str:
    """The value column of a register tile's entry."""
    return f"(value_column + {'row' if context.is_flipped(role) else 'column'})"


def _key(context: Context, role: Role) -> str:
    return "column" if context.is_flipped(role) else "row"
