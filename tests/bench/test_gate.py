"""What is wrong is refused, however well it hides."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from qlagen.bench import gate
from qlagen.bench.inputs import Inputs, make_inputs
from tests.bench.fakes import small_case, solve

Results = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def forward() -> tuple[Inputs, Results]:
    inputs = make_inputs(small_case(), "cpu")
    return inputs, solve(inputs)


def refusal(inputs: Inputs, results: Results) -> str:
    return gate.verdict(gate.Reference(inputs, 1 << 40).errors(results))


def change(results: Results, name: str, how: Callable[[torch.Tensor], object]) -> Results:
    copy = {part: tensor.clone() for part, tensor in results.items()}
    how(copy[name])
    return copy


def test_rounded_results_pass(forward: tuple[Inputs, Results]) -> None:
    inputs, results = forward
    errors = gate.Reference(inputs, 1 << 40).errors(results)
    assert gate.verdict(errors) == ""
    assert 1e-4 < errors["o"].head < 4e-3
    assert list(errors) == ["o", "final_state"]


FAULTS = {
    "scaled": ("o", lambda x: x.mul_(1.02)),
    "one head's rows swapped": ("o", lambda x: x[:, :, 1].copy_(x[:, :, 0].clone())),
    "one row": ("o", lambda x: x[0, 64, 2].mul_(-1)),
    "one value that is no number": ("o", lambda x: x[0, 3, 1, 7].fill_(torch.nan)),
    "an infinity": ("o", lambda x: x[0, 3, 1, 7].fill_(torch.inf)),
    "state transposed": ("final_state", lambda x: x.copy_(x.mT.clone())),
    "state of one sequence": ("final_state", lambda x: x[1].zero_()),
    "nothing written": ("o", lambda x: x.zero_()),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_wrong_results_are_named(forward: tuple[Inputs, Results], fault: str) -> None:
    inputs, results = forward
    name, how = FAULTS[fault]
    assert refusal(inputs, change(results, name, how)).startswith(f"wrong {name}:")


def test_a_small_head_is_not_judged_by_its_own_noise(forward: tuple[Inputs, Results]) -> None:
    """A head whose gradient all but cancels has errors as large as itself in any right kernel."""
    want = torch.randn(1, 100, 4)
    want[:, :, 3] *= 1e-5
    got = want + 1e-5 * torch.randn(1, 100, 4)
    assert gate.distance(got, want, "dg").head < 1e-2
    assert gate.distance(want * 1.1, want, "dg").head > 5e-2


@pytest.mark.parametrize("name", gate.names("backward"))
def test_every_gradient_is_looked_at(name: str) -> None:
    inputs = make_inputs(small_case("backward", (70, 64)), "cpu")
    results = solve(inputs)
    assert refusal(inputs, results) == ""
    assert refusal(inputs, change(results, name, lambda x: x.mul_(1.1))).startswith(f"wrong {name}:")


def test_slices_judge_as_the_whole_does(forward: tuple[Inputs, Results]) -> None:
    inputs, results = forward
    whole, sliced = gate.Reference(inputs, 1 << 40), gate.Reference(inputs, 1)
    assert (len(whole.slices), len(sliced.slices)) == (1, 2)
    for name, error in whole.errors(results).items():
        assert sliced.errors(results)[name].head == pytest.approx(error.head, rel=1e-5)


def test_shapes_and_names_are_checked_first(forward: tuple[Inputs, Results]) -> None:
    inputs, results = forward
    assert gate.shape_fault(results, inputs) == ""
    assert gate.shape_fault({"o": results["o"]}, inputs) == "gave no final_state"
    short = results | {"o": results["o"][:, :5]}
    assert gate.shape_fault(short, inputs) == "o has shape (1, 5, 4, 128), not (1, 135, 4, 128)"


def test_among_peers_the_odd_one_out_is_wrong(forward: tuple[Inputs, Results]) -> None:
    _, results = forward
    wrong = change(results, "o", lambda x: x.mul_(1.1))
    found = gate.peer_errors({"a": results, "wrong": wrong, "b": results}, "forward")
    verdicts = {name: gate.verdict(errors, gate.PEER_FACTOR) for name, (_, errors) in found.items()}
    assert verdicts["a"] == verdicts["b"] == ""
    assert verdicts["wrong"].startswith("wrong o: relative error 0.1")
    assert {name: other for name, (other, _) in found.items()} == {"a": "b", "b": "a", "wrong": "a"}
    assert gate.peer_errors({"a": results}, "forward") == {}


def test_results_that_vanish_in_every_head_may_be_a_little_off() -> None:
    want = torch.zeros(3, 4, 128, 128)
    assert gate.distance(want + 1e-12, want, "d_initial_state").head < 1e-3
    assert gate.distance(want + 1e-3, want, "d_initial_state").head > 1
