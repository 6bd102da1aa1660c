"""Where the carried value starts from, and where it goes."""

from __future__ import annotations

import re
from dataclasses import dataclass

from qlagen.emit import views
from qlagen.emit.context import Context, first_thread, role_warp
from qlagen.emit.early import waits_late
from qlagen.emit.matrices import WARP_ROWS
from qlagen.errors import QlagenError
from qlagen.schedule.model import Role

Lines = tuple[views.Line, ...]
LEFT = "left_"
"""Begins the names of integers of the item before, whose value is still to be stored."""
_PLACE = ("segment", "sequence", "value_head", "value_column")


@dataclass(frozen=True)
class StateLines:
    """What a role does with the carried value outside its iterations."""

    once: Lines = ()
    """Before the first item."""
    before: Lines = ()
    """Before an item's iterations."""
    after: Lines = ()
    last: Lines = ()
    """After the last item."""


def state_lines(context: Context, role: Role) -> StateLines:
    """Of the role that holds the carried value; none for others."""
    carry = context.schedule.program.carry
    if carry is None or not any(f.carried and f.role == role.name for f in context.schedule.fragments):
        return StateLines()
    tile = context.fragment(carry.name)
    if context.values[carry.name].shape[0] != WARP_ROWS * role.warps:
        message = f"role {role.name} holds {carry.name} in more than {WARP_ROWS} rows a warp"
        raise QlagenError("E-EMIT", message, notes=[f"{role.warps} warps, shape {context.values[carry.name].shape}"])
    rows, columns = context.extents(carry.name)
    operand = context.schedule.carried_operand
    form = None if operand is None else context.fragment(operand)
    sources = _sources(context, role)
    joins = (_join(role),) if context.segment is not None else ()
    condition, out = _target(context, role)
    if context.schedule.overlapped:
        return _overlapped(context, role, carry.name, form, joins)
    load = views.LoadState(tile, rows, columns, sources, form, role_warp(role))
    return StateLines(before=(*joins, load), after=(views.StoreState(tile, columns, condition, out, role_warp(role)),))


def _overlapped(context: Context, role: Role, carried: str, form: str | None, joins: Lines) -> StateLines:
    """An item's value comes in while the one that the item before left goes out: loads first, stores behind them."""
    tile, (rows, columns) = context.fragment(carried), context.extents(carried)
    coming = f"{tile}_next"
    load = views.LoadState(coming, rows, columns, _sources(context, role), None, role_warp(role))
    _, out = _target(context, role, LEFT)
    store = views.StoreState(tile, columns, f"{LEFT}due != 0", out, role_warp(role))
    take = views.Copy(coming, tile, views.Comment("", "the item's value takes the place of what the last one left"))
    operand = () if form is None else (views.Copy(tile, form, views.Comment("", "as a left operand")),)
    return StateLines(
        once=(views.Assign(((f"{LEFT}due", "0"),)),),
        before=(*joins, load, store, take, *operand),
        after=(views.Assign(_left_behind(context, role)),),
        last=(store,),
    )


def _left_behind(context: Context, role: Role) -> tuple[tuple[str, str], ...]:
    """What must be known of an item when its value is stored after the next one's is loaded."""
    condition, out = _target(context, role)
    names = [name for name in re.findall(r"\w+", out.first) if name in _PLACE]
    return ((f"{LEFT}due", f"T.if_then_else({condition}, 1, 0)"), *((f"{LEFT}{name}", name) for name in names))


def _join(role: Role) -> views.Join:
    """The first tile of values speaks for all."""
    condition = "active != 0 and value_column == 0"
    return views.Join(first_thread(role), condition, "segment_joined[segment - sequence, value_head]")


def _sources(context: Context, role: Role) -> tuple[views.StateSource, ...]:
    """What the segment before left, or the caller's state at a sequence's start; see below for segment kernels."""
    if context.segment is not None:
        return _segment_sources(context, role)
    wait = views.AwaitKernel() if waits_late(context) else None
    return (
        views.StateSource("follows != 0", _reached(context, role, "segment - 1 - sequence"), wait=wait),
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


def _target(context: Context, role: Role, of: str = "") -> tuple[str, views.StateTile]:
    """When the carried value is stored, and where to; `of` begins the names of the item's integers."""
    if context.segment is not None:
        return "active != 0", _reached(context, role, f"{of}segment - {of}sequence", of)
    return "closes * has_final_state != 0", _callers(context, role, "final_state", of)


def _callers(context: Context, role: Role, tensor: str, of: str = "") -> views.StateTile:
    """The caller's state of a sequence, in either layout."""
    first = f"{tensor}[{of}sequence, {of}value_head, {of}value_column * state_value_stride]"
    return _tile(context, role, first, "state_value_stride", "state_key_stride")


def _reached(context: Context, role: Role, joint: str, of: str = "") -> views.StateTile:
    """The state that a segment ended with; the segments before it but one of each sequence have a row."""
    first = f"segment_state[{joint}, {of}value_head, {of}value_column * KEY_DIM]"
    return _tile(context, role, first, "KEY_DIM", "1")


def _tile(context: Context, role: Role, first: str, value_stride: str, key_stride: str) -> views.StateTile:
    strides = (value_stride, key_stride) if context.is_flipped(role) else (key_stride, value_stride)
    return views.StateTile(first, *strides)
