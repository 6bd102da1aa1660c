"""Our adapters on the library as it is emitted, the peers' on stand-ins for their packages."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from qlagen.bench import gate
from qlagen.bench.cases import make_case
from qlagen.bench.inputs import Inputs, make_inputs
from qlagen.bench.peers import REGISTRY
from qlagen.bench.peers.base import UnsupportedError
from tests.bench.fakes import small_case, solve

LIBRARY = Path(__file__).parents[2] / "generated" / "qla_ops" / "src"


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(LIBRARY))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("qla_ops"):
            del sys.modules[name]


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_portable_implementation_is_right(direction: str) -> None:
    inputs = make_inputs(small_case(direction), "cpu")
    portable = REGISTRY["portable"]()
    call = portable.forward(inputs) if direction == "forward" else portable.backward(inputs)
    results = portable.results(direction, call())
    assert gate.shape_fault(results, inputs) == ""
    assert gate.verdict(gate.Reference(inputs, 1 << 40).errors(results)) == ""


@pytest.mark.usefixtures("library")
def test_ours_never_falls_back_to_the_portable_implementation() -> None:
    ours = REGISTRY["qla_ops"]()
    with pytest.raises(Exception, match="strict=True"):
        ours.forward(make_inputs(small_case(), "cpu"))()
    with pytest.raises(UnsupportedError, match="strict=True"):
        ours.backward(make_inputs(small_case("backward"), "cpu"))


@pytest.mark.usefixtures("library")
def test_our_version_follows_the_code() -> None:
    version = REGISTRY["qla_ops"]().version()
    assert version == REGISTRY["portable"]().version()
    assert len(version.split("+")[1]) == 8


def module(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """A stand-in for a package's module, and for the packages above it."""
    parts = name.split(".")
    for depth in range(1, len(parts) + 1):
        path = ".".join(parts[:depth])
        if path not in sys.modules:
            monkeypatch.setitem(sys.modules, path, types.ModuleType(path))
        if depth > 1:
            monkeypatch.setattr(
                sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], sys.modules[path], raising=False
            )
    for member, value in members.items():
        monkeypatch.setattr(sys.modules[name], member, value, raising=False)


def check(name: str, inputs: Inputs) -> None:
    """The adapter hands over what the stand-in expects, and gives back the common names and layouts."""
    implementation, direction = REGISTRY[name](), inputs.case.direction
    call = implementation.forward(inputs) if direction == "forward" else implementation.backward(inputs)
    results = implementation.results(direction, call())
    assert gate.shape_fault(results, inputs) == ""
    assert gate.verdict(gate.Reference(inputs, 1 << 40).errors(results)) == ""


def gradients(inputs: Inputs) -> tuple[torch.Tensor, ...]:
    found = solve(inputs)
    return tuple(found[name] for name in ("dq", "dk", "dv", "dbeta", "dg", "d_initial_state"))


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_flash_qla(monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    inputs = make_inputs(small_case(direction), "cpu")

    def fwd(q: Any, k: Any, v: Any, g: Any, beta: Any, **options: Any) -> Any:
        assert options.pop("cu_seqlens") is inputs.cu_seqlens
        assert options.pop("scale") == 128**-0.5
        assert options.get("is_train", False) == (direction == "backward")
        found = {} if direction == "backward" else solve(inputs)
        return "g", "A", found.get("o"), None, found.get("final_state"), "kept"

    def bwd(q: Any, k: Any, v: Any, g: Any, beta: Any, A: Any, do: Any, **options: Any) -> Any:
        assert (g, A, options["cp_cache"]) == ("g", "A", "kept")
        assert do is inputs.d_output
        assert options["dht"] is inputs.d_final_state
        return gradients(inputs)

    module(monkeypatch, "flash_qla", chunk_gated_delta_rule_fwd=fwd, chunk_gated_delta_rule_bwd=bwd)
    check("flash_qla", inputs)


def test_flash_qla_compiles_for_each_way_of_splitting(monkeypatch: pytest.MonkeyPatch) -> None:
    def decide(num_chunks: list[int], num_v_heads: int, **_: Any) -> tuple[bool, int | None]:
        return (True, 64) if num_v_heads == 8 else (False, None)

    module(monkeypatch, "flash_qla")
    path = "flash_qla.ops.gated_delta_rule.chunk.cp.context"
    module(monkeypatch, path, autocp_decide=decide, MULTI_PROCESSOR_COUNT=132)
    implementation = REGISTRY["flash_qla"]()

    def key(heads: str, sequences: str) -> str:
        return implementation.compile_key(make_case("forward", heads, sequences, "model init"))

    assert key("16:64", "1x8192") == "forward 16:64 whole 64"
    assert key("16:64", "2x8192") == "forward 16:64 whole 128"
    assert key("16:32", "1x8192") == "forward 16:32 whole 32"
    assert key("2:8", "1x32768") == "forward 2:8 split 64"  # 8 pieces of 64 chunks
    assert key("2:8", "1x65536") == "forward 2:8 split 128"


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_fla(monkeypatch: pytest.MonkeyPatch, direction: str) -> None:
    inputs = make_inputs(small_case(direction), "cpu")

    def fwd(q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float, state: Any, final: bool, cu_seqlens: Any) -> Any:
        assert final
        found = {} if direction == "backward" else solve(inputs)
        return "g", found.get("o"), "A", found.get("final_state"), state, None

    def bwd(*arguments: Any, cu_seqlens: Any) -> Any:
        _, _, _, g, _, A, scale, state, do, dht = arguments
        assert (g, A, scale) == ("g", "A", 128**-0.5)
        assert state is inputs.initial_state
        assert do is inputs.d_output
        assert dht is inputs.d_final_state
        return (*gradients(inputs), None, None)

    monkeypatch.delenv("FLA_FLASH_QLA", raising=False)
    path = "fla.ops.gated_delta_rule.chunk"
    module(monkeypatch, path, chunk_gated_delta_rule_fwd=fwd, chunk_gated_delta_rule_bwd=bwd)
    module(monkeypatch, "fla.ops.delta_rule.chunk")
    module(monkeypatch, "fla.ops.simple_gla.chunk")
    check("fla", inputs)
    import os

    assert os.environ["FLA_FLASH_QLA"] == "0"


@pytest.mark.parametrize(("operator", "gates"), [("delta_rule", "none"), ("simple_gla", "quarter ungated")])
def test_fla_of_other_operators(monkeypatch: pytest.MonkeyPatch, operator: str, gates: str) -> None:
    inputs = make_inputs(small_case(gates=gates, operator=operator), "cpu")

    def run(q: Any, k: Any, v: Any, gate: Any, scale: Any, initial_state: Any, output_final_state: Any, **rest: Any):
        assert gate is (inputs.beta if operator == "delta_rule" else inputs.g)
        assert (scale, initial_state, output_final_state) == (128**-0.5, inputs.initial_state, True)
        assert rest == {"cu_seqlens": inputs.cu_seqlens}
        found = solve(inputs)
        return found["o"], found["final_state"]

    module(monkeypatch, "fla.ops.gated_delta_rule.chunk")
    module(monkeypatch, "fla.ops.delta_rule.chunk", chunk_delta_rule=run)
    module(monkeypatch, "fla.ops.simple_gla.chunk", chunk_simple_gla=run)
    check("fla", inputs)


@pytest.mark.usefixtures("library")
@pytest.mark.parametrize(("operator", "gates"), [("delta_rule", "none"), ("simple_gla", "quarter ungated")])
def test_ours_of_other_operators(operator: str, gates: str) -> None:
    check("portable", make_inputs(small_case(gates=gates, operator=operator), "cpu"))


def test_a_library_without_an_operator_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    module(monkeypatch, "flash_qla")
    case = small_case(gates="none", operator="delta_rule")
    assert REGISTRY["flash_qla"]().unsupported(case) == "has no delta_rule"


def test_flashinfer_gets_decays_and_a_state_with_values_first(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = make_inputs(small_case(), "cpu")

    def operator(
        q: Any, k: Any, v: Any, g: Any, beta: Any, scale: float, state: Any, final: bool, cu: Any,
        output: Any = None, output_state: Any = None, max_seqlen: int | None = None,
    ) -> Any:  # fmt: skip
        assert q.shape == inputs.q.shape[1:]
        assert torch.equal(g, inputs.g[0].exp())
        assert torch.equal(state, inputs.initial_state.mT)
        assert state.is_contiguous()
        assert (final, max_seqlen) == (True, 70)
        found = solve(inputs)
        output.copy_(found["o"][0])
        output_state.copy_(found["final_state"].mT)
        return output, output_state

    module(monkeypatch, "flashinfer.gdn_prefill", chunk_gated_delta_rule=operator)
    check("flashinfer", inputs)
    backward = small_case("backward")
    assert REGISTRY["flashinfer"]().unsupported(backward) == "has no backward pass"


@pytest.mark.parametrize("path", ["native", "fallback:pre-Blackwell"])
def test_cudnn_counts_only_where_it_runs_its_own_kernels(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    inputs = make_inputs(small_case(), "cpu")

    def make(original: Any) -> Any:
        def operator(q: Any, k: Any, v: Any, g: Any, beta: Any, **options: Any) -> Any:
            assert torch.equal(options["initial_state"], inputs.initial_state.mT)
            assert options["state_v_first"]
            if path != "native":
                return original(q)
            found = solve(inputs)
            return found["o"], found["final_state"].mT

        return operator

    module(monkeypatch, "cudnn.fla.gated_delta_rule", make_chunk_gated_delta_rule=make)
    module(monkeypatch, "cudnn.fla", last_path=lambda: path)
    if path == "native":
        check("cudnn", inputs)
        return
    with pytest.raises(UnsupportedError, match=r"hands this call back .* \(fallback:pre-Blackwell\)"):
        REGISTRY["cudnn"]().forward(inputs)


def test_every_peer_says_why_it_is_not_here() -> None:
    for name in ("flash_qla", "flashinfer", "fla", "cudnn"):
        with pytest.raises(ImportError, match="No module named"):
            REGISTRY[name]()


@pytest.mark.usefixtures("library")
def test_kernels_that_would_be_launched() -> None:
    """None for the portable implementation; ours says why it has none here."""
    inputs = make_inputs(small_case(), "cpu")
    portable: Any = REGISTRY["portable"]()
    assert portable.kernels(inputs) == []
    ours: Any = REGISTRY["qla_ops"]()
    with pytest.raises(Exception, match="strict=True"):
        ours.kernels(inputs)
