"""A case made ready to judge implementations by: inputs, the oracle's outputs and the error budgets."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import repeat

import numpy as np
import numpy.typing as npt

from qlagen.algebra.derivation import Form
from qlagen.spec.model import OpSpec
from qlagen.verify.budget import error_budgets
from qlagen.verify.cases import Case, Inputs, make_inputs
from qlagen.verify.compare import sequence_spans
from qlagen.verify.reference import Argument, Recurrence, run

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """`output` is o [B, T, Hv, V], `state` the final state [N, Hv, K, V], both float64; budgets are [N, Hv]."""

    spec: OpSpec
    case: Case
    inputs: Inputs
    output: Array
    state: Array
    output_budget: Array
    state_budget: Array

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Rows of every sequence in the flattened token axis."""
        return sequence_spans(self.output.shape[0], self.output.shape[1], self.inputs.cu_seqlens)


def recurrence_of(spec: OpSpec) -> Recurrence:
    """The spec's ground truth as the oracle takes it: text and shapes only."""
    sizes = dict(spec.dims)
    arguments = tuple(
        Argument(
            item.name,
            item.token_symbol,
            None if item.width == "1" else sizes[item.width],
            item.heads,
            item.role == "log_gate",
            sizes[spec.steps] if item.per_step else None,
        )
        for item in spec.inputs
    )
    lines = tuple((line.name, line.text) for line in spec.recurrence)
    step = tuple((line.name, line.text) for line in spec.step)
    first = spec.first_state if step else ""
    return Recurrence(lines, spec.state, spec.next_state, "o", arguments, sizes["K"], sizes["V"], step, first)


def make_problem(spec: OpSpec, form: Form, case: Case, seed: int = 0) -> Problem:
    """Inputs, oracle and budgets of one case; `form` is what the kernels compute for a chunk."""
    return problem_of(spec, form, case, make_inputs(spec, case, seed))


def problem_of(spec: OpSpec, form: Form, case: Case, inputs: Inputs) -> Problem:
    """The same for given inputs, such as captured ones; `case` says how they are passed.

    Raises ValueError when the oracle's outputs are not finite where they should be: nothing could be judged there.
    """
    output, state = run(recurrence_of(spec), inputs.arrays, inputs.cu_seqlens, inputs.initial_state)
    _check_finite(case, inputs, output, state)
    budgets = error_budgets(spec, form, case, inputs, output, state)
    return Problem(spec, case, inputs, output, state, *budgets)


def _check_finite(case: Case, inputs: Inputs, output: Array, state: Array) -> None:
    rows = output.reshape(-1, *output.shape[2:])
    for index, (first, end) in enumerate(sequence_spans(output.shape[0], output.shape[1], inputs.cu_seqlens)):
        if index != case.spoiled and not (np.isfinite(rows[first:end]).all() and np.isfinite(state[index]).all()):
            raise ValueError(f"case {case.name!r}: the recurrence itself is not finite in sequence {index}")


def make_problems(
    spec: OpSpec, form: Form, cases: Sequence[Case], seed: int = 0, processes: int = 1
) -> tuple[Problem, ...]:
    """Problems of several cases, in order, made by some processes at once: the oracle walks token by token, which no
    second thread makes faster."""
    processes = min(processes, len(cases))
    if processes <= 1:
        return tuple(make_problem(spec, form, case, seed) for case in cases)
    # Not forked: the caller may have threads, and a GPU's context.
    context = multiprocessing.get_context("spawn")
    with _one_thread_each(), ProcessPoolExecutor(processes, mp_context=context) as pool:
        made = pool.map(make_problem, repeat(spec), repeat(form), cases, repeat(seed))
        return tuple(replace(problem, spec=spec, case=case) for problem, case in zip(made, cases, strict=True))


_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@contextmanager
def _one_thread_each() -> Iterator[None]:
    """New processes do small products with one thread, unless the caller says otherwise."""
    added = [name for name in _THREADS if name not in os.environ]
    os.environ.update(dict.fromkeys(added, "1"))
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
