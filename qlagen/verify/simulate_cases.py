"""The kernels of a generated library on the cases, in the CPU emulator, judged like any other implementation."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from qlagen.emit.load import load_kernel
from qlagen.errors import QlagenError
from qlagen.verify.emulator import Mode
from qlagen.verify.library import torch_arguments
from qlagen.verify.problem import Problem
from qlagen.verify.report import Row, failure, judge
from qlagen.verify.segments import even_cuts
from qlagen.verify.simulate import SEGMENT, Call, EmulatedOperator

PIECES = 3
"""Segments of a sequence: a first one, one that is joined to it, and a last one."""


@dataclass(frozen=True)
class Variant:
    """One way to run an operator: a kernel file for each launch, in order."""

    name: str
    files: tuple[Path, ...]


def simulate_variant(
    variant: Variant,
    problems: Sequence[Problem],
    modes: Sequence[Mode],
    progress: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Two rows, o and final_state, for each case that has tokens and each mode. Kernels are built once per data type.
    With a kernel that makes segments' maps, sequences are cut into up to `PIECES` segments.

    Raises QlagenError when a kernel cannot be built.
    """
    modules = [load_kernel(file) for file in variant.files]
    operators: dict[str, EmulatedOperator] = {}
    rows: list[Row] = []
    for problem in problems:
        if not problem.output.shape[0] * problem.output.shape[1] or not problem.spans:
            continue  # The library launches nothing then.
        data_type = problem.case.dtype
        if data_type not in operators:
            progress(f"{variant.name}: building for {data_type}")
            operators[data_type] = EmulatedOperator(modules, data_type)
        for mode in modes:
            progress(f"{variant.name}: {problem.case.name}, {mode}")
            rows += simulate_problem(operators[data_type], problem, mode, f"{variant.name}, {mode}")
    return rows


def simulate_problem(operator: EmulatedOperator, problem: Problem, mode: Mode, implementation: str) -> list[Row]:
    """Rows of one case in one mode. A deadlock or a bad access becomes a failed row."""
    try:
        buffers = operator(_cut(call_of(problem), operator), mode)
    except QlagenError as fault:
        return [failure(problem, implementation, "o", f"{fault.code}: {fault.message}")]
    state = _numpy(buffers["final_state"])
    if problem.case.state_v_first:
        state = np.swapaxes(state, -1, -2)
    return judge(problem, implementation, _numpy(buffers["o"]).reshape(problem.output.shape), state)


def _cut(call: Call, operator: EmulatedOperator) -> Call:
    chunk = next((module.CHUNK for module in operator.modules if module.KIND == SEGMENT), 0)
    return replace(call, cuts=even_cuts(tuple(call.offsets), chunk, PIECES)) if chunk else call


def call_of(problem: Problem) -> Call:
    """A case's inputs as the kernels take them: [tokens, heads, ...], gates and states in fp32."""
    torch = importlib.import_module("torch")
    arguments = torch_arguments(problem)
    tensors: dict[str, Any] = {}
    numbers: dict[str, float] = {}
    for item in problem.spec.inputs:
        if item.heads == "none":
            numbers[item.name] = float(problem.inputs.arrays[item.name])
            continue
        value = arguments[item.name].flatten(0, 1)
        tensors[item.name] = (value if item.dtype == "data" else value.to(torch.float32)).contiguous()
    state = arguments.get("initial_state")
    return Call(
        tensors=tensors,
        numbers=numbers,
        offsets=(0, *(end for _, end in problem.spans)),
        value_heads=problem.output.shape[2],
        state_shape=(problem.state.shape[2], problem.state.shape[3]),
        initial_state=None if state is None else state.to(torch.float32),
        value_first=problem.case.state_v_first,
    )


def _numpy(tensor: Any) -> npt.NDArray[np.float64]:
    values: npt.NDArray[np.float64] = tensor.double().numpy()
    return values
