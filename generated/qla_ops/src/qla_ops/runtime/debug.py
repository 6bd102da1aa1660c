"""With ``QLA_OPS_DEBUG=1``: checks the values of inputs and outputs and says where a fault is. It reads data back."""

from __future__ import annotations

import torch
from torch import Tensor

from qla_ops.runtime.arguments import Call, check_offset_values
from qla_ops.runtime.errors import BadValueError, bad_argument


def check_inputs(call: Call) -> None:
    """Offsets, finiteness and declared ranges. Raises ValueError naming the argument, head and chunk."""
    function = call.operator.function
    offsets = _offsets(call)
    if call.cu_seqlens is not None:
        check_offset_values(function, "cu_seqlens", offsets, call.facts.length)
        if call.cu_seqlens_cpu is not None and call.cu_seqlens_cpu.tolist() != offsets:
            got = f"{call.cu_seqlens_cpu.tolist()}"[:100]
            raise bad_argument(function, "cu_seqlens_cpu", got, "it must hold the numbers of cu_seqlens")
    for argument in call.operator.tensors:
        tensor = call.tensors[argument.name].detach()
        # A log gate of minus infinity is a reset, and allowed.
        good = ~tensor.isnan() & (tensor != torch.inf) if argument.log_gate else tensor.isfinite()
        _require(call, argument.name, good, offsets, "is not finite")
        if argument.low is not None:
            _require(call, argument.name, tensor >= argument.low, offsets, f"is below {argument.low:g}")
        if argument.high is not None:
            _require(call, argument.name, tensor <= argument.high, offsets, f"is above {argument.high:g}")
    if call.initial_state is not None:
        _require_state(call, "initial_state", call.initial_state)


def check_outputs(call: Call, o: Tensor, final_state: Tensor | None) -> None:
    """Finiteness. Raises BadValueError (a ValueError) naming the output, head and chunk."""
    _require(call, "o", o.detach().isfinite(), _offsets(call), "is not finite")
    if final_state is not None:
        _require_state(call, "final_state", final_state)


def _offsets(call: Call) -> list[int]:
    if call.cu_seqlens is not None:
        return [int(value) for value in call.cu_seqlens.tolist()]
    return [0, call.facts.length]


def _require(call: Call, name: str, good: Tensor, offsets: list[int], fault: str) -> None:
    """`good` is [B, T, heads, ...]; rows past the last sequence do not matter."""
    bad = ~good.flatten(3).all(-1) if good.dim() > 3 else ~good
    bad[:, offsets[-1] :] = False
    if not bool(bad.any()):
        return
    row, token, head = (int(index) for index in bad.nonzero()[0])
    sequence = next(n for n in range(len(offsets) - 1) if offsets[n] <= token < offsets[n + 1])
    chunk = (token - offsets[sequence]) // call.operator.chunk
    sequence = sequence if call.cu_seqlens is not None else row
    place = f"sequence {sequence}, head {head}, chunk {chunk} (row {row}, token {token})"
    raise BadValueError(f"{call.operator.function}: {name} {fault} in {place}")


def _require_state(call: Call, name: str, state: Tensor) -> None:
    bad = ~state.detach().isfinite().flatten(2).all(-1)
    if bool(bad.any()):
        sequence, head = (int(index) for index in bad.nonzero()[0])
        raise BadValueError(f"{call.operator.function}: {name} is not finite in sequence {sequence}, head {head}")
