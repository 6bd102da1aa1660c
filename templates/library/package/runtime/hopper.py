"""Launches an operator's kernels on a Hopper GPU: converts, makes tables and workspaces, chooses variants.

Nothing is read back to the host and nothing is shared between calls, so calls on several streams do not meet and a
call can be captured in a CUDA graph (once its kernels are loaded: see `warmup`).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qla_ops.runtime import loader
from qla_ops.runtime.choose import DATA_TYPES, choose_variant, device_facts
from qla_ops.runtime.metadata import equal_length_tables, packed_tables
from qla_ops.runtime.records import Kernel, Operator

_ALIGNMENT = 16
"""Bytes; what tensor maps and 16-byte stores need."""


def forward(
    operator: Operator,
    inputs: dict[str, Tensor],
    scalars: dict[str, float],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    state_v_first: bool,
    o: Tensor,
    final_state: Tensor | None,
) -> dict[str, Tensor]:
    """Writes `o` [B, T, Hv, V] (data type) and, when given, `final_state` (fp32); both contiguous and aligned.

    Returns the workspaces that the kernels handed to one another, and the chunk tables.
    """
    batch, length, value_heads, value_dim = o.shape
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if batch * length == 0 or sequences == 0:
        _empty(o, initial_state, final_state)
        return {}
    if cu_seqlens is None:
        tables = equal_length_tables(batch, length, operator.chunk, o.device)
    else:
        tables = packed_tables(cu_seqlens, batch * length, operator.chunk)
    values: dict[str, Any] = {item.name: ready(item.data, inputs[item.name]) for item in operator.tensors}
    key_heads = next((values[item.name].shape[1] for item in operator.tensors if item.heads == "key"), value_heads)
    values |= scalars
    values |= {"tokens": batch * length, "sequences": sequences, "key_heads": key_heads, "value_heads": value_heads}
    values |= {"o": o.view(batch * length, value_heads, value_dim), "chunk_count": tables.chunk_count}
    values |= _state_values(operator, initial_state, final_state, state_v_first, o)
    values |= vars(tables)
    workspaces = _workspaces(operator, tables.chunk_count, value_heads, o)
    values |= workspaces
    _launch(operator, values)
    return {**workspaces, "chunk_offsets": tables.chunk_offsets, "cu_seqlens": tables.cu_seqlens}


def ready(data: bool, tensor: Tensor) -> Tensor:
    """A tensor as the kernels read it: [tokens, heads, ...], contiguous, aligned, fp32 unless it is data.

    What is so already is passed on as it is; the rest is copied. A slice of a packed tensor is copied once.
    """
    tensor = tensor.detach()
    if not data:
        tensor = tensor.to(torch.float32)
    flat = tensor.contiguous().view(tensor.shape[0] * tensor.shape[1], *tensor.shape[2:])
    return flat if is_aligned(flat) else flat.clone()


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
    sizes = dict(operator.dims)
    if initial_state is not None:
        initial_state = initial_state.detach().to(torch.float32).contiguous()
        initial_state = initial_state if is_aligned(initial_state) else initial_state.clone()
    return {
        # The flags keep the kernels from touching what stands in for an absent state.
        "initial_state": o if initial_state is None else initial_state,
        "final_state": o if final_state is None else final_state,
        "has_initial_state": int(initial_state is not None),
        "has_final_state": int(final_state is not None),
        "state_key_stride": 1 if state_v_first else sizes["V"],
        "state_value_stride": sizes["K"] if state_v_first else 1,
    }


def _workspaces(operator: Operator, chunk_count: int, value_heads: int, o: Tensor) -> dict[str, Tensor]:
    """New for each call: two streams never share one."""
    sizes = dict(operator.dims)
    return {
        item.name: torch.empty(
            (chunk_count, value_heads, *(sizes[symbol] for symbol in item.dims)),
            dtype=o.dtype if item.data else torch.float32,
            device=o.device,
        )
        for item in operator.workspaces
    }


def _launch(operator: Operator, values: dict[str, Any]) -> None:
    o = values["o"]
    data_type, processors = DATA_TYPES[o.dtype], device_facts(o.device.index).processors
    for program in operator.programs:
        kernel = choose_variant(program, o.shape[2], values["sequences"] * o.shape[1], processors)
        values["workers"] = workers(kernel, values["chunk_count"] * o.shape[1], processors)
        loader.function(kernel, data_type)(*[values[name] for name in kernel.parameters])


def workers(kernel: Kernel, items: int, processors: int) -> int:
    """CTAs of a persistent kernel: as many as run at once, and no more than there is work."""
    return max(1, min(items, processors * kernel.ctas_per_sm))
