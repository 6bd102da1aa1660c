"""Shared-memory rings: one per value that crosses roles or threads, with stages by the class of its producer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from qlagen.program.ir import Load
from qlagen.schedule.analysis import Analysis
from qlagen.schedule.model import Options, Ring
from qlagen.schedule.steps import BYTES, RingRead, RingWrite, RoleSteps

LOADER = "load"
"""Producer of a ring filled from global memory, until movers are assigned."""
StageClass = Literal["load", "handover", "output", "inner"]


def store_role(ring: str) -> str:
    """Consumer of an output ring, until movers are assigned."""
    return f"store_{ring}"


def build_rings(analysis: Analysis, roles: Sequence[RoleSteps], options: Options) -> tuple[Ring, ...]:
    """Rings in a fixed order: loads as the program lists them, then what each role makes."""
    reads = [read for role in roles for read in role.reads]
    loads = (o for o in analysis.program.operations if isinstance(o, Load) and any(r.ring == o.name for r in reads))
    filled = [_load_ring(analysis, load, reads, options) for load in loads]
    made = [_made_ring(analysis, write, reads, options) for role in roles for write in role.writes]
    return (*filled, *made)


def _load_ring(analysis: Analysis, load: Load, reads: Iterable[RingRead], options: Options) -> Ring:
    readers = [read for read in reads if read.ring == load.name]
    shape = tuple(analysis.size[dim] for dim in load.tensor.dims)
    by_gemm = any(read.asynchronous for read in readers)
    heads = options.heads if load.tensor.head == "value" else 1
    return Ring(
        load.name,
        load.tensor.dims,
        shape,
        load.tensor.dtype,
        LOADER,
        tuple(dict.fromkeys(read.role for read in readers)),
        options.stages,
        "load",
        load=load,
        async_read=by_gemm,
        swizzle_annotated=not by_gemm and len(shape) == 2,
        bytes=math.prod(shape) * BYTES[load.tensor.dtype] * options.stages * heads,
        heads=heads,
    )


def _made_ring(analysis: Analysis, write: RingWrite, reads: Iterable[RingRead], options: Options) -> Ring:
    readers = [read for read in reads if read.ring == write.ring]
    roles = list(dict.fromkeys(read.role for read in readers))
    if write.store is not None:
        roles.append(store_role(write.ring))
    stage_class = _stage_class(write, roles)
    stages = {"inner": 1, "output": options.output_stages, "handover": options.ahead + 1}[stage_class]
    shape = (write.scratch,) if write.scratch else tuple(analysis.size[dim] for dim in write.dims)
    by_gemm = any(read.asynchronous for read in readers)
    by_tma = write.store is not None and len(shape) == 2
    heads = write.copies if analysis.is_shared(write.value) or write.scratch else options.heads
    return Ring(
        write.ring,
        write.dims,
        shape,
        write.dtype,
        write.role,
        tuple(roles),
        stages,
        stage_class,
        store=write.store,
        async_read=by_gemm or by_tma,
        fenced_by_reader=by_tma and not by_gemm,
        swizzle_annotated=not by_gemm and not by_tma and len(shape) == 2 and write.dtype == "data",
        bytes=math.prod(shape) * BYTES[write.dtype] * stages * heads,
        heads=heads,
    )


def _stage_class(write: RingWrite, roles: Iterable[str]) -> StageClass:
    others = [role for role in roles if role != write.role]
    if not others:
        return "inner"
    return "output" if write.store is not None and len(others) == 1 else "handover"
