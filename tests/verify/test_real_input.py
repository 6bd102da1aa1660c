"""A gated delta net layer of the transformers package with another operator in place of its chunk function."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from qlagen.spec.load import load_spec
from qlagen.verify.library import verify_problem
from qlagen.verify.problem import Problem
from qlagen.verify.report import Row
from tools.real_input import (
    CHUNK_FUNCTION,
    SPEC,
    capture,
    in_place_of_chunk_function,
    layer_rows,
    make_layer,
    modeling,
    problem_from,
    run_apart,
    run_packed,
)

from .operators import oracle_operator

LENGTHS = (70, 1, 0, 63, 130)
OPERATOR_SPEC = load_spec(SPEC)
ORACLE = oracle_operator(OPERATOR_SPEC)
SEED = 3  # one of the heads that the package draws decays slowly: a state that leaks stays visible
BY_DTYPE = {dtype: make_layer(2, 8, LENGTHS, dtype=dtype, seed=SEED) for dtype in (torch.float32, torch.bfloat16)}


@cache
def problem(dtype: torch.dtype) -> Problem:
    return problem_from(BY_DTYPE[dtype], capture(BY_DTYPE[dtype], dtype), OPERATOR_SPEC)


def judged(operator: Callable[..., Any], dtype: torch.dtype) -> list[Row]:
    rows = verify_problem(operator, problem(dtype), "x")
    return rows + layer_rows(BY_DTYPE[dtype], problem(dtype), operator, "x")


def test_apart_is_what_the_package_does_by_itself() -> None:
    one = make_layer(2, 4, (150,))
    with torch.no_grad():
        own = one.module(one.hidden)
    assert torch.equal(run_apart(one), own)
    assert run_apart(BY_DTYPE[torch.float32]).shape == (1, sum(LENGTHS), 256)


def test_captured_operands_are_normalised_and_in_the_data_type() -> None:
    captured = capture(BY_DTYPE[torch.float32], torch.bfloat16)
    assert captured.q.shape == (1, 264, 2, 128)
    assert captured.v.shape == (1, 264, 8, 128)
    assert {captured.q.dtype, captured.k.dtype, captured.v.dtype} == {torch.bfloat16}
    torch.testing.assert_close(captured.k.float().norm(dim=-1), torch.ones(1, 264, 2), rtol=5e-3, atol=0)
    assert captured.g.dtype == torch.float32
    assert -36 < captured.g.min() < -10
    assert -0.2 < captured.g.max() < 0
    assert captured.cu_seqlens.tolist() == [0, 70, 71, 71, 134, 264]


@pytest.mark.parametrize("dtype", BY_DTYPE)
def test_the_layer_with_the_oracle_is_the_layer(dtype: torch.dtype) -> None:
    rows = judged(ORACLE, dtype)
    assert [row.output for row in rows] == ["o", "final_state", "layer"]
    assert [row for row in rows if not row.ok] == []
    limit = {torch.float32: 2e-6, torch.bfloat16: 6e-3}[dtype]
    assert max(row.error for row in rows) < limit
    assert rows[2].budget < {torch.float32: 2e-4, torch.bfloat16: 2e-2}[dtype]


def leaking(*tensors: torch.Tensor, cu_seqlens: torch.Tensor, **named: Any):
    """Takes the packed sequences for one."""
    ends = torch.stack([cu_seqlens[0], cu_seqlens[-1]])
    out, state = ORACLE(*tensors, cu_seqlens=ends, **named)
    return out, None if state is None else state.expand(len(cu_seqlens) - 1, -1, -1, -1)


def interleaving(q: torch.Tensor, k: torch.Tensor, *tensors: torch.Tensor, **named: Any):
    """Gives value head h the key head h modulo the number of key heads."""
    twice = named["v"].shape[2] if "v" in named else tensors[0].shape[2]
    return ORACLE(*(x.repeat(1, 1, twice // x.shape[2], 1) for x in (q, k)), *tensors, **named)


@pytest.mark.parametrize("operator", [leaking, interleaving])
@pytest.mark.parametrize("dtype", BY_DTYPE)
def test_wrong_operators_show_in_the_layer(operator, dtype: torch.dtype) -> None:
    rows = judged(operator, dtype)
    assert {row.output for row in rows if not row.ok} >= {"o", "layer"}


def test_the_package_gets_its_functions_back() -> None:
    before = getattr(modeling, CHUNK_FUNCTION)

    def failing(*tensors: torch.Tensor, **named: Any):
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        run_packed(BY_DTYPE[torch.float32], in_place_of_chunk_function(failing))
    assert getattr(modeling, CHUNK_FUNCTION) is before
