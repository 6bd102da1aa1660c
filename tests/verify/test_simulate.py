"""Emitted kernels in the emulator against the float64 recurrence, and their inverse on hard keys."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qlagen.emit.kernel import emit_kernel
from qlagen.emit.load import load_kernel
from qlagen.program.triangle import strips
from qlagen.spec.load import load_spec
from qlagen.spec.model import OpSpec
from qlagen.verify.emulator import Mode
from qlagen.verify.problem import recurrence_of
from qlagen.verify.reference import run
from qlagen.verify.segments import Sequences
from qlagen.verify.simulate import Call, EmulatedOperator
from tests.program.examples import PLANS
from tests.schedule import cases

SPECS = Path(__file__).parents[2] / "specs"
SIZE, CHUNK = 64, 64
"""K and V here: the emulator's time goes with their product."""
MODES = (Mode(), Mode(lazy=True, late=True, seed=1))
LENGTHS, PADDING = (65, 0, 128, 1, 63), 7
Operators = dict[tuple[str, str], EmulatedOperator]


@pytest.fixture(scope="module")
def operators(tmp_path_factory: pytest.TempPathFactory) -> Operators:
    """Operators by name and data type, built when they are first asked for."""

    class Built(Operators):
        def __missing__(self, key: tuple[str, str]) -> EmulatedOperator:
            folder = tmp_path_factory.mktemp("_".join(key))
            modules = []
            for program in PLANS[key[0]].programs:
                variant = "tile" if program.carry is None else "v64"
                schedule = cases.build(program, variant, {"C": CHUNK, "K": SIZE, "V": SIZE}, value_tile=SIZE)
                file = folder / f"{program.name}.py"
                file.write_text(emit_kernel(schedule, "test"), encoding="utf-8")
                modules.append(load_kernel(file))
            self[key] = EmulatedOperator(modules, key[1])
            return self[key]

    return Built()


def small_spec(operator: str) -> OpSpec:
    spec = load_spec(SPECS / f"{operator}.toml")
    return replace(spec, dims=tuple((name, SIZE) for name, _ in spec.dims))


def inputs(names: list[str], dtype: torch.dtype, lengths: tuple[int, ...], padding: int) -> dict[str, torch.Tensor]:
    """Random arguments, NaN in the rows that belong to no sequence."""
    torch.manual_seed(0)
    tokens, heads, key_heads = sum(lengths) + padding, 4, 2
    q, k = (torch.nn.functional.normalize(torch.randn(tokens, key_heads, SIZE), dim=-1) for _ in range(2))
    made = {
        "q": q.to(dtype),
        "k": k.to(dtype),
        "v": torch.randn(tokens, heads, SIZE).to(dtype),
        "g": torch.nn.functional.logsigmoid(torch.randn(tokens, heads)) / 16,
        "beta": 2 * torch.rand(tokens, heads),
    }
    for tensor in made.values():
        tensor[sum(lengths) :] = float("nan")
    return {name: made[name] for name in names}


def relative(got: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest relative error of any head; heads are dimension 1."""
    error = (got.double() - wanted).transpose(0, 1).flatten(1).norm(dim=1)
    return float((error / wanted.transpose(0, 1).flatten(1).norm(dim=1)).max())


@pytest.mark.parametrize(
    ("operator", "data_type", "budget"),
    [
        ("gated_delta_rule", "bfloat16", 5e-3),
        ("gated_delta_rule", "float16", 7e-4),
        ("delta_rule", "bfloat16", 5e-3),
        ("simple_gla", "bfloat16", 5e-3),
    ],
)
def test_kernels_agree_with_the_recurrence(operators: Operators, operator: str, data_type: str, budget: float) -> None:
    spec = small_spec(operator)
    names = [item.name for item in spec.inputs if item.heads != "none"]
    arguments = inputs(names, getattr(torch, data_type), LENGTHS, PADDING)
    state = torch.randn(len(LENGTHS), 4, SIZE, SIZE)
    offsets = [0, *np.cumsum(LENGTHS).tolist()]
    scale = SIZE**-0.5
    arrays = {name: tensor[None, : offsets[-1]].double().numpy() for name, tensor in arguments.items()}
    wanted, wanted_state = map(
        torch.from_numpy, run(recurrence_of(spec), {**arrays, "scale": scale}, offsets, state.numpy())
    )
    first = None
    for mode in MODES:
        for value_first in (False, True):
            given = state.transpose(-1, -2).contiguous() if value_first else state
            call = Call(arguments, {"scale": scale}, offsets, 4, (SIZE, SIZE), given, value_first)
            made = operators[operator, data_type](call, mode)
            final = made["final_state"].transpose(-1, -2) if value_first else made["final_state"]
            first = first or (made["o"], final)
            assert torch.equal(made["o"], first[0])
            assert torch.equal(final, first[1])
    assert relative(first[0][: offsets[-1]], wanted[0]) < budget
    assert relative(first[1], wanted_state) < budget
    assert torch.equal(first[0][offsets[-1] :], torch.zeros(PADDING, 4, SIZE).to(first[0].dtype))


def test_without_an_initial_state_it_is_zero(operators: Operators) -> None:
    arguments = inputs(["q", "k", "v", "g"], torch.bfloat16, (70,), 0)
    run_it = operators["simple_gla", "bfloat16"]
    results = [
        run_it(Call(arguments, {"scale": 1.0}, [0, 70], 4, (SIZE, SIZE), state))
        for state in (None, torch.zeros(1, 4, SIZE, SIZE))
    ]
    assert torch.equal(results[0]["o"], results[1]["o"])
    assert torch.equal(results[0]["final_state"], results[1]["final_state"])


def hard_keys(kind: str, tokens: int) -> torch.Tensor:
    torch.manual_seed(1)
    base = torch.nn.functional.normalize(torch.randn(1, 1, SIZE), dim=-1)
    if kind == "identical":
        return base.expand(tokens, 1, SIZE).bfloat16().contiguous()
    if kind == "period 16":
        few = torch.nn.functional.normalize(torch.randn(16, 1, SIZE), dim=-1)
        return few.repeat(tokens // 16 + 1, 1, 1)[:tokens].bfloat16().contiguous()
    noise = torch.nn.functional.normalize(torch.randn(tokens, 1, SIZE), dim=-1)
    return torch.nn.functional.normalize(base + 0.3 * noise, dim=-1).bfloat16()


def unpacked(packed: torch.Tensor) -> torch.Tensor:
    """[chunks, heads, entries] -> [chunks, heads, C, C]."""
    full = torch.zeros(*packed.shape[:2], CHUNK, CHUNK, dtype=packed.dtype)
    for strip in strips(CHUNK):
        lines = packed.unflatten(2, (-1, strip.columns))[:, :, strip.line : strip.line + strip.rows]
        full[:, :, strip.first : strip.first + strip.rows, : strip.columns] = lines
    return full


@pytest.mark.parametrize("kind", ["identical", "period 16", "close"])
@pytest.mark.parametrize("beta", [1.0, 2.0])
def test_the_inverse_is_as_accurate_as_an_fp32_solve(operators: Operators, kind: str, beta: float) -> None:
    tokens, heads = 100, 2
    k = hard_keys(kind, tokens)
    arguments = {"k": k, "g": torch.zeros(tokens, heads), "beta": torch.full((tokens, heads), beta)}
    arguments |= {"q": torch.zeros_like(k), "v": torch.zeros(tokens, heads, SIZE).bfloat16()}
    call = Call(arguments, {"scale": 1.0}, [0, tokens], heads, (SIZE, SIZE))
    made = unpacked(operators["gated_delta_rule", "bfloat16"](call)["a"])
    for slot, (start, rows) in enumerate(Sequences((0, tokens), CHUNK).chunks()):
        keys = torch.zeros(CHUNK, SIZE, dtype=torch.float64)
        keys[:rows] = k[start : start + rows, 0].double()
        lower = torch.tril(beta * keys @ keys.T, -1) + torch.eye(CHUNK)
        lower[rows:] = torch.eye(CHUNK, dtype=torch.float64)[rows:]
        scale = torch.where(torch.arange(CHUNK) < rows, beta, 0.0)  # of the columns, which the tensor holds too
        exact = torch.linalg.inv(lower) * scale.double()
        single = torch.linalg.solve_triangular(lower.float(), torch.eye(CHUNK), upper=False, unitriangular=True) * scale
        allowed = (single.bfloat16().double() - exact).norm() / exact.norm()
        for head in range(heads):
            error = (made[slot, head].double() - exact).norm() / exact.norm()
            assert error < 1.05 * allowed + 1e-6


def test_a_gate_that_forgets_everything_stays_finite(operators: Operators) -> None:
    arguments = inputs(["q", "k", "v", "g", "beta"], torch.bfloat16, (130,), 0)
    arguments["g"][5::17] = float("-inf")
    arguments["g"][64:70] = -60.0
    call = Call(arguments, {"scale": 1.0}, [0, 130], 4, (SIZE, SIZE), torch.randn(1, 4, SIZE, SIZE))
    made = operators["gated_delta_rule", "bfloat16"](call)
    recurrence = recurrence_of(small_spec("gated_delta_rule"))
    arrays = {name: tensor[None].double().numpy() for name, tensor in arguments.items()}
    wanted, _ = run(recurrence, {**arrays, "scale": 1.0}, [0, 130], call.initial_state.numpy())
    assert torch.isfinite(made["g_cum"]).all()
    assert relative(made["o"], torch.from_numpy(wanted[0])) < 6e-3


def test_tables_of_sequences() -> None:
    tables = Sequences((0, 65, 65, 66), 64).tables(200)
    assert tables["segment_chunks"] == [0, 2, 2, 3]
    assert tables["segment_sequence"] == [0, 1, 2]
    assert tables["chunk_first"] == [0, 64, 65, 0, 0, 0]
    assert tables["chunk_rows"] == [64, 1, 1, 0, 0, 0]


@pytest.mark.parametrize(("key_heads", "heads"), [(3, 3), (3, 6), (2, 6), (1, 5)])
def test_what_an_item_holds_changes_nothing(tmp_path: Path, key_heads: int, heads: int) -> None:
    """Items of one and of two key heads, with room for more value heads than there are, or for fewer."""
    program = cases.program("gated_delta_rule", "prepare")
    torch.manual_seed(key_heads * heads)
    tokens, offsets = 140, [0, 65, 133]
    k = torch.nn.functional.normalize(torch.randn(tokens, key_heads, SIZE), dim=-1).bfloat16()
    gates = torch.nn.functional.logsigmoid(torch.randn(tokens, heads))
    arguments = {"k": k, "g": gates, "beta": 2 * torch.rand(tokens, heads)}
    made = {}
    for variant in ("twin", "pair", "tile", "single"):
        schedule = cases.build(program, variant, {"C": CHUNK, "K": SIZE, "V": SIZE}, value_tile=SIZE)
        file = tmp_path / f"{variant}.py"
        file.write_text(emit_kernel(schedule, "test"), encoding="utf-8")
        run_it = EmulatedOperator([load_kernel(file)], "bfloat16")
        results = [run_it(Call(arguments, {}, offsets, heads, (SIZE, SIZE)), mode) for mode in MODES]
        used = len(Sequences(tuple(offsets), CHUNK).chunks())
        made[variant] = [results[0][name][:used].double() for name in ("a", "g_cum")]
        assert all(torch.equal(results[0][name][:used], results[1][name][:used]) for name in ("a", "g_cum"))
    for variant in ("pair", "tile"):
        assert all(torch.equal(*pair) for pair in zip(made[variant], made["twin"], strict=True))
    assert (made["tile"][0] - made["single"][0]).norm() < 1e-3 * made["single"][0].norm()
    assert torch.equal(made["tile"][1], made["single"][1])
