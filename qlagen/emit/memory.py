"""Views of what a kernel allocates: shared memory, barriers, registers, and their layouts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from qlagen.emit import file_views, mover_views, views
from qlagen.emit.context import (
    STAGES,
    TILE,
    Context,
    dtype_text,
    is_static,
    ring_name,
)
from qlagen.emit.movers import landed_barrier, needs_landed
from qlagen.emit.places import MOST_SEQUENCES, finds_places
from qlagen.schedule.model import Ring


def shared_views(context: Context) -> tuple[file_views.SharedView, ...]:
    rings = tuple(
        file_views.SharedView(
            name=ring_name(ring),
            shape=_ring_shape(context, ring),
            dtype=dtype_text(ring.dtype),
            static=is_static(ring),
            note=f"{_dtype_note(ring.dtype)}, {ring.bytes} bytes: {ring.producer} -> {', '.join(ring.consumers)}",
        )
        for ring in context.schedule.rings
    )
    if not finds_places(context):
        return rings
    note = f"{8 * MOST_SEQUENCES} bytes: where sequences end, in tokens and in chunks"
    return (*rings, file_views.SharedView("places", f"(2 * {MOST_SEQUENCES},)", '"int32"', True, note))


def _ring_shape(context: Context, ring: Ring) -> str:
    sizes = [TILE[dim] for dim in ring.dims] or [str(size) for size in ring.shape]
    if ring.heads > 1:
        sizes.insert(0, "HEADS" if ring.heads == context.heads and ring.dims else str(ring.heads))
    return f"({', '.join((STAGES[ring.stage_class], *sizes))})"


def _dtype_note(dtype: str) -> str:
    return "16-bit" if dtype == "data" else "fp32"


def barrier_views(context: Context) -> tuple[file_views.BarrierView, ...]:
    """The schedule's barriers, and one for each mover that must change tiles before it announces them."""
    found = []
    for barrier in context.schedule.barriers:
        if barrier.releases:
            note = f"{', '.join(barrier.consumers)} may fill {', '.join(barrier.rings)}"
        else:
            note = f"{', '.join(barrier.consumers)} may read {', '.join(barrier.rings)}"
        if barrier.transaction_bytes:
            note += f" ({barrier.transaction_bytes} bytes by TMA)"
        found.append(
            file_views.BarrierView(
                barrier.name, STAGES[barrier.stage_class], str(barrier.count), ", ".join(barrier.producers), note
            )
        )
    for role in context.schedule.roles:
        if role.kind == "mover" and needs_landed(context, role):
            note = f"{role.name} may zero the last rows of a cut chunk"
            found.append(file_views.BarrierView(landed_barrier(role), "1", "1", role.name, note))
    return tuple(found)


def register_views(context: Context, lines: Sequence[views.Line]) -> tuple[file_views.RegisterView, ...]:
    """Register tiles of the schedule, then what the macros of `lines` keep in registers."""
    found = [
        file_views.RegisterView(
            name=fragment.name,
            allocate="alloc_fragment",
            shape=f"({', '.join(context.extents(fragment.values[0]))})",
            dtype=dtype_text(fragment.dtype),
            note=", ".join(fragment.values),
        )
        for fragment in context.schedule.fragments
    ]
    known = {view.name for view in found}
    for line in lines:
        if isinstance(line, views.LoadState) and line.out not in known:
            shape = f"({line.rows}, {line.columns})"
            found.append(file_views.RegisterView(line.out, "alloc_fragment", shape, dtype_text("float32"), "to come"))
        if isinstance(line, views.Map):
            found += [_fp32(gate.name, "alloc_fragment", gate.extent) for gate in line.gates]
        if isinstance(line, views.Map | views.Vector):
            found += [_fp32(name.removesuffix("[0]"), "alloc_local", "1") for name, _ in line.last]
        if isinstance(line, mover_views.FetchVector):
            found.append(_fp32(line.out, "alloc_local", "LANE_ENTRIES"))
        if isinstance(line, mover_views.FetchHeads):
            found.append(_fp32(line.out, "alloc_local", "LANE_ENTRIES * QUAD"))
    if any(isinstance(line, views.Scan) for line in lines):
        found += [_fp32("sums", "alloc_local", "LANE_ENTRIES")]
        found += [_fp32(name, "alloc_local", "1") for name in ("lane_sum", "lane_before")]
    if any(isinstance(line, views.Inverse) for line in lines):
        found.append(_fp32("row_sums", "alloc_local", "CHUNK * 3 // 8"))
    return tuple({view.name: view for view in found}.values())


def _fp32(name: str, allocate: str, size: str) -> file_views.RegisterView:
    return file_views.RegisterView(name, allocate, f"({size},)", dtype_text("float32"), "")


def written_integers(prologue: Iterable[tuple[str, str]], lines: Sequence[views.Line]) -> tuple[str, ...]:
    """Integer variables, in the order in which the text assigns them."""
    names = [name for name, _ in prologue]
    for line in lines:
        if isinstance(line, views.Assign):
            names += [name for name, _ in line.values]
    return tuple(dict.fromkeys(names))


def layouts(context: Context, lines: Iterable[views.Line]) -> tuple[tuple[str, str], ...]:
    """Layouts that TileLang cannot infer: transposed accumulators, what an inverse takes as accumulators, and the
    swizzle of 16-bit tiles that no product reads."""
    found = [
        (fragment.name, f"turned({', '.join(context.extents(fragment.values[0]))})")
        for fragment in context.schedule.fragments
        if fragment.transposed_view
    ]
    for line in lines:
        if isinstance(line, views.Inverse | views.Share):
            found.append((line.matrix, "accumulated(CHUNK, CHUNK)"))
    for ring in context.schedule.rings:
        if len(ring.shape) == 2 and not is_static(ring) and not context.is_gemm_operand(ring):
            found.append((ring_name(ring), f"tilelang.layout.make_full_bank_swizzled_layout({ring_name(ring)})"))
    return tuple(found)
