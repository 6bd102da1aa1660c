"""The torch operators: schema, shapes alone, one opaque call for torch.compile. CUDA tensors here have no memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from qla_ops import chunk_gated_delta_rule
from qla_ops.runtime import choose, hopper, inspecting, ops
from qla_ops.runtime.choose import OPERATORS
from tests.package.calls import inputs, states


@pytest.fixture
def hopper_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A GPU that the kernels could run on, with kernels that are there."""
    device = choose.Device("NVIDIA H200", (9, 0), 132)
    for module in (choose, hopper, inspecting):
        monkeypatch.setattr(module, "device_facts", lambda index: device)
    monkeypatch.setattr(choose.loader, "obstacle", lambda kernels: None)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def on_gpu(values: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """CUDA tensors of the same shapes and types; to be called in a `FakeTensorMode`."""
    return {name: torch.empty_like(value, device="cuda") for name, value in values.items()}


def test_schemas() -> None:
    rest = (
        "Tensor? initial_state, Tensor? cu_seqlens, Tensor? cu_seqlens_cpu, bool state_v_first, int auto_cp, "
        "float cp_threshold, Tensor(a!) o, Tensor(b!)? final_state) -> ()"
    )
    assert str(torch.ops.qla_ops.gated_delta_rule_forward.default._schema) == (
        "qla_ops::gated_delta_rule_forward(Tensor q, Tensor k, Tensor v, Tensor g, Tensor beta, float scale, " + rest
    )
    assert str(torch.ops.qla_ops.delta_rule_forward.default._schema) == (
        "qla_ops::delta_rule_forward(Tensor q, Tensor k, Tensor v, Tensor beta, float scale, " + rest
    )


def test_registering_again_changes_nothing() -> None:
    before = torch.ops.qla_ops.simple_gla_forward
    ops.register(OPERATORS["simple_gla"])
    assert torch.ops.qla_ops.simple_gla_forward is before


@pytest.mark.usefixtures("hopper_gpu")
def test_shapes_alone() -> None:
    with FakeTensorMode():
        values = on_gpu(inputs(batch=2))
        assert chunk_gated_delta_rule.can_use(**values) == (True, "the Hopper kernels take these arguments")
        o, final = chunk_gated_delta_rule(**values, output_final_state=True, strict=True)
        assert (o.shape, o.dtype, o.device.type) == ((2, 70, 4, 128), torch.bfloat16, "cuda")
        assert final is not None
        assert (final.shape, final.dtype) == ((2, 4, 128, 128), torch.float32)
        assert chunk_gated_delta_rule(**values)[1] is None


@pytest.mark.usefixtures("hopper_gpu")
def test_compile_sees_one_call() -> None:
    """fullgraph: nothing in the host path breaks the graph."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def layer(q: Any, k: Any, v: Any, g: Any, beta: Any, state: Any, offsets: Any) -> Any:
        options = {"cu_seqlens": offsets, "use_qk_l2norm_in_kernel": True, "strict": True, "auto_cp": 4}
        o, final = chunk_gated_delta_rule(q, k, v, g, beta, initial_state=state, output_final_state=True, **options)
        return o * 2, final

    with FakeTensorMode():
        values = on_gpu(inputs())
        offsets = torch.zeros(3, dtype=torch.int64, device="cuda")
        compiled = torch.compile(layer, fullgraph=True, backend=backend)
        o, final = compiled(*values.values(), torch.empty_like(states(2), device="cuda"), offsets)
    assert o.shape == (1, 70, 4, 128)
    assert final.shape == (2, 4, 128, 128)
    calls = [node for node in graphs[0].graph.nodes if "gated_delta_rule_forward" in str(node.target)]
    assert len(graphs) == 1
    assert len(calls) == 1
    assert 4 in (*calls[0].args, *calls[0].kwargs.values())


@pytest.mark.usefixtures("hopper_gpu")
def test_lengths_do_not_compile_again() -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, example: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(chunk_gated_delta_rule, fullgraph=True, backend=backend, dynamic=True)
    with FakeTensorMode(shape_env=ShapeEnv()):
        for length in (70, 90, 200):
            o, _ = compiled(**on_gpu(inputs(length=length)), output_final_state=True)
            assert o.shape == (1, length, 4, 128)
    assert len(graphs) == 1


def test_compile_of_the_portable_implementation() -> None:
    torch._dynamo.reset()
    values = inputs(length=20)
    compiled = torch.compile(chunk_gated_delta_rule, fullgraph=True, backend="eager")
    o, final = compiled(**values, output_final_state=True)
    expected, expected_final = chunk_gated_delta_rule(**values, output_final_state=True)
    assert torch.equal(o, expected)
    assert torch.equal(final, expected_final)
    torch._dynamo.reset()


def test_opcheck(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own checks of schema and fake implementation, with the portable implementation as the kernels."""

    def forward(operator: Any, tensors: Any, scalars: Any, state: Any, offsets: Any, *rest: Any) -> None:
        *options, o, final = rest
        assert options == [None, False, 3, -5.0]
        values = [*tensors.values(), *scalars.values()]
        got, got_final = operator.portable(*values, initial_state=state, cu_seqlens=offsets)
        o.copy_(got)
        if final is not None:
            final.copy_(got_final)

    monkeypatch.setattr(hopper, "forward", forward)
    library = torch.library.Library("qla_ops", "IMPL")
    library.impl("gated_delta_rule_forward", ops.implementation(OPERATORS["gated_delta_rule"]), "CPU")
    values = list(inputs(length=20).values())
    o = torch.empty(1, 20, 4, 128, dtype=torch.bfloat16)
    for state, final in ((None, None), (states(), torch.empty_like(states()))):
        arguments = (*values, 0.5, state, None, None, False, 3, -5.0, o, final)
        torch.library.opcheck(torch.ops.qla_ops.gated_delta_rule_forward.default, arguments)
    library._destroy()
