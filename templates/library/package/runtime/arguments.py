"""Checks the arguments of a call. A fault raises ValueError naming the argument, what was got and what is allowed.

What is found out depends on shapes, types and devices only, so it is remembered by these: a call like an earlier one is
not checked again. Nothing is remembered by a tensor's identity, and no tensor's values are read.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qla_ops.runtime.errors import bad_argument
from qla_ops.runtime.plan import AUTOMATIC, NEVER
from qla_ops.runtime.records import Operator, ScalarArgument, TensorArgument

DATA_TYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
"""Of the data arguments; the kernels take the first two, the portable implementation all."""
NUMBER_TYPES = DATA_TYPES
"""Of gates and states."""
OFFSET_TYPES = (torch.int32, torch.int64)
MAX_TOKENS = 2**31 - 1
"""Token offsets are 32-bit in the kernels."""
_REMEMBERED = 1024


@dataclass(frozen=True)
class Facts:
    """What the shapes, types and devices of a call's arguments say."""

    batch: int
    length: int
    """Tokens of a batch row."""
    key_heads: int
    value_heads: int
    sequences: int
    sizes: dict[str, int]
    """Sizes of the dimension symbols."""
    data_type: torch.dtype
    device: torch.device
    output_shape: tuple[int, ...]
    """[B, T, Hv, V]"""
    state_shape: tuple[int, ...]
    """[N, Hv, K, V] or [N, Hv, V, K]"""
    differentiable: bool
    """Whether autograd wants gradients of this call."""
    key: Hashable
    """What they were remembered by; None while a call is traced."""


@dataclass
class Call:
    """The checked arguments of one call."""

    operator: Operator
    facts: Facts
    tensors: dict[str, Tensor]
    """Tensor arguments by name, as given."""
    scalars: dict[str, float]
    initial_state: Tensor | None
    output_final_state: bool
    cu_seqlens: Tensor | None
    cu_seqlens_cpu: Tensor | None
    """The same offsets for the host, of the right type and shape; their values are not checked yet."""
    state_v_first: bool
    out: Tensor | None
    final_state_out: Tensor | None
    parts: int
    """Segments of each sequence; see `plan`."""
    threshold: float
    """Log gates whose sum is no larger make a segment forget what came before it."""

    @property
    def values(self) -> tuple[Tensor | float, ...]:
        """The operator's arguments in order."""
        given: dict[str, Tensor | float] = {**self.tensors, **self.scalars}
        return tuple([given[item.name] for item in self.operator.arguments])


_KNOWN: dict[Hashable, Facts] = {}


def check_call(
    operator: Operator,
    inputs: tuple[Any, ...],
    *,
    initial_state: Any = None,
    output_final_state: bool = False,
    cu_seqlens: Any = None,
    cu_seqlens_cpu: Any = None,
    state_v_first: bool = False,
    out: Any = None,
    final_state_out: Any = None,
    state_indices: Any = None,
    auto_cp: Any = True,
    cp_threshold: Any = -10.0,
) -> Call:
    """The arguments as a `Call`. Raises ValueError."""
    if state_indices is not None:
        got = f"a {type(state_indices).__name__}"
        raise bad_argument(operator.function, "state_indices", got, "state pools are not supported yet; pass None")
    options = (initial_state, cu_seqlens, out, final_state_out)
    tensors = {
        item.name: value
        for item, value in zip(operator.arguments, inputs, strict=True)
        if isinstance(item, TensorArgument)
    }
    key = _key(operator, (*tensors.values(), *options), state_v_first)
    facts = _KNOWN.get(key) if key is not None else None
    if facts is None:
        facts = _find_facts(operator, tensors, options, state_v_first, key)
        if key is not None:
            if len(_KNOWN) >= _REMEMBERED:
                _KNOWN.clear()
            _KNOWN[key] = facts
    scalars = {
        item.name: _number(operator, item, value, facts.sizes)
        for item, value in zip(operator.arguments, inputs, strict=True)
        if isinstance(item, ScalarArgument)
    }
    if out is not None:
        _check_overlap(operator, tensors, out)
    if cu_seqlens_cpu is not None:
        _check_host_offsets(operator, cu_seqlens, cu_seqlens_cpu)
    final = bool(output_final_state) or final_state_out is not None
    parts, threshold = _parts(operator, auto_cp), _threshold(operator, cp_threshold)
    states = initial_state, final, cu_seqlens, cu_seqlens_cpu, state_v_first, out, final_state_out
    return Call(operator, facts, tensors, scalars, *states, parts, threshold)


def _key(operator: Operator, values: tuple[Any, ...], state_v_first: bool) -> Hashable:
    """Everything that checks look at; None while a call is traced, when shapes may be symbols."""
    if torch.compiler.is_compiling() or type(values[0]) is not Tensor:
        return None
    parts = [
        (x.shape, x.dtype, x.device, x.layout, x.requires_grad) if isinstance(x, Tensor) else type(x) for x in values
    ]
    return (operator.name, state_v_first, torch.is_grad_enabled(), *parts)


def _find_facts(
    operator: Operator, tensors: dict[str, Any], options: tuple[Any, ...], state_v_first: bool, key: Hashable
) -> Facts:
    initial_state, cu_seqlens, out, final_state_out = options
    for item in operator.tensors:
        _check_tensor(operator, item, tensors[item.name])
    batch, length, heads, sizes = _check_shapes(operator, tensors)
    first = tensors[operator.tensors[0].name]
    sequences = batch if cu_seqlens is None else _check_offsets(operator, cu_seqlens, batch, first)
    rows, columns = ("V", "K") if state_v_first else ("K", "V")
    inputs = [*tensors.values(), *((initial_state,) if isinstance(initial_state, Tensor) else ())]
    facts = Facts(
        batch=batch,
        length=length,
        key_heads=heads["key"],
        value_heads=heads["value"],
        sequences=sequences,
        sizes=sizes,
        data_type=next(tensors[item.name].dtype for item in operator.tensors if item.data),
        device=first.device,
        output_shape=(batch, length, heads["value"], sizes["V"]),
        state_shape=(sequences, heads["value"], sizes[rows], sizes[columns]),
        differentiable=torch.is_grad_enabled() and any(item.requires_grad for item in inputs),
        key=key,
    )
    layout = f"{operator.head_names[1]}, {rows}, {columns}"
    meaning = f" = [N, {layout}] with state_v_first={state_v_first}"
    for name, state in (("initial_state", initial_state), ("final_state_out", final_state_out)):
        if state is not None:
            _check_like(operator, facts, name, state, facts.state_shape, NUMBER_TYPES, meaning)
    if out is not None:
        _check_like(operator, facts, "out", out, facts.output_shape, (facts.data_type,), "")
    _check_no_gradient(operator, facts, (("out", out), ("final_state_out", final_state_out)))
    return facts


def _check_tensor(operator: Operator, argument: TensorArgument, value: Any) -> None:
    if not isinstance(value, Tensor):
        allowed = f"a tensor {_pattern(operator, argument)} is needed"
        raise bad_argument(operator.function, argument.name, f"a {type(value).__name__}", allowed)
    types = DATA_TYPES if argument.data else NUMBER_TYPES
    if value.dtype not in types:
        raise bad_argument(operator.function, argument.name, f"of type {value.dtype}", f"allowed: {_join(types)}")
    if value.layout != torch.strided:
        got = f"a tensor with layout {value.layout}"
        raise bad_argument(operator.function, argument.name, got, "a dense (strided) tensor is needed")


def _check_shapes(operator: Operator, tensors: dict[str, Tensor]) -> tuple[int, int, dict[str, int], dict[str, int]]:
    """B, T, the numbers of heads and the sizes of the dimension symbols, each as its first argument has it."""
    lead = operator.tensors[0]
    first = tensors[lead.name]
    if first.dim() != 3 + len(lead.dims):
        raise _bad_shape(operator, lead, first, "")
    batch, length = first.shape[:2]
    data = next(item.name for item in operator.tensors if item.data)
    heads: dict[str, int] = {}
    sizes: dict[str, int] = {}
    for argument in operator.tensors:
        tensor = tensors[argument.name]
        if tensor.dim() == 3 + len(argument.dims):
            heads.setdefault(argument.heads, tensor.shape[2])
            for symbol, size in zip(argument.dims, tensor.shape[3:], strict=True):
                sizes.setdefault(symbol, size)
        wanted = (batch, length, heads.get(argument.heads), *[sizes.get(symbol) for symbol in argument.dims])
        if tuple(tensor.shape) != wanted or 0 in wanted[2:]:
            raise _bad_shape(operator, argument, tensor, _known(wanted))
        if argument.data and tensor.dtype != tensors[data].dtype:
            allowed = f"it must have the type of {data}, {tensors[data].dtype}"
            raise bad_argument(operator.function, argument.name, f"of type {tensor.dtype}", allowed)
        if tensor.device != first.device:
            allowed = f"it must be on the device of {lead.name}, {first.device}"
            raise bad_argument(operator.function, argument.name, f"on {tensor.device}", allowed)
    if batch * length > MAX_TOKENS:
        got = f"of shape {list(first.shape)}"
        raise bad_argument(operator.function, lead.name, got, f"B * T may be {MAX_TOKENS} at most")
    return batch, length, _check_heads(operator, heads), sizes


def _check_heads(operator: Operator, heads: dict[str, int]) -> dict[str, int]:
    """Both numbers of heads; a kind that no argument has is as large as the other."""
    key = heads.get("key", heads.get("value", 1))
    value = heads.get("value", key)
    if value % key:
        name = next(item.name for item in operator.tensors if item.heads == "value")
        key_name, value_name = operator.head_names
        allowed = f"{value_name} must be a multiple of {key_name} = {key}"
        raise bad_argument(operator.function, name, f"given with {value_name} = {value} heads", allowed)
    return {"key": key, "value": value}


def _check_offsets(operator: Operator, offsets: Any, batch: int, first: Tensor) -> int:
    """The number of sequences."""
    name, function = "cu_seqlens", operator.function
    if not isinstance(offsets, Tensor):
        allowed = "an int32 or int64 tensor [N + 1] of token offsets is needed"
        raise bad_argument(function, name, f"a {type(offsets).__name__}", allowed)
    if offsets.dtype not in OFFSET_TYPES:
        raise bad_argument(function, name, f"of type {offsets.dtype}", f"allowed: {_join(OFFSET_TYPES)}")
    if offsets.dim() != 1 or offsets.shape[0] < 1:
        raise bad_argument(function, name, f"of shape {list(offsets.shape)}", "[N + 1] offsets are needed")
    if offsets.device != first.device:
        allowed = f"it must be on the device of {operator.tensors[0].name}, {first.device}"
        raise bad_argument(function, name, f"on {offsets.device}", allowed)
    if batch != 1:
        got = f"given (shape {list(offsets.shape)}) with {operator.tensors[0].name} of shape {list(first.shape)}"
        allowed = "packed sequences need B = 1; without cu_seqlens every batch row is a sequence of its own"
        raise bad_argument(function, name, got, allowed)
    return offsets.shape[0] - 1


def _check_host_offsets(operator: Operator, offsets: Tensor | None, copy: Any) -> None:
    name, function = "cu_seqlens_cpu", operator.function
    if offsets is None:
        allowed = "it is a copy of cu_seqlens for the host; give cu_seqlens too"
        raise bad_argument(function, name, "given without cu_seqlens", allowed)
    if not isinstance(copy, Tensor):
        allowed = "an int32 or int64 tensor on the CPU is needed"
        raise bad_argument(function, name, f"a {type(copy).__name__}", allowed)
    if copy.dtype not in OFFSET_TYPES:
        raise bad_argument(function, name, f"of type {copy.dtype}", f"allowed: {_join(OFFSET_TYPES)}")
    if copy.device.type != "cpu":
        allowed = "it must be on the CPU: reading it from a device would stop the host"
        raise bad_argument(function, name, f"on {copy.device}", allowed)
    if copy.shape != offsets.shape:
        allowed = f"needed: that of cu_seqlens, {list(offsets.shape)}"
        raise bad_argument(function, name, f"of shape {list(copy.shape)}", allowed)


def check_offset_values(function: str, name: str, offsets: list[int], length: int) -> None:
    """Offsets must start at 0, never fall, and end within the T tokens. Raises ValueError."""
    allowed = f"offsets must start at 0, never decrease and end at {length} (T) or before"
    for index, value in enumerate(offsets):
        if value < (offsets[index - 1] if index else 0) or value > length or (index == 0 and value != 0):
            raise bad_argument(function, name, f"{value} at index {index}", allowed)


def _check_like(
    operator: Operator,
    facts: Facts,
    name: str,
    value: Any,
    shape: tuple[int, ...],
    types: tuple[torch.dtype, ...],
    meaning: str,
) -> None:
    function = operator.function
    if not isinstance(value, Tensor):
        raise bad_argument(function, name, f"a {type(value).__name__}", f"a tensor of shape {list(shape)} is needed")
    if tuple(value.shape) != shape:
        raise bad_argument(function, name, f"of shape {list(value.shape)}", f"needed: {list(shape)}{meaning}")
    if value.dtype not in types:
        raise bad_argument(function, name, f"of type {value.dtype}", f"allowed: {_join(types)}")
    if value.device != facts.device:
        allowed = f"it must be on the device of {operator.tensors[0].name}, {facts.device}"
        raise bad_argument(function, name, f"on {value.device}", allowed)


def _check_no_gradient(operator: Operator, facts: Facts, buffers: tuple[tuple[str, Tensor | None], ...]) -> None:
    for name, buffer in buffers:
        if buffer is not None and (facts.differentiable or (torch.is_grad_enabled() and buffer.requires_grad)):
            allowed = "an output buffer takes no part in autograd; leave it out or use torch.no_grad()"
            raise bad_argument(operator.function, name, "given although a gradient is wanted", allowed)


def _check_overlap(operator: Operator, tensors: dict[str, Tensor], out: Tensor) -> None:
    for name, tensor in tensors.items():
        if overlaps(out, tensor):
            raise bad_argument(
                operator.function, "out", f"in the same memory as {name}", "it must not overlap an input"
            )


def overlaps(left: Tensor, right: Tensor) -> bool:
    """Whether two contiguous tensors overlap. Interleaved views are not looked into."""
    if not left.numel() or not right.numel() or not (left.is_contiguous() and right.is_contiguous()):
        return False
    if torch.compiler.is_compiling() or left.device.type == "meta":
        return False
    start, other = left.data_ptr(), right.data_ptr()
    return start < other + right.numel() * right.element_size() and other < start + left.numel() * left.element_size()


def _number(operator: Operator, argument: ScalarArgument, value: Any, sizes: dict[str, int]) -> float:
    """Only None means the default: 0.0 is 0.0."""
    if value is None:
        return argument.default(sizes)
    if not isinstance(value, Tensor):
        try:
            return float(value)
        except (TypeError, ValueError):
            pass
    raise bad_argument(operator.function, argument.name, f"a {type(value).__name__}", "a number or None is needed")


def _parts(operator: Operator, auto_cp: Any) -> int:
    """`Call.parts`. Numbers below 2 are refused: 0 and 1 are as likely meant as segments as they are as switches."""
    if isinstance(auto_cp, bool):
        return AUTOMATIC if auto_cp else NEVER
    if isinstance(auto_cp, int) and auto_cp >= 2:
        return auto_cp
    got = repr(auto_cp) if isinstance(auto_cp, int) else f"a {type(auto_cp).__name__}"
    allowed = "allowed: True (a cost model decides), False (sequences stay whole), or 2 and more segments per sequence"
    raise bad_argument(operator.function, "auto_cp", got, allowed)


def _threshold(operator: Operator, value: Any) -> float:
    allowed = "a sum of log gates is needed: 0 or less, where -inf computes every map"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise bad_argument(operator.function, "cp_threshold", f"a {type(value).__name__}", allowed)
    if not value <= 0:
        raise bad_argument(operator.function, "cp_threshold", repr(value), allowed)
    return float(value)


def _bad_shape(operator: Operator, argument: TensorArgument, tensor: Tensor, known: str) -> ValueError:
    allowed = f"needed: {_pattern(operator, argument)}{known}"
    return bad_argument(operator.function, argument.name, f"of shape {list(tensor.shape)}", allowed)


def _pattern(operator: Operator, argument: TensorArgument) -> str:
    heads = operator.head_names[0 if argument.heads == "key" else 1]
    return f"[{', '.join(('B', 'T', heads, *argument.dims))}]"


def _known(wanted: tuple[int | None, ...]) -> str:
    return f" = [{', '.join('?' if size is None else str(size) for size in wanted)}], no size 0 but B and T"


def _join(types: tuple[torch.dtype, ...]) -> str:
    return ", ".join(str(item) for item in types)
