"""The portable implementation against the float64 oracle, and its text."""

from __future__ import annotations

import ast
import dataclasses
import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

import qlagen
from qlagen.emit.portable import TEMPLATE, PortableView, emit_portable
from qlagen.emit.templates import template_root
from tests.algebra.operators import FAMILY, NAMES, derivation
from tests.emit.portable_package import RUNTIME, Call, error, load, make_call, text
from tests.program.forms import small_spec

EVERY = (*NAMES, *FAMILY)
NO_BETA_IN_U = (
    ('U  = "A @ (beta * V)"', 'U  = "A @ V"'),
    ('update  = "beta * (v - decayed^T @ k)"', 'update  = "v - beta * (decayed^T @ k)"'),
)


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ModuleType]:
    folder = tmp_path_factory.mktemp("portable")
    return {name: load(folder, text(name)) for name in EVERY}


def check(call: Call, module: ModuleType, limit: float = 1e-12) -> None:
    for got, wanted in zip(call.run(module), call.wanted, strict=True):
        assert tuple(got.shape) == wanted.shape
        assert error(got, wanted) <= limit


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("tokens", [0, 1, 5, 16, 37, 64, 100, 200])
def test_equal_lengths(name: str, tokens: int, modules: dict[str, ModuleType]) -> None:
    for state in (False, True):
        check(make_call(small_spec(name), (tokens, tokens), state=state), modules[name])


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("lengths", [(37,), (0, 0), (0, 65, 1, 0, 128, 63, 200, 64, 0), (1, 2, 3)])
def test_packed(name: str, lengths: tuple[int, ...], modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec(name), lengths, packed=True, padding=9, heads=(1, 3))
    check(call, modules[name])
    output, _ = call.run(modules[name])
    assert torch.all(output[:, sum(lengths) :] == 0)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("heads", [(1, 1), (2, 2), (3, 6)])
def test_grouped_heads(name: str, heads: tuple[int, int], modules: dict[str, ModuleType]) -> None:
    check(make_call(small_spec(name), (70, 70), heads=heads), modules[name])


def test_no_sequences(modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec("delta_rule"), (), packed=True, padding=3)
    output, state = call.run(modules["delta_rule"])
    assert torch.all(output == 0)
    assert tuple(state.shape) == (0, 4, 5, 3)


@pytest.mark.parametrize("tokens", [0, 6])
def test_the_callers_tensors_stay_as_they_are(tokens: int, modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec("gated_delta_rule"), (tokens, tokens))
    arguments = call.arguments()
    state = torch.tensor(call.state)
    before = [x.clone() if isinstance(x, torch.Tensor) else x for x in (*arguments, state)]
    _, final = modules["gated_delta_rule"].forward(*arguments, initial_state=state)
    final.zero_()
    for now, then in zip((*arguments, state), before, strict=True):
        assert now == then if isinstance(then, float) else torch.equal(now, then)


def test_offsets_of_both_integer_types_and_strided_inputs(modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec("gated_delta_rule"), (70, 3), packed=True)
    wanted = call.run(modules["gated_delta_rule"])
    arguments = [torch.stack([x, x], dim=-1)[..., 0] if isinstance(x, torch.Tensor) else x for x in call.arguments()]
    offsets = torch.tensor(call.offsets, dtype=torch.int32)
    got = modules["gated_delta_rule"].forward(*arguments, torch.tensor(call.state), offsets)
    assert all(torch.equal(a, b) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("name", EVERY)
def test_one_sequence_cannot_reach_another(name: str, modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec(name), (20, 70, 33), packed=True)
    wanted, wanted_state = (x.clone() for x in call.run(modules[name]))
    for array in call.arrays.values():
        if array.ndim:
            array[:, 20:90] = np.nan
    output, state = call.run(modules[name])
    kept = [*range(20), *range(90, 123)]
    assert torch.equal(output[:, kept], wanted[:, kept])
    assert torch.equal(state[[0, 2]], wanted_state[[0, 2]])
    assert torch.all(output[:, 20:90].isnan())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("name", EVERY)
def test_smaller_types_compute_in_float32(name: str, dtype: torch.dtype, modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec(name), (100, 100))
    call.arrays = {
        key: torch.tensor(array).to(dtype).double().numpy() if array.ndim else array
        for key, array in call.arrays.items()
    }
    (output, state), (wanted, wanted_state) = call.run(modules[name], dtype), call.wanted
    assert output.dtype == dtype
    assert state.dtype == torch.float32
    assert error(output, wanted) <= torch.finfo(dtype).eps + 1e-5
    assert error(state, wanted_state) <= 1e-5


@pytest.mark.parametrize("name", ["gated_delta_rule", "simple_gla", "kda", "comba", "gated_delta_product"])
def test_resets(name: str, modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec(name), (150, 150))
    call.arrays["g"][:, [0, 7, 8, 64, 149]] = -np.inf
    call.arrays["g"][:, 100:120] = 0.0
    check(call, modules[name])
    output, state = call.run(modules[name], torch.float32)
    assert error(output, call.wanted[0]) <= 1e-5
    assert error(state, call.wanted[1]) <= 1e-5


def test_weak_decays_after_strong_ones_keep_their_digits(modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec("simple_gla"), (64, 64))
    call.arrays["g"][:, :32] = -100.0
    call.arrays["g"][:, 32:] *= 0.01
    output, _ = call.run(modules["simple_gla"], torch.float32)
    assert error(output, call.wanted[0]) <= 2e-6


@pytest.mark.parametrize("name", ["gla", "rwkv7"])
def test_channels_that_forget_at_different_speed(name: str, modules: dict[str, ModuleType]) -> None:
    """In one channel the decays over a chunk are far below the smallest number, in the next they are one."""
    call = make_call(small_spec(name), (130, 130))
    gate = call.arrays["w" if name == "rwkv7" else "g"]
    gate[..., ::2] = -30.0
    gate[..., 1::2] *= 0.01
    check(call, modules[name])
    output, state = call.run(modules[name], torch.float32)
    assert error(output, call.wanted[0]) <= 1e-5
    assert error(state, call.wanted[1]) <= 1e-5


@pytest.mark.parametrize("steps", [1, 3])
def test_the_number_of_steps_is_read_off_the_inputs(steps: int, modules: dict[str, ModuleType]) -> None:
    """The module was made from a spec with two steps per token."""
    call = make_call(small_spec("gated_delta_product", ("M = 2", f"M = {steps}")), (70, 3, 0, 65), packed=True)
    check(call, modules["gated_delta_product"])


def test_thousands_of_short_sequences_take_one_step(modules: dict[str, ModuleType]) -> None:
    module = modules["gated_delta_rule"]
    call = make_call(small_spec("gated_delta_rule"), (3,) * 4096, packed=True, heads=(1, 1))
    calls: list[int] = []
    step = module._step

    def counting(*tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        calls.append(len(tensors[0]))
        return step(*tensors)  # type: ignore[no-any-return]

    module._step = counting  # type: ignore[attr-defined]
    try:
        check(call, module)
    finally:
        module._step = step  # type: ignore[attr-defined]
    assert calls == [4096]


@pytest.mark.parametrize("name", EVERY)
def test_gradients(name: str, tmp_path: Path) -> None:
    module = load(tmp_path, text(name, chunk=4))
    module.runtime.BLOCK = 2  # products under a gate per channel are cut in two
    call = make_call(small_spec(name), (6, 0, 3), packed=True, padding=1, heads=(1, 2))
    for array in call.arrays.values():
        if array.ndim:
            array[:, -1] = 0.0
    arguments = call.arguments(grad=True)
    tensors = [x for x in arguments if isinstance(x, torch.Tensor)]
    state = torch.tensor(call.state, requires_grad=True)

    def function(initial: torch.Tensor, *inputs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return module.forward(*inputs, arguments[-1], initial, torch.tensor(call.offsets))  # type: ignore[no-any-return]

    assert not isinstance(arguments[-1], torch.Tensor)
    assert torch.autograd.gradcheck(function, (state, *tensors), atol=1e-7, rtol=1e-6)


@pytest.mark.parametrize("name", ["gated_delta_rule", "kda", "comba"])
def test_gradients_of_resets_are_finite(name: str, modules: dict[str, ModuleType]) -> None:
    call = make_call(small_spec(name), (70, 70))
    call.arrays["g"][:, [3, 66]] = -np.inf
    arguments = call.arguments(torch.float32, grad=True)
    output, state = modules[name].forward(*arguments)
    (output.square().sum() + state.square().sum()).backward()
    assert all(torch.all(x.grad.isfinite()) for x in arguments if isinstance(x, torch.Tensor))


def test_an_edited_spec_makes_another_operator(tmp_path: Path) -> None:
    edited = text("gated_delta_rule", *NO_BETA_IN_U)
    assert edited != text("gated_delta_rule")
    check(make_call(small_spec("gated_delta_rule", *NO_BETA_IN_U), (100, 100)), load(tmp_path, edited))


def test_an_input_may_have_a_name_that_the_module_uses(tmp_path: Path) -> None:
    edits = (
        ('v     = { shape = ["V"]', 'dtype = { shape = ["V"]'),
        ("k @ v^T", "k @ dtype^T"),
        ("decay(G) @ V)", "decay(G) @ DTYPE)"),
        ("to_end(G) * V)", "to_end(G) * DTYPE)"),
        ('"v", "g"', '"dtype", "g"'),
        ("g     = { shape = []", "runtime = { shape = []"),
        ('"g", "S"]', '"runtime", "S"]'),
        ("(G)", "(RUNTIME)"),
    )
    module = load(tmp_path, text("simple_gla", *edits))
    check(make_call(small_spec("simple_gla", *edits), (70, 70)), module)


def test_full_size(tmp_path: Path) -> None:
    module = load(tmp_path, emit_portable(derivation("gated_delta_rule")))
    call = make_call(derivation("gated_delta_rule").spec, (100,), heads=(1, 2))
    check(call, module)
    assert error(call.run(module, torch.float32)[0], call.wanted[0]) <= 1e-5


# Text


@pytest.mark.parametrize("name", NAMES)
def test_the_banner_says_what_it_was_made_from(name: str) -> None:
    template = hashlib.sha256((template_root() / TEMPLATE).read_bytes()).hexdigest()
    assert emit_portable(derivation(name)).splitlines()[:3] == [
        f"# Generated by qlagen {qlagen.__version__} from {name}.toml. Do not edit.",
        f"# Spec sha256 {derivation(name).spec.digest}",
        f"# Template sha256 {template}",
    ]


@pytest.mark.parametrize("name", EVERY)
def test_it_is_formatted(name: str) -> None:
    command = [sys.executable, "-m", "ruff", "format", "--isolated", "--line-length", "120", "--check", "--diff", "-"]
    done = subprocess.run(command, input=text(name), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert max(map(len, text(name).splitlines())) <= 120


@pytest.mark.parametrize("name", EVERY)
def test_every_operation_names_its_stage(name: str) -> None:
    derived = derivation(name)
    stages = {stage for stage, _ in derived.chosen.stages}
    named = set(re.findall(r"# spec: (\w+)$", emit_portable(derived), flags=re.M))
    assert named == stages


def test_it_needs_torch_only() -> None:
    for source in (text("gated_delta_rule"), *(path.read_text("utf-8") for path in RUNTIME.glob("*.py"))):
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                assert all(alias.name in {"torch", *sys.stdlib_module_names} for alias in node.names)
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                assert node.module is not None
                assert node.module.split(".")[0] in {"torch", *sys.stdlib_module_names}


def test_the_template_reads_the_whole_view() -> None:
    source = (template_root() / TEMPLATE).read_text("utf-8")
    assert set(re.findall(r"\bview\.(\w+)", source)) == {field.name for field in dataclasses.fields(PortableView)}


def test_dynamo_traces_it_whole(modules: dict[str, ModuleType]) -> None:
    module = modules["delta_rule"]
    arguments = make_call(small_spec("delta_rule"), (70, 70)).arguments()
    traced = torch.compile(module.forward, fullgraph=True, backend="eager")(*arguments)
    assert all(torch.equal(a, b) for a, b in zip(traced, module.forward(*arguments), strict=True))
