"""Runs an operator of the emitted library on the cases and judges its outputs. The only module here that needs torch.

The operator is a callable with the library's public signature: the spec's inputs by name, then ``initial_state``,
``output_final_state``, ``cu_seqlens`` and ``state_v_first``; it returns (o, final_state). Where it takes ``out`` and
``final_state_out``, it is given buffers full of NaN; otherwise memory that was NaN a moment ago is left for it to find.
Where it takes ``auto_cp``, that is the number of segments that a case asks for.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from qlagen.algebra.derivation import Derivation
from qlagen.program.kernel_form import kernel_form
from qlagen.spec.model import OpSpec
from qlagen.verify.cases import Case
from qlagen.verify.problem import Problem, make_problems
from qlagen.verify.report import Row, failure, judge
from qlagen.verify.rounding import StorageType

Operator = Callable[..., tuple[Any, Any]]
Array = npt.NDArray[np.float64]


def verify_library(
    operator: Operator,
    spec: OpSpec,
    derivation: Derivation,
    cases: Sequence[Case],
    implementation: str,
    *,
    device: str = "cpu",
    seed: int = 0,
    processes: int = 1,
) -> list[Row]:
    """Two rows, o and final_state, for each case. `implementation` only names the rows."""
    problems = make_problems(spec, kernel_form(derivation), cases, seed, processes)
    return [row for problem in problems for row in verify_problem(operator, problem, implementation, device)]


def verify_problem(operator: Operator, problem: Problem, implementation: str, device: str = "cpu") -> list[Row]:
    """Rows of one case. What the operator raises becomes a failed row."""
    arguments = torch_arguments(problem, device)
    accepted = inspect.signature(operator).parameters
    poisoned = _poison(problem, device)
    options = poisoned if problem.case.segments is None else {**poisoned, "auto_cp": problem.case.segments}
    arguments |= {name: value for name, value in options.items() if name in accepted}
    del poisoned, options
    try:
        output, state = operator(**arguments)
    except Exception as fault:  # the operator is under test: whatever it raises is a verdict on it
        reason = next(iter(str(fault).splitlines()), "")
        return [failure(problem, implementation, "o", f"{type(fault).__name__}: {reason}")]
    rows = []
    wanted = getattr(_torch(), problem.case.dtype)
    if output.dtype != wanted:
        rows.append(failure(problem, implementation, "o", f"type {output.dtype}, not {wanted}"))
    if state is None:
        return [*rows, failure(problem, implementation, "final_state", "asked for and not returned")]
    final = _numpy(state)
    final = np.swapaxes(final, -1, -2) if problem.case.state_v_first else final
    return rows + judge(problem, implementation, _numpy(output), final)


def torch_arguments(problem: Problem, device: str = "cpu") -> dict[str, Any]:
    """The keyword arguments of the operator, as tensors of the types that the case asks for."""
    torch, case = _torch(), problem.case
    arguments: dict[str, Any] = {}
    for item in problem.spec.inputs:
        value = problem.inputs.arrays[item.name]
        if item.heads == "none":
            arguments[item.name] = None if case.scale is None else float(value)
            continue
        arguments[item.name] = _tensor(value, case.dtype if item.dtype == "data" else case.number_dtype, device)
    state = problem.inputs.initial_state
    if state is not None:
        state = np.swapaxes(state, -1, -2) if case.state_v_first else state
        arguments["initial_state"] = _tensor(state, case.number_dtype, device)
    if problem.inputs.cu_seqlens is not None:
        offsets = torch.from_numpy(problem.inputs.cu_seqlens)
        arguments["cu_seqlens"] = offsets.to(device=device, dtype=getattr(torch, case.index_dtype))
    return {**arguments, "output_final_state": True, "state_v_first": case.state_v_first}


def _poison(problem: Problem, device: str) -> dict[str, Any]:
    """Output buffers full of NaN, named as the library's arguments."""
    torch, case = _torch(), problem.case
    count, heads, keys, values = problem.state.shape
    state_shape = (count, heads, values, keys) if case.state_v_first else (count, heads, keys, values)
    return {
        "out": torch.full(problem.output.shape, float("nan"), dtype=getattr(torch, case.dtype), device=device),
        "final_state_out": torch.full(state_shape, float("nan"), dtype=torch.float32, device=device),
    }


def _tensor(values: Array, storage: StorageType, device: str) -> Any:
    torch = _torch()
    return torch.from_numpy(np.ascontiguousarray(values)).to(device=device, dtype=getattr(torch, storage))


def _numpy(tensor: Any) -> Array:
    values: Array = tensor.detach().to(device="cpu", dtype=_torch().float64).numpy()
    return values


def _torch() -> Any:
    return importlib.import_module("torch")
