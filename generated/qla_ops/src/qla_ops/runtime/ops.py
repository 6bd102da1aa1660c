"""Registers each operator's Hopper forward pass as a torch operator, so that `torch.compile` sees one opaque call.

``qla_ops::<operator>_forward`` writes its outputs into buffers that the caller gives and returns nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_in_torch_dispatch_mode

from qla_ops.runtime import hopper
from qla_ops.runtime.records import Operator, ScalarArgument

NAMESPACE = "qla_ops"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")
_DIRECT: dict[str, Callable[..., None]] = {}


def schema(operator: Operator) -> str:
    """The torch operator's schema: the operator's arguments in order, then states, tables, how to cut, and outputs."""
    inputs = [f"{'float' if isinstance(item, ScalarArgument) else 'Tensor'} {item.name}" for item in operator.arguments]
    rest = [
        "Tensor? initial_state",
        "Tensor? cu_seqlens",
        "Tensor? cu_seqlens_cpu",
        "bool state_v_first",
        "int auto_cp",
        "float cp_threshold",
        "Tensor(a!) o",
        "Tensor(b!)? final_state",
    ]
    return f"{operator.name}_forward({', '.join(inputs + rest)}) -> ()"


def implementation(operator: Operator) -> Callable[..., None]:
    """The torch operator's function for CUDA tensors."""
    names = tuple(item.name for item in operator.arguments)
    tensors = frozenset(item.name for item in operator.tensors)

    def forward(*values: Any) -> None:
        given = dict(zip(names, values, strict=False))
        inputs = {name: value for name, value in given.items() if name in tensors}
        scalars = {name: value for name, value in given.items() if name not in tensors}
        hopper.forward(operator, inputs, scalars, *values[len(names) :])

    return forward


def register(operator: Operator) -> None:
    """Defines the torch operator. A second registration of the same one changes nothing."""
    if hasattr(getattr(torch.ops, NAMESPACE), f"{operator.name}_forward"):
        return
    _LIBRARY.define(schema(operator))
    name = f"{NAMESPACE}::{operator.name}_forward"
    _DIRECT[operator.name] = implementation(operator)
    torch.library.impl(name, "CUDA", lib=_LIBRARY)(_DIRECT[operator.name])
    # The outputs are the caller's buffers: for shapes alone there is nothing to do.
    torch.library.register_fake(name, lambda *_: None, lib=_LIBRARY)


def call_forward(
    operator: Operator,
    inputs: tuple[Tensor | float, ...],
    initial_state: Tensor | None,
    cu_seqlens: Tensor | None,
    cu_seqlens_cpu: Tensor | None,
    state_v_first: bool,
    parts: int,
    threshold: float,
    o: Tensor,
    final_state: Tensor | None,
) -> None:
    """Calls the torch operator; directly where nothing looks at the call, since the dispatcher costs microseconds."""
    options = initial_state, cu_seqlens, cu_seqlens_cpu, state_v_first, parts, threshold
    if type(inputs[0]) is Tensor and not torch.compiler.is_compiling() and not is_in_torch_dispatch_mode():
        _DIRECT[operator.name](*inputs, *options, o, final_state)
        return
    function = getattr(getattr(torch.ops, NAMESPACE), f"{operator.name}_forward")
    function(*inputs, *options, o, final_state)
