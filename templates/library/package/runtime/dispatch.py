"""The body of every public function: check, choose, run."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qla_ops.runtime import debug, hopper, ops
from qla_ops.runtime.arguments import Call, check_call, check_offset_values, overlaps
from qla_ops.runtime.choose import choose
from qla_ops.runtime.environment import debug as debugging
from qla_ops.runtime.normalise import unit_vectors
from qla_ops.runtime.records import Operator


class Forward(NamedTuple):
    """What a low-level forward call returns."""

    o: Tensor
    final_state: Tensor | None
    intermediates: dict[str, Tensor]
    """What the kernels handed to one another, [chunks, Hv, ...], and the tables of sequences and segments."""


def run(
    operator: Operator,
    inputs: tuple[Any, ...],
    *,
    use_qk_l2norm_in_kernel: bool = False,
    strict: bool = False,
    impl: str | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """The public function of an operator."""
    call = check_call(operator, inputs, **options)
    chosen = choose(call, strict, impl)
    _prepare(call, use_qk_l2norm_in_kernel, chosen == "hopper")
    o, final_state = _run_kernels(call) if chosen == "hopper" else _run_portable(call)
    return _finish(call, o, final_state)


def run_forward(
    operator: Operator, inputs: tuple[Any, ...], *, use_qk_l2norm_in_kernel: bool = False, **options: Any
) -> Forward:
    """The kernels' forward pass with what they handed to one another. Takes no fallback."""
    call = check_call(operator, inputs, **options)
    choose(call, True, "hopper")
    _prepare(call, use_qk_l2norm_in_kernel, True)
    o, final_state = _buffers(call)
    intermediates = hopper.forward(operator, call.tensors, call.scalars, *_options(call), o, final_state)
    o, final_state = _finish(call, o, final_state)
    return Forward(o, final_state, intermediates)


def _prepare(call: Call, normalise: bool, with_kernel: bool) -> None:
    """Checks values when debugging, then makes unit vectors of what ``use_qk_l2norm_in_kernel`` applies to."""
    if debugging():
        debug.check_inputs(call)
    names = [item.name for item in call.operator.tensors if normalise and item.normalise]
    if names:
        call.tensors.update(zip(names, unit_vectors([call.tensors[name] for name in names], with_kernel), strict=True))


def _run_kernels(call: Call) -> tuple[Tensor, Tensor | None]:
    o, final_state = _buffers(call)
    ops.call_forward(call.operator, call.values, *_options(call), o, final_state)
    for buffer, written in ((call.out, o), (call.final_state_out, final_state)):
        # Autograd must learn that a tensor of the caller has changed.
        if buffer is not None and buffer is written and not torch.compiler.is_compiling() and not buffer.is_inference():
            torch.autograd.graph.increment_version(buffer)
    return o, final_state


def _options(call: Call) -> tuple[Tensor | None, Tensor | None, Tensor | None, bool, int, float]:
    """What the kernels' forward pass takes between the operator's arguments and its outputs."""
    tables = call.cu_seqlens, call.cu_seqlens_cpu
    return call.initial_state, *tables, call.state_v_first, call.parts, call.threshold


def _buffers(call: Call) -> tuple[Tensor, Tensor | None]:
    """Where the kernels write: the caller's buffers where they can, new ones elsewhere."""
    o, final_state = call.out, call.final_state_out
    if o is None or not _writable(o):
        o = torch.empty(call.facts.output_shape, dtype=call.facts.data_type, device=call.facts.device)
    if not call.output_final_state:
        return o, None
    # The same memory as initial_state is fine: each tile is read before it is written. A shifted overlap is not.
    if final_state is None or final_state.dtype != torch.float32 or not _writable(final_state) or _shifted(call):
        final_state = torch.empty(call.facts.state_shape, dtype=torch.float32, device=call.facts.device)
    return o, final_state


def _shifted(call: Call) -> bool:
    first, last = call.initial_state, call.final_state_out
    if first is None or last is None or not overlaps(first, last):
        return False
    return first.data_ptr() != last.data_ptr()


def _writable(buffer: Tensor) -> bool:
    if not buffer.is_contiguous():
        return False
    return torch.compiler.is_compiling() or hopper.is_aligned(buffer)


def _run_portable(call: Call) -> tuple[Tensor, Tensor | None]:
    if call.cu_seqlens is not None and not torch.compiler.is_compiling():
        check_offset_values(call.operator.function, "cu_seqlens", call.cu_seqlens.tolist(), call.facts.length)
    state = call.initial_state
    if state is not None and call.state_v_first:
        state = state.transpose(-1, -2)
    # Products in fp32 must stay so inside an autocast region.
    with torch.autocast(call.facts.device.type, enabled=False):
        o, final_state = call.operator.portable(*call.values, initial_state=state, cu_seqlens=call.cu_seqlens)
    if not call.output_final_state:
        return o, None
    if call.state_v_first:
        final_state = final_state.transpose(-1, -2).contiguous()
    return o, final_state


def _finish(call: Call, o: Tensor, final_state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Copies into the caller's buffers where the result is elsewhere."""
    if call.out is not None and o is not call.out:
        o = call.out.copy_(o)
    if call.final_state_out is not None and final_state is not None and final_state is not call.final_state_out:
        final_state = call.final_state_out.copy_(final_state)
    if debugging():
        debug.check_outputs(call, o, final_state)
    return o, final_state
