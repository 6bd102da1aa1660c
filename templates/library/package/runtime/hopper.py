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
from qla_ops.runtime.choose import DATA_TYPES, choose_variant, device_facts, workers
from qla_ops.runtime.metadata import Tables, equal_length_tables, packed_tables
from qla_ops.runtime.records import Operator

_ALIGNMENT = 16
"""Bytes; what tensor maps and 16-byte stores need."""
_REMEMBERED = 1024


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
    state_v_first: bool,
    o: Tensor,
    final_state: Tensor | None,
) -> dict[str, Tensor]:
    """Writes `o` [B, T, Hv, V] (data type) and, when given, `final_state` (fp32); both contiguous and aligned.

    Returns the workspaces that the kernels handed to one another, and the chunk tables.
    """
    batch, length, value_heads, _ = o.shape
    tokens = batch * length
    sequences = batch if cu_seqlens is None else cu_seqlens.shape[0] - 1
    if tokens == 0 or sequences == 0:
        _empty(o, initial_state, final_state)
        return {}
    if cu_seqlens is None:
        tables = equal_length_tables(batch, length, operator.chunk, o.device)
    else:
        tables = packed_tables(cu_seqlens, tokens, operator.chunk)
    workspaces = _workspaces(operator, tables.chunk_count, value_heads, o)
    key_heads = next((inputs[item.name].shape[2] for item in operator.tensors if item.heads == "key"), value_heads)
    values: dict[str, Any] = {
        **scalars,
        **workspaces,
        **vars(tables),
        **_unsplit(tables, sequences, o),
        **{item.name: ready(item.data, inputs[item.name]) for item in operator.tensors},
        **_state_values(operator, initial_state, final_state, state_v_first, o),
        "o": o,
        "tokens": tokens,
        "sequences": sequences,
        "segments": sequences,
        "joints": 0,
        "key_heads": key_heads,
        "value_heads": value_heads,
    }
    for launch in _launches(operator, o, sequences, tables.chunk_count):
        values["workers"] = launch.workers
        launch.function(*[values[name] for name in launch.parameters])
    return {**workspaces, "chunk_offsets": tables.chunk_offsets, "cu_seqlens": tables.cu_seqlens}


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


def _unsplit(tables: Tables, sequences: int, o: Tensor) -> dict[str, Tensor]:
    """The segments that the kernels walk where each sequence is one of them."""
    return {
        "segment_offsets": tables.cu_seqlens,
        "segment_chunks": tables.chunk_offsets,
        "segment_sequence": torch.arange(sequences, dtype=torch.int32, device=o.device),
        "segment_state": o,  # never read: no segment follows another one
    }


def _workspaces(operator: Operator, chunk_count: int, value_heads: int, o: Tensor) -> dict[str, Tensor]:
    """New for each call: two streams never share one."""
    return {
        item.name: torch.empty(
            (chunk_count, value_heads, *[operator.sizes[symbol] for symbol in item.dims]),
            dtype=o.dtype if item.data else torch.float32,
            device=o.device,
        )
        for item in operator.workspaces
    }


_KNOWN: dict[tuple[str, torch.dtype, int | None, int, int, int], tuple[Launch, ...]] = {}


def _launches(operator: Operator, o: Tensor, sequences: int, chunk_count: int) -> tuple[Launch, ...]:
    """The kernels of a call, loaded. They depend on integers only, so they are remembered."""
    value_heads, value_dim = o.shape[2:]
    key = (operator.name, o.dtype, o.device.index, sequences, chunk_count, value_heads)
    if key not in _KNOWN:
        if len(_KNOWN) >= _REMEMBERED:
            _KNOWN.clear()
        processors = device_facts(o.device.index or 0).processors
        launches = []
        for program in operator.programs:
            if program.variants[0].kind == "segment":
                continue  # No sequence is cut.
            kernel = choose_variant(program, value_dim, sequences * value_heads, processors)
            function = loader.function(kernel, DATA_TYPES[o.dtype])
            launches.append(Launch(function, kernel.parameters, workers(kernel, chunk_count * value_heads, processors)))
        _KNOWN[key] = tuple(launches)
    return _KNOWN[key]
