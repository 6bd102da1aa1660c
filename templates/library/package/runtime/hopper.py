"""Launches an operator's kernels on a Hopper GPU: converts, makes tables and workspaces, chooses variants.

Nothing is read back to the host and no buffer is shared between calls, so calls on several streams do not meet and a
call can be captured in a CUDA graph (once its kernels are loaded: see `warmup`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qla_ops.runtime import loader
from qla_ops.runtime.choose import DATA_TYPES, call_plan, device_facts, item_count, plan_kernels, workers
from qla_ops.runtime.lengths import known_lengths
from qla_ops.runtime.metadata import Tables, equal_length_tables, packed_tables
from qla_ops.runtime.plan import Plan, cta_count, forced, join_items, join_rooms
from qla_ops.runtime.records import Kernel, Operator

_ALIGNMENT = 16
"""Bytes; what tensor maps and 16-byte stores need."""
_REMEMBERED = 1024


_TABLES = ("cu_seqlens", "chunk_offsets", "segment_offsets", "segment_chunks", "segment_sequence")
"""What a call returns of its tables."""


@dataclass(frozen=True)
class Launch:
    """One kernel of a call."""

    function: loader.Function
    parameters: tuple[str, ...]
    workers: int


def forward(
    operator: Operator,
    inputs: dict[str, Tensor],
    scalars: dict[str, float],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    state_v_first: bool,
    parts: int,
    threshold: float,
    o: Tensor,
    final_state: Tensor | None,
) -> dict[str, Tensor]:
    """Writes `o` [B, T, Hv, V] (data type) and, when given, `final_state` (fp32); both contiguous and aligned.

    `parts` and `threshold`: as in `plan` and `Call`. Returns what the kernels handed to one another, and the tables.
    """
    batch, length, value_heads, _ = o.shape
    tokens = batch * length
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if tokens == 0 or sequences == 0:
        _empty(o, initial_state, final_state)
        return {}
    processors = device_facts(o.device.index or 0).processors
    known = known_lengths(operator, cu_seqlens_cpu, tokens)
    plan = call_plan(operator, sequences, tokens, value_heads, processors, cu_seqlens is not None, parts, known)
    # Kernels that convert arguments come first: prepare kernels read these beside the kernel in front of them, which
    # must be that of the tables.
    given = {
        **{item.name: ready(item.data, inputs[item.name]) for item in operator.tensors},
        **_state_values(operator, initial_state, final_state, state_v_first, o),
    }
    if cu_seqlens is None:
        tables = equal_length_tables(batch, length, operator.chunk, o.device, plan.parts)
        offsets = tables.cu_seqlens
    else:
        offsets = cu_seqlens.contiguous()
        tables = packed_tables(offsets, tokens, operator.chunk, plan.cutting)
    workspaces = _workspaces(operator, tables.chunk_count, value_heads, o)
    key_heads = next((inputs[item.name].shape[2] for item in operator.tensors if item.heads == "key"), value_heads)
    values: dict[str, Any] = {
        **scalars,
        **workspaces,
        **vars(tables),
        **given,
        **_segment_values(operator, tables, value_heads, threshold, processors, o),
        "o": o,
        "tokens": tokens,
        "sequences": sequences,
        "key_heads": key_heads,
        "segment_bounds": tables.segments + 1,
        "has_spare_chunks": int(cu_seqlens is not None),
        **_offset_values(offsets),
        "value_heads": value_heads,
        "turns": plan.turns,
    }
    # The first kernel of a call waits for all that was launched before it; packed calls began with their tables.
    early = loader.NOT_EARLY if cu_seqlens is None else loader.EARLY
    for launch in _launches(operator, o, plan, tables, key_heads):
        values["workers"] = launch.workers
        launch.function(*[values[name] for name in launch.parameters], early)
        early = loader.EARLY
    return {**workspaces, **{name: getattr(tables, name) for name in _TABLES}}


def ready(data: bool, tensor: Tensor) -> Tensor:
    """A tensor as the kernels read it: contiguous, aligned, fp32 unless it is data.

    What is so already is passed on as it is; the rest is copied. A slice of a packed tensor is copied once.
    """
    if tensor.requires_grad:
        tensor = tensor.detach()
    if not data and tensor.dtype != torch.float32:
        tensor = tensor.to(torch.float32)
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor if is_aligned(tensor) else tensor.clone()


def is_aligned(tensor: Tensor) -> bool:
    """Whether the kernels can address it."""
    return tensor.data_ptr() % _ALIGNMENT == 0


def _empty(o: Tensor, initial_state: Tensor | None, final_state: Tensor | None) -> None:
    """No tokens or no sequences: rows of no sequence are zero and states stay what they were."""
    o.zero_()
    if final_state is None:
        return
    if initial_state is None:
        final_state.zero_()
    else:
        final_state.copy_(initial_state)


def _state_values(
    operator: Operator, initial_state: Tensor | None, final_state: Tensor | None, state_v_first: bool, o: Tensor
) -> dict[str, Any]:
    """States are addressed by strides, so that either layout is read and written in place."""
    return {
        # The flags keep the kernels from touching what stands in for an absent state.
        "initial_state": o if initial_state is None else ready(False, initial_state),
        "final_state": o if final_state is None else final_state,
        "has_initial_state": int(initial_state is not None),
        "has_final_state": int(final_state is not None),
        "state_key_stride": 1 if state_v_first else operator.sizes["V"],
        "state_value_stride": operator.sizes["K"] if state_v_first else 1,
    }


def _segment_values(
    operator: Operator, tables: Tables, value_heads: int, threshold: float, processors: int, o: Tensor
) -> dict[str, Any]:
    """What segments hand on: states and maps, V-first, one below the other; new for each call. Where chains of them are
    long, products of maps too, of as many heads as there is room for."""
    key_dim, value_dim = operator.sizes["K"], operator.sizes["V"]
    values: dict[str, Any] = {"skip_threshold": threshold, "key_dim": key_dim, "value_dim": value_dim}
    if tables.joints == 0:
        # The tables say that no segment follows another one, so that nothing touches these.
        return {**values, "segment_state": o, "segment_joined": tables.segment_sequence}
    shape = (tables.joints, value_heads, (value_dim + key_dim) * key_dim)
    values["segment_state"] = torch.empty(shape, dtype=torch.float32, device=o.device)
    values["segment_joined"] = torch.empty(shape[:2], dtype=torch.int32, device=o.device)
    values["rooms"] = rooms = join_rooms(operator, tables.joints, processors)
    products = (tables.joints, rooms, key_dim * key_dim)
    state = values["segment_state"]
    values["segment_products"] = torch.empty(products, dtype=torch.float32, device=o.device) if rooms else state
    return values


def _offset_values(offsets: Tensor) -> dict[str, Any]:
    """Sequences' offsets, of either integer type, as the words that they are."""
    wide = int(offsets.dtype == torch.int64)
    return {"given_offsets": offsets, "wide_offsets": wide, "offset_words": len(offsets) << wide}


def _workspaces(operator: Operator, chunk_count: int, value_heads: int, o: Tensor) -> dict[str, Tensor]:
    """New for each call: two streams never share one."""
    return {
        item.name: torch.empty(
            (chunk_count, value_heads, *item.tile(operator.sizes)),
            dtype=o.dtype if item.data else torch.float32,
            device=o.device,
        )
        for item in operator.workspaces
    }


_KNOWN: dict[tuple[Any, ...], tuple[Launch, ...]] = {}


def _launches(operator: Operator, o: Tensor, plan: Plan, tables: Tables, key_heads: int) -> tuple[Launch, ...]:
    """The kernels of a call, loaded. They depend on integers only, so they are remembered."""
    value_heads = o.shape[2]
    chosen = (plan.forward.name, plan.segment.name if plan.segment else None)
    heads = key_heads, value_heads
    counts = (tables.chunk_count, tables.segments, tables.joints, tables.chain_count)
    key = (operator.name, o.dtype, o.device.index, heads, counts, chosen, forced())
    if key not in _KNOWN:
        if len(_KNOWN) >= _REMEMBERED:
            _KNOWN.clear()
        processors = device_facts(o.device.index or 0).processors
        kernels = plan_kernels(operator, plan, *heads)
        items = {kernel: _items(operator, kernel, tables, *heads, processors) for kernel in kernels}
        wanted = {kernel: count for kernel, count in items.items() if count > 0}
        loader.build_missing([(kernel, _data_type(kernel, o.dtype)) for kernel in wanted])
        _KNOWN[key] = tuple(
            _load(kernel, o.dtype, workers(kernel, count, processors)) for kernel, count in wanted.items()
        )
    return _KNOWN[key]


def _items(
    operator: Operator, kernel: Kernel, tables: Tables, key_heads: int, value_heads: int, processors: int
) -> int:
    """What the CTAs of a kernel share."""
    key_dim, value_dim = operator.sizes["K"], operator.sizes["V"]
    if kernel is loader.JOIN:
        return join_items(operator, tables.chain_count, value_heads, tables.joints, processors)
    if kernel.kind == "carried":
        return cta_count(kernel, value_dim, tables.segments * value_heads)
    if kernel.kind == "segment":
        return cta_count(kernel, value_dim + key_dim, tables.joints * value_heads)
    return item_count(kernel, tables.chunk_count, key_heads, value_heads)


def _load(kernel: Kernel, data_type: torch.dtype, count: int) -> Launch:
    return Launch(loader.function(kernel, _data_type(kernel, data_type)), kernel.parameters, count)


def _data_type(kernel: Kernel, data_type: torch.dtype) -> str:
    """What a kernel is built for: an operator's for the call's data, a shared one for its own."""
    kind = DATA_TYPES[data_type]
    return kind if kind in kernel.data_types else kernel.data_types[0]
