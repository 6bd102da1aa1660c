"""Answers about a call without making it, and building ahead of the first one."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from qla_ops.runtime import loader
from qla_ops.runtime.arguments import Call, check_call
from qla_ops.runtime.builder import Built, build
from qla_ops.runtime.choose import (
    DATA_TYPES,
    OPERATORS,
    choose,
    choose_variant,
    cta_count,
    device_facts,
    unsuitable,
    workers,
)
from qla_ops.runtime.environment import cache_folder
from qla_ops.runtime.records import Operator

_NOT_OF_A_CALL = ("use_qk_l2norm_in_kernel", "auto_cp", "strict", "impl")


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

    def __str__(self) -> str:
        lines = [f"{self.function}: {self.implementation} ({self.reason})"]
        lines += [f"  {item.kernel}: {item.ctas} CTAs ({item.reason})" for item in self.launches]
        return "\n".join(lines)


def explain(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Explanation:
    """Which implementation, kernels and tiles `function` uses for these arguments, and why.

    Raises what the call itself would raise for bad arguments.
    """
    operator, call, asked = _bind(function, args, kwargs)
    implementation = choose(call, asked["strict"], asked["impl"])
    if implementation == "hopper":
        return Explanation(operator.function, implementation, "its kernels take these arguments", launches(call))
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
    paths = []
    for kernel, data_type in wanted:
        found = loader.find_library(kernel, data_type) if folder is None else None
        paths.append(found or build(kernel, data_type, folder or cache_folder()).path)
    return tuple(paths)


def build_kernel(name: str, data_type: str, folder: Path) -> Built:
    """Builds the kernel of that name into a folder."""
    found = {kernel.name: kernel for operator in OPERATORS.values() for kernel in operator.kernels}
    found |= {kernel.name: kernel for kernel in loader.SHARED}
    return build(found[name], data_type, folder)


def launches(call: Call) -> tuple[Launch, ...]:
    """The kernels of a call on its GPU, with the variant chosen and why."""
    processors = device_facts(call.facts.device.index or 0).processors
    facts = call.facts
    value_dim, pairs = facts.sizes["V"], facts.sequences * facts.value_heads
    result = []
    for program in call.operator.programs:
        kernel = choose_variant(program, value_dim, pairs, processors)
        if kernel.kind == "carried":
            count = cta_count(kernel, value_dim, pairs)
            fits = "all at once" if count <= processors * kernel.ctas_per_sm else "in turns"
            reason = f"{pairs} sequences x heads, value tile {kernel.value_tile}, {fits} on {processors} SMs"
        else:
            slots = facts.batch * facts.length // call.operator.chunk + facts.sequences
            count = workers(kernel, slots * facts.value_heads, processors)
            reason = f"persistent, {kernel.ctas_per_sm} on each of {processors} SMs at most"
        result.append(Launch(kernel.name, count, reason))
    return tuple(result)


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
