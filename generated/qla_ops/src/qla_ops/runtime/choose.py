"""Which implementation takes a call, and which variant of each kernel. Every answer comes with its reason."""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from qla_ops.runtime import loader
from qla_ops.runtime.arguments import Call
from qla_ops.runtime.errors import ImplementationUnavailableError, bad_argument
from qla_ops.runtime.lengths import Lengths
from qla_ops.runtime.log import note_fallback
from qla_ops.runtime.plan import Plan, choose_plan, forced
from qla_ops.runtime.records import Kernel, Operator
from qla_ops.runtime.tracing import constant_while_traced

IMPLEMENTATIONS = ("hopper", "reference")
CAPABILITY = (9, 0)
DATA_TYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16"}
"""What the kernels are built for."""
OPERATORS: dict[str, Operator] = {}
"""The operators of the library by name; each operator's module enters its own."""
_REMEMBERED = 1024
_USABLE: set[Hashable] = set()
"""Keys of calls that the kernels take: that never changes in a process."""


@dataclass(frozen=True)
class Device:
    name: str
    capability: tuple[int, int]
    processors: int
    """Streaming multiprocessors."""


@functools.lru_cache(maxsize=64)
def device_facts(index: int) -> Device:
    """Facts of a CUDA device."""
    facts = torch.cuda.get_device_properties(index)
    return Device(facts.name, (facts.major, facts.minor), facts.multi_processor_count)


def choose(call: Call, strict: bool, impl: str | None) -> str:
    """``hopper`` or ``reference``. Raises ValueError and ImplementationUnavailableError."""
    function = call.operator.function
    if impl is not None and impl not in IMPLEMENTATIONS:
        raise bad_argument(function, "impl", repr(impl), "allowed: None, 'hopper', 'reference'")
    if impl == "reference":
        return impl
    reason = unsuitable(call)
    if reason is None:
        return "hopper"
    if strict or impl == "hopper":
        asked = "impl='hopper'" if impl else "strict=True"
        hint = "leave it out to let the portable implementation take the call"
        raise ImplementationUnavailableError(f"{function}: {asked}, but {reason}; {hint}")
    note_fallback(function, reason)
    return "reference"


def unsuitable(call: Call) -> str | None:
    """Why the Hopper kernels cannot take the call, or None when they can."""
    key = call.facts.key
    if key is not None and key in _USABLE:
        return None
    reason = _unsuitable(call)
    if reason is None and key is not None:
        if len(_USABLE) >= _REMEMBERED:
            _USABLE.clear()
        _USABLE.add(key)
    return reason


def _unsuitable(call: Call) -> str | None:
    operator, facts = call.operator, call.facts
    if not operator.programs:
        return operator.obstacle or "this copy of the library has no kernels for it"
    if facts.data_type not in DATA_TYPES:
        return f"its data is {facts.data_type}; the kernels take torch.bfloat16 and torch.float16"
    for name, tensor in (*call.tensors.items(), ("initial_state", call.initial_state)):
        if tensor is not None and tensor.dtype == torch.float64:
            return f"{name} is torch.float64; the kernels compute in float32"
    for symbol, size in operator.dims:
        if facts.sizes.get(symbol, size) != size:
            sizes = ", ".join(f"{name} = {size}" for name, size in operator.dims if name != "C")
            return f"{symbol} is {facts.sizes[symbol]}; the kernels are built for {sizes}"
    if facts.differentiable:
        return "an input requires grad and the kernels have no backward pass yet"
    if facts.device.type != "cuda":
        lead = operator.tensors[0].name
        return f"{lead} is on {facts.device}; the kernels run on CUDA devices of compute capability 9.0"
    return device_obstacle(facts.device.index or 0) or kernel_obstacle(operator.name, DATA_TYPES[facts.data_type])


@constant_while_traced
def device_obstacle(index: int) -> str | None:
    """Why a device cannot run the kernels, or None."""
    if torch.version.hip is not None:
        return "this is a ROCm build of torch; the kernels run on CUDA devices of compute capability 9.0"
    facts = device_facts(index)
    if facts.capability != CAPABILITY:
        major, minor = facts.capability
        return f"{facts.name} has compute capability {major}.{minor}; the kernels need 9.0 (H100, H200, H20, GH200)"
    return None


@constant_while_traced
def kernel_obstacle(operator: str, data_type: str) -> str | None:
    """Why the kernels of an operator can be neither loaded nor built, or None."""
    return loader.obstacle(loader.needed(OPERATORS[operator], data_type))


_PLANS: dict[tuple[Any, ...], Plan] = {}


def call_plan(
    operator: Operator,
    sequences: int,
    tokens: int,
    value_heads: int,
    processors: int,
    packed: bool,
    parts: int,
    known: Lengths | None = None,
) -> Plan:
    """`choose_plan`, remembered. Packed calls differ in length from step to step: their plans are made for a length
    that is rounded up by a sixteenth at most, or for `known` ones, rounded up too, which get the room that they need.
    """
    groups = known.groups if known else None
    if groups is not None:
        tokens = sum(count * chunks for count, chunks in groups) * operator.chunk
    elif packed:
        step = 1 << max(tokens.bit_length() - 5, 0)
        tokens = -(-tokens // step) * step
    key = (operator.name, sequences, tokens, value_heads, processors, packed, parts, groups, forced())
    plan = _PLANS.get(key)
    if plan is None:
        if len(_PLANS) >= _REMEMBERED:
            _PLANS.clear()
        plan = _PLANS[key] = choose_plan(operator, sequences, tokens, value_heads, processors, packed, parts, groups)
    cutting = known.fit(plan.cutting) if known else plan.cutting
    return plan if cutting == plan.cutting else replace(plan, cutting=cutting)


def plan_kernels(operator: Operator, plan: Plan, key_heads: int, value_heads: int) -> tuple[Kernel, ...]:
    """The kernels of a plan in launch order, but for that of the tables."""
    chosen: list[Kernel] = []
    for program in operator.programs:
        widest = max(program.variants, key=lambda kernel: kernel.value_tile)
        if widest.kind == "carried":
            chosen.append(plan.forward)
        elif widest.kind != "segment":
            chosen.append(_roomy(program.variants, value_heads // key_heads))
        elif plan.segment is not None:
            chosen += [plan.segment, loader.JOIN]
    return tuple(chosen)


def _roomy(variants: Sequence[Kernel], group: int) -> Kernel:
    """Of the kernels whose items have room for all value heads of a key head the one with the least; the one with the
    most if none has enough."""
    named = [kernel for kernel in variants if kernel.module.rpartition(".")[2] in forced()] or variants
    enough = [kernel for kernel in named if kernel.item_heads[1] >= group]
    return min(enough or named, key=lambda kernel: kernel.item_heads[1] * (1 if enough else -1))


def item_count(kernel: Kernel, chunk_count: int, key_heads: int, value_heads: int) -> int:
    """Items of a chunk-parallel kernel."""
    keys, room = kernel.item_heads
    return chunk_count * -(-key_heads // keys) * -(-value_heads // key_heads // room)


def workers(kernel: Kernel, items: int, processors: int) -> int:
    """CTAs of a persistent kernel: as many as run at once, and no more than there is work. Where all items are alike,
    only as many as finish in the same number of turns: then no CTA works alone in the end."""
    most = processors * kernel.ctas_per_sm
    if kernel.kind == "chunk_parallel" and items > most:
        return -(-items // -(-items // most))
    return max(1, min(items, most))
