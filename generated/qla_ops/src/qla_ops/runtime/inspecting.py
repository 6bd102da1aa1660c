"""Answers about a call without making it, and building ahead of the first one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from qla_ops.runtime import loader
from qla_ops.runtime.arguments import Call, check_call
from qla_ops.runtime.builder import Built, build, build_all
from qla_ops.runtime.choose import (
    DATA_TYPES,
    OPERATORS,
    call_plan,
    choose,
    device_facts,
    item_count,
    plan_kernels,
    unsuitable,
    workers,
)
from qla_ops.runtime.environment import cache_folder
from qla_ops.runtime.lengths import known_lengths
from qla_ops.runtime.plan import AUTOMATIC, NEVER, Plan, Times, can_cut, cta_count, join_items
from qla_ops.runtime.records import Kernel, Operator

_NOT_OF_A_CALL = ("use_qk_l2norm_in_kernel", "strict", "impl")


@dataclass(frozen=True)
class Launch:
    """One kernel of a call."""

    kernel: str
    ctas: int
    reason: str


@dataclass(frozen=True)
class Explanation:
    """Which implementation a call gets, and why. `str` gives it as text."""

    function: str
    implementation: str
    reason: str
    launches: tuple[Launch, ...]
    plan: tuple[str, ...] = ()
    """Whether sequences are cut into segments, why, and the modelled times."""

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.implementation} ({self.reason})"]
        lines += [f"  {item.kernel}: {item.ctas} CTAs ({item.reason})" for item in self.launches]
        lines += [f"  {line}" for line in self.plan]
        return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Which implementation, kernels and tiles `function` uses for these arguments, and why.

    Raises what the call itself would raise for bad arguments.
    """
    operator, call, asked = _bind(function, args, kwargs)
    implementation = choose(call, asked["strict"], asked["impl"])
    if implementation == "hopper":
        plan = _plan(call, call.parts)
        reason = "its kernels take these arguments"
        return Explanation(operator.function, implementation, reason, _launches(call, plan), _plan_lines(call, plan))
    reason = "asked for with impl='reference'" if asked["impl"] else str(unsuitable(call))
    return Explanation(operator.function, implementation, reason, ())


def can_use(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[bool, str]:
    """Whether the Hopper kernels take these arguments, and why not. Bad arguments are a reason, not an exception."""
    try:
        _, call, _ = _bind(function, args, kwargs)
    except (TypeError, ValueError) as fault:
        return False, str(fault)
    reason = unsuitable(call)
    return reason is None, reason or "the Hopper kernels take these arguments"


def warmup(
    function: Callable[..., Any], data_types: Iterable[torch.dtype] = (torch.bfloat16,), folder: Path | None = None
) -> tuple[Path, ...]:
    """Builds every kernel of `function` for the data types, so that no later call waits for a compiler.

    Needs tilelang and nvcc unless the kernels are built already; needs no GPU. `folder` is the cache by default.
    Returns the libraries. Raises ValueError for another data type, BuildError when a kernel cannot be built.
    """
    types = tuple(data_types)
    for item in types:
        if item not in DATA_TYPES:
            raise ValueError(f"data_types has {item}; allowed: torch.bfloat16, torch.float16")
    operator = _operator(function)
    # A dictionary keeps the order and names each kernel once.
    wanted = dict.fromkeys(pair for item in types for pair in loader.needed(operator, DATA_TYPES[item]))
    found = {pair: loader.find_library(*pair) if folder is None else None for pair in wanted}
    missing = [pair for pair, path in found.items() if path is None]
    found |= zip(missing, build_all(missing, folder or cache_folder()), strict=True)
    return tuple(path for path in found.values() if path is not None)


def build_kernel(name: str, data_type: str, folder: Path) -> Built:
    """Builds the kernel of that name into a folder."""
    found = {kernel.name: kernel for operator in OPERATORS.values() for kernel in operator.kernels}
    found |= {kernel.name: kernel for kernel in loader.SHARED}
    return build(found[name], data_type, folder)


def _plan(call: Call, parts: int) -> Plan:
    facts = call.facts
    processors = device_facts(facts.device.index or 0).processors
    tokens = max(facts.batch * facts.length, 1)
    packed, known = call.cu_seqlens is not None, known_lengths(call.operator, call.cu_seqlens_cpu, tokens)
    sequences = max(facts.sequences, 1)
    return call_plan(call.operator, sequences, tokens, facts.value_heads, processors, packed, parts, known)


def _launches(call: Call, plan: Plan) -> tuple[Launch, ...]:
    """The kernels of a call on its GPU, with the variant chosen and why."""
    processors = device_facts(call.facts.device.index or 0).processors
    facts, sizes = call.facts, call.operator.sizes
    slots = facts.batch * facts.length // call.operator.chunk + facts.sequences
    result = []
    for kernel in plan_kernels(call.operator, plan, facts.key_heads, facts.value_heads):
        if kernel.kind == "carried":
            result.append(_carried(kernel, sizes["V"], plan.cutting.segments, facts.value_heads, processors))
        elif kernel.kind == "segment":
            walked = plan.cutting.segments - (facts.sequences if kernel.persistent else 0)
            launch = _carried(kernel, sizes["V"] + sizes["K"], walked, facts.value_heads, processors)
            if plan.turns > 1:
                reason = f"{launch.reason}, those with a map first"
                states = _carried(kernel, sizes["V"], walked, facts.value_heads, processors)
                launch = replace(launch, ctas=launch.ctas + (plan.turns - 1) * states.ctas, reason=reason)
            result.append(launch)
        elif kernel is loader.JOIN:
            joints = plan.cutting.segments - facts.sequences
            chains = min(facts.sequences, joints // 2)
            items = join_items(call.operator, chains, facts.value_heads, joints, processors)
            count = workers(kernel, items, processors)
            result.append(Launch(kernel.name, count, "carries states over the segments that do not forget them"))
        else:
            items = item_count(kernel, slots, facts.key_heads, facts.value_heads)
            count = workers(kernel, items, processors)
            reason = f"persistent, {kernel.ctas_per_sm} on each of {processors} SMs at most"
            result.append(Launch(kernel.name, count, reason))
    return tuple(result)


def _carried(kernel: Kernel, columns: int, segments: int, value_heads: int, processors: int) -> Launch:
    pairs = segments * value_heads
    count = cta_count(kernel, columns, pairs)
    fits = "all at once" if count <= processors * kernel.ctas_per_sm else "in turns"
    reason = f"{pairs} segments x heads, tile of {kernel.value_tile} columns, {fits} on {processors} SMs"
    return Launch(kernel.name, workers(kernel, count, processors) if kernel.persistent else count, reason)


def _plan_lines(call: Call, plan: Plan) -> tuple[str, ...]:
    """Whether sequences are cut, why, and what the model says of it and of the opposite."""
    if not can_cut(call.operator):
        return ("sequences stay whole: this operator has no kernels for segments",)
    packed = call.cu_seqlens is not None
    if plan.segment is None:
        why = "auto_cp=False" if call.parts == NEVER else "cutting them is not faster, by the model"
        first = f"sequences stay whole ({why})"
    elif not packed or plan.parts != AUTOMATIC:
        asked = "the model's choice" if call.parts == AUTOMATIC else f"auto_cp={call.parts}"
        first = f"each sequence is cut into {plan.parts} segments, where its chunks allow ({asked})"
    elif plan.cutting.length:
        length, count = plan.cutting.length * call.operator.chunk, plan.cutting.segments
        first = f"sequences are cut into {count} segments of {length} tokens at most (the model's choice)"
    else:
        extra = plan.cutting.segments - call.facts.sequences
        first = f"sequences are cut on the GPU, by their lengths, {extra} times at most (the model's choice)"
    whole = _plan(call, NEVER) if plan.segment else plan
    names = ("all equally long", "one long, the others a chunk") if packed and len(plan.times) > 1 else ("",)
    lines = [first]
    for name, times, uncut in zip(names, plan.times, whole.times, strict=True):
        against = f"; whole: {uncut.total / 1000:.0f} us" if plan.segment else ""
        lines.append(f"modelled{', ' + name if name else ''}: {_times(times)}{against}")
    return tuple(lines)


def _times(times: Times) -> str:
    if not times.idle:
        return f"{times.total / 1000:.0f} us without the prepare kernels"
    parts = (("states", times.segment), ("join", times.join), ("forward", times.forward), ("idle", times.idle))
    text = ", ".join(f"{name} {time / 1000:.0f}" for name, time in parts)
    return f"{times.total / 1000:.0f} us without the prepare kernels ({text})"


def attach(function: Callable[..., Any], operator: Operator) -> None:
    """Enters an operator, and gives its public function `explain`, `can_use` and `warmup` as attributes."""
    OPERATORS[operator.name] = operator
    for answer in (explain, can_use, warmup):
        setattr(function, answer.__name__, _bound(answer, function))


def _bound(answer: Callable[..., Any], function: Callable[..., Any]) -> Callable[..., Any]:
    def bound(*args: Any, **kwargs: Any) -> Any:
        return answer(function, *args, **kwargs)

    bound.__name__, bound.__doc__ = answer.__name__, answer.__doc__
    return bound


def _operator(function: Callable[..., Any]) -> Operator:
    name = getattr(function, "__name__", repr(function))
    for operator in OPERATORS.values():
        if operator.function == name:
            return operator
    allowed = ", ".join(sorted(item.function for item in OPERATORS.values()))
    raise ValueError(f"{name} is no operator of this library; allowed: {allowed}")


def _bind(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Operator, Call, dict[str, Any]]:
    """The operator, the checked call, and the options that only choose an implementation."""
    operator = _operator(function)
    bound = inspect.signature(function).bind(*args, **kwargs)
    bound.apply_defaults()
    values = dict(bound.arguments)
    asked = {name: values.pop(name) for name in _NOT_OF_A_CALL}
    inputs = tuple(values.pop(item.name) for item in operator.arguments)
    return operator, check_call(operator, inputs, **values), asked
