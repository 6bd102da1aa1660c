"""QLA_OPS_DEBUG=1 names the argument, the head and the chunk of a bad value."""

from __future__ import annotations

import pytest
import torch

from qla_ops import BadValueError, chunk_gated_delta_rule
from qla_ops.runtime import debug
from qla_ops.runtime.arguments import check_call
from qla_ops.runtime.choose import OPERATORS
from tests.package.calls import inputs, states

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QLA_OPS_DEBUG", "1")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("k", NAN, "k is not finite in sequence 1, head 1, chunk 1 (row 0, token 69)"),
        ("v", INF, "v is not finite in sequence 1, head 1, chunk 1 (row 0, token 69)"),
        ("g", 0.5, "g is above 0 in sequence 1, head 1, chunk 1 (row 0, token 69)"),
        ("g", NAN, "g is not finite in sequence 1, head 1, chunk 1 (row 0, token 69)"),
        ("beta", -0.1, "beta is below 0 in sequence 1, head 1, chunk 1 (row 0, token 69)"),
        ("beta", 2.5, "beta is above 2 in sequence 1, head 1, chunk 1 (row 0, token 69)"),
    ],
)
def test_bad_value(name: str, value: float, message: str) -> None:
    values = inputs()
    values[name][0, 69, 1] = value
    with pytest.raises(BadValueError, match=f"chunk_gated_delta_rule: {message.replace('(', '.').replace(')', '.')}"):
        chunk_gated_delta_rule(**values, cu_seqlens=torch.tensor([0, 5, 70]))


def test_row_of_a_batch() -> None:
    values = inputs(batch=3)
    values["k"][2, 7, 0] = NAN
    with pytest.raises(BadValueError, match=r"k is not finite in sequence 2, head 0, chunk 0 \(row 2, token 7\)"):
        chunk_gated_delta_rule(**values)


def test_states() -> None:
    state = states()
    state[0, 3, 1, 1] = INF
    with pytest.raises(BadValueError, match="initial_state is not finite in sequence 0, head 3"):
        chunk_gated_delta_rule(**inputs(), initial_state=state)


def test_what_is_allowed() -> None:
    """A reset (minus infinity), and anything past the last sequence."""
    values = inputs()
    values["g"][0, 3, 0] = -INF
    for value in values.values():
        value[0, 60:] = NAN
    o, _ = chunk_gated_delta_rule(**values, cu_seqlens=torch.tensor([0, 60]))
    assert bool(o.isfinite().all())


def test_outputs() -> None:
    call = check_call(OPERATORS["gated_delta_rule"], (*inputs().values(), None))
    o = torch.zeros(call.facts.output_shape)
    o[0, 65, 2] = NAN
    with pytest.raises(BadValueError, match="o is not finite in sequence 0, head 2, chunk 1"):
        debug.check_outputs(call, o, None)
    with pytest.raises(BadValueError, match="final_state is not finite in sequence 0, head 0"):
        debug.check_outputs(call, torch.zeros(call.facts.output_shape), torch.full(call.facts.state_shape, NAN))


def test_off_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QLA_OPS_DEBUG", "0")
    values = inputs()
    values["g"][0, 3, 0] = 0.5
    chunk_gated_delta_rule(**values)
