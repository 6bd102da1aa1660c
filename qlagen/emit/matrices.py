"""Which 16-bit tiles are moved between shared memory and registers by ldmatrix and stmatrix.

A step of theirs moves four 8 x 8 matrices without bank conflicts, where plain code moves one entry or pair per thread
and instruction. They fit registers in the layout of wgmma accumulators, as they are or indexed the other way round.
"""

from __future__ import annotations

from qlagen.emit import views
from qlagen.emit.context import SWIZZLE_COLUMNS, TILE, Context, ring_name, role_warp, slot_extent, stage
from qlagen.schedule.model import Ring, Role, Step

WARP_ROWS = 16
"""Rows of accumulators that a warp holds."""


def fetched_matrices(context: Context, role: Role, step: Step) -> views.Matrices | None:
    """How a fetch is done by ldmatrix; None where it cannot be, or the layout of its registers is not known."""
    ring = context.rings[step.rings[0]]
    turned = step.writes is not None and context.values[step.writes].transposed_view
    return _moved("load_turned", role, ring) if turned and _is_turned_tile(role, ring) else None


def put_matrices(context: Context, role: Role, step: Step) -> views.Matrices | None:
    """How a put is done by stmatrix, or None."""
    ring = context.rings[step.ring_out or ""]
    value = step.reads[0] if step.writes is None else step.writes
    if context.values[value].dtype != "data":
        return None
    if context.values[value].transposed_view:
        return _moved("store_turned", role, ring) if _is_turned_tile(role, ring) else None
    fits = _is_swizzled(ring) and ring.shape[0] == WARP_ROWS * role.warps
    return _moved("store_tile", role, ring) if fits and is_accumulator(role, value) else None


def _moved(function: str, role: Role, ring: Ring) -> views.Matrices:
    sizes = tuple(TILE[dim] for dim in ring.dims)
    return views.Matrices(
        function=function,
        address=f"{ring_name(ring)}[{stage(ring)}, 0, 0]",
        extent=slot_extent(ring),
        sizes=sizes if function == "store_tile" else sizes[:1],
        warp=role_warp(role),
    )


def _is_swizzled(ring: Ring) -> bool:
    """A tile in whole parts of 128 bytes a row."""
    return ring.dtype == "data" and len(ring.dims) == 2 and ring.shape[1] % SWIZZLE_COLUMNS == 0


def _is_turned_tile(role: Role, ring: Ring) -> bool:
    return _is_swizzled(ring) and ring.shape[0] % WARP_ROWS == 0 and ring.shape[1] == WARP_ROWS * role.warps


def is_accumulator(role: Role, value: str) -> bool:
    """Whether a register value is a product's result, or made of one entry by entry."""
    made = {i.step.writes: i.step for i in role.body if i.step is not None and i.step.writes is not None}
    step = made.get(value)
    if step is None:
        return False
    return step.kind == "gemm" or (step.kind in ("map", "cast") and any(is_accumulator(role, v) for v in step.reads))
