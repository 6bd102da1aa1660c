"""The chunked float64 reference against a recurrence over single tokens."""

from __future__ import annotations

import pytest
import torch

from qlagen.bench.cases import Case
from qlagen.bench.inputs import Inputs, make_inputs
from qlagen.bench.reference import reference, reference_bytes
from tests.bench.fakes import small_case

LENGTHS = [(1,), (64, 65), (5, 130, 64, 1), (0, 70, 0)]


def token_by_token(q, k, v, g, beta, states, inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor]:
    group = inputs.case.value_heads // inputs.case.key_heads
    outputs, finals, token = [], [], 0
    for number, length in enumerate(inputs.case.lengths):
        S = states[number]
        for t in range(token, token + length):
            keys = k[0, t].repeat_interleave(group, 0)
            S = S * g[0, t].exp()[:, None, None]
            update = v[0, t]
            if inputs.case.traits.correction:
                update = beta[0, t][:, None] * (update - torch.einsum("hkv,hk->hv", S, keys))
            S = S + keys[:, :, None] * update[:, None, :]
            outputs.append(inputs.scale * torch.einsum("hkv,hk->hv", S, q[0, t].repeat_interleave(group, 0)))
        finals.append(S)
        token += length
    return torch.stack(outputs)[None], torch.stack(finals)


def leaves(inputs: Inputs) -> list[torch.Tensor]:
    tensors = (inputs.q, inputs.k, inputs.v, inputs.g, inputs.beta, inputs.initial_state)
    return [tensor.double().requires_grad_() for tensor in tensors]


def assert_close(got: torch.Tensor, want: torch.Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("gates", ["quarter ungated", "model init"])
def test_forward_is_the_recurrence(lengths: tuple[int, ...], gates: str) -> None:
    inputs = make_inputs(small_case("forward", lengths, gates), "cpu")
    with torch.no_grad():
        o, state = token_by_token(*leaves(inputs), inputs)
    [(_, _, found)] = reference(inputs, 1 << 40)
    assert_close(found["o"], o)
    assert_close(found["final_state"], state)


@pytest.mark.parametrize(("operator", "gates"), [("delta_rule", "none"), ("simple_gla", "quarter ungated")])
def test_forward_of_other_operators_is_their_recurrence(operator: str, gates: str) -> None:
    inputs = make_inputs(small_case("forward", (5, 130, 64, 1), gates, operator), "cpu")
    assert bool(inputs.g.any()) == (operator == "simple_gla")
    with torch.no_grad():
        o, state = token_by_token(*leaves(inputs), inputs)
    [(_, _, found)] = reference(inputs, 1 << 40)
    assert_close(found["o"], o)
    assert_close(found["final_state"], state)


@pytest.mark.parametrize("gates", ["quarter ungated", "model init"])
def test_backward_is_the_recurrence_differentiated(gates: str) -> None:
    inputs = make_inputs(small_case("backward", (5, 66, 64), gates), "cpu")
    tracked = leaves(inputs)
    o, state = token_by_token(*tracked, inputs)
    outer = [inputs.d_output.double(), inputs.d_final_state.double()]
    want = torch.autograd.grad([o, state], tracked, outer)
    [(_, _, found)] = reference(inputs, 1 << 40)
    for name, expected in zip(("dq", "dk", "dv", "dg", "dbeta", "d_initial_state"), want, strict=True):
        assert_close(found[name], expected)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_slices_of_heads_are_the_whole(direction: str) -> None:
    inputs = make_inputs(small_case(direction), "cpu")
    [(_, _, whole)] = reference(inputs, 1 << 40)
    slices = list(reference(inputs, reference_bytes(inputs, 2)))
    assert [(keys.start, values.stop) for keys, values, _ in slices] == [(0, 2), (1, 4)]
    for name, value in whole.items():
        axis = 1 if "state" in name else 2
        assert_close(torch.cat([part[name] for _, _, part in slices], axis), value)


def test_inputs_are_the_same_every_time_and_differ_between_cases() -> None:
    first, again = (make_inputs(small_case(), "cpu") for _ in range(2))
    other = make_inputs(small_case(lengths=(71, 64)), "cpu")
    assert all(torch.equal(a, b) for a, b in zip(first.tensors().values(), again.tensors().values(), strict=True))
    assert not torch.equal(first.v[0, 0], other.v[0, 0])


def test_a_quarter_of_the_heads_never_decays() -> None:
    case = Case("forward", 4, 8, "1x100", (100,), "quarter ungated")
    g = make_inputs(case, "cpu").g[0]
    assert ((g == 0).all(0)).sum() == 2
    assert (g <= 0).all()
    assert (g[:, ~(g == 0).all(0)] < 0).all()


def test_model_init_forgets_a_chunk_in_most_heads() -> None:
    g = make_inputs(Case("forward", 16, 64, "1x128", (128,), "model init"), "cpu").g[0]
    assert (g < 0).all()
    assert (g[:64].sum(0) < -10).float().mean() > 0.9


def test_copies_have_the_same_numbers_at_other_addresses_and_the_same_offsets() -> None:
    inputs = make_inputs(small_case("backward"), "cpu")
    copy = inputs.copy()
    assert torch.equal(copy.v, inputs.v)
    assert copy.v.data_ptr() != inputs.v.data_ptr()
    assert copy.cu_seqlens is inputs.cu_seqlens
    assert inputs.bytes == sum(x.numel() * x.element_size() for x in inputs.tensors().values())
    assert set(inputs.tensors()) == {
        *("q", "k", "v", "g", "beta", "initial_state", "d_output", "d_final_state"),
    }
