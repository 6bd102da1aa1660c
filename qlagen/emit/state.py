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
    sources = _segment_sources(context, role) if context.segment is not None else _sources(context, role)
    condition, out = _target(context, role)
    return (views.LoadState(tile, rows, columns, sources, form),), (
        views.StoreState(tile, rows, columns, condition, out),
    )


def _sources(context: Context, role: Role) -> tuple[views.StateSource, ...]:
    """What the segment before left, or the caller's state at a sequence's start."""
    return (
        views.StateSource("follows != 0", _reached(context, role, "segment - 1 - sequence")),
        views.StateSource("opens * has_initial_state != 0", _given(context, role)),
    )


def _segment_sources(context: Context, role: Role) -> tuple[views.StateSource, ...]:
    """A segment's map starts from the identity, its own state from zero; at a sequence's start, unless that is
    forgotten, from the caller's state: then it needs no map."""
    unit = f"T.if_then_else({_column(context, role)} - VALUE_DIM == {_key(context, role)}, 1.0, 0.0)"
    given = "active * opens * has_initial_state * T.if_then_else(warm_up == 0, 1, 0) != 0"
    return (
        views.StateSource("value_column >= VALUE_DIM", (unit,)),
        views.StateSource(given, _given(context, role)),
    )


def _target(context: Context, role: Role) -> tuple[str, tuple[str, ...]]:
    """When the carried value is stored, and where to."""
    if context.segment is not None:
        return "active != 0", _reached(context, role, "segment - sequence")
    return "closes * has_final_state != 0", _entry("final_state", _place(context, role))


def _given(context: Context, role: Role) -> tuple[str, ...]:
    """An entry of the caller's initial state."""
    return _entry("initial_state", _place(context, role))


def _place(context: Context, role: Role) -> str:
    """Where an entry of a sequence's state is, in either layout."""
    column, key = _column(context, role), _key(context, role)
    return f"sequence, value_head, {column} * state_value_stride + {key} * state_key_stride"


def _reached(context: Context, role: Role, joint: str) -> tuple[str, ...]:
    """An entry of the state that a segment ended with; the segments before it but one of each sequence have a row."""
    place = f"{_column(context, role)} * KEY_DIM + {_key(context, role)}"
    return _entry("segment_state", f"{joint}, value_head, {place}")


def _entry(tensor: str, index: str) -> tuple[str, ...]:
    return (f"{tensor}[", f"    {index}", "]")


def _column(context: Context, role: Role) -> str:
    """The value column of a register tile's entry."""
    return f"(value_column + {'row' if context.is_flipped(role) else 'column'})"


def _key(context: Context, role: Role) -> str:
    return "column" if context.is_flipped(role) else "row"
