"""Which implementation takes a call, what is said about it, and what surrounds the portable one."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import qla_ops
from qla_ops import ImplementationUnavailableError, chunk_gated_delta_rule, chunk_gated_delta_rule_fwd
from qla_ops.runtime import choose, costs, dispatch, hopper, inspecting, loader, log
from qla_ops.runtime.metadata import packed_tables
from qla_ops.runtime.plan import CUT_NOTHING, Cutting
from qla_ops.runtime.records import Kernel
from tests.package.calls import inputs, states

PATTERN = Kernel("name", "module", (), (), (), "carried", 128, 1, ("bfloat16",))


@pytest.fixture(autouse=True)
def fresh_log() -> Iterator[None]:
    log.forget_fallbacks()
    yield
    log.forget_fallbacks()


@pytest.fixture
def hopper_for_all(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The kernels seem usable for every call; what they would be given is recorded, and their outputs are ones."""
    calls: list[dict[str, Any]] = []

    def call_forward(operator: Any, *values: Any) -> None:
        tables = "cu_seqlens", "cu_seqlens_cpu"
        names = ("inputs", "initial_state", *tables, "state_v_first", "parts", "threshold", "o", "final_state")
        calls.append(dict(zip(names, values, strict=True)))
        values[7].fill_(1)
        if values[8] is not None:
            values[8].fill_(2)

    monkeypatch.setattr(choose, "unsuitable", lambda call: None)
    monkeypatch.setattr(dispatch.ops, "call_forward", call_forward)
    return calls


# Falling back


def test_one_line_for_each_reason(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qla_ops")
    for _ in range(3):
        chunk_gated_delta_rule(**inputs())
        chunk_gated_delta_rule(**inputs(dtype=torch.float32))
        qla_ops.chunk_simple_gla(*(inputs()[name] for name in "qkvg"))
    place = "q is on cpu; the kernels run on CUDA devices of compute capability 9.0"
    assert [record.getMessage() for record in caplog.records] == [
        f"chunk_gated_delta_rule uses the portable implementation: {place}",
        "chunk_gated_delta_rule uses the portable implementation: its data is torch.float32; the kernels take "
        "torch.bfloat16 and torch.float16",
        f"chunk_simple_gla uses the portable implementation: {place}",
    ]
    assert {record.levelno for record in caplog.records} == {logging.INFO}


def test_the_portable_implementation_can_be_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "qla_ops")
    asked, _ = chunk_gated_delta_rule(**inputs(), impl="reference", strict=True)
    assert not caplog.records
    fallen, _ = chunk_gated_delta_rule(**inputs())
    assert torch.equal(asked, fallen)


@pytest.mark.parametrize(
    ("option", "asked"), [({"strict": True}, "strict=True"), ({"impl": "hopper"}, "impl='hopper'")]
)
def test_strict_raises(option: dict[str, Any], asked: str) -> None:
    with pytest.raises(
        ImplementationUnavailableError, match=f"chunk_gated_delta_rule: {asked}, but q is on cpu; .*leave it"
    ):
        chunk_gated_delta_rule(**inputs(), **option)


def test_the_low_level_call_takes_no_fallback() -> None:
    with pytest.raises(ImplementationUnavailableError, match="q is on cpu"):
        chunk_gated_delta_rule_fwd(**inputs())


def reason(**changes: Any) -> str:
    usable, text = chunk_gated_delta_rule.can_use(**{**inputs(), **changes})
    assert not usable
    return text


def test_reasons() -> None:
    wide = inputs(dtype=torch.float64)
    assert "its data is torch.float64" in reason(**wide)
    assert reason(g=inputs()["g"].double()) == "g is torch.float64; the kernels compute in float32"
    assert reason(initial_state=states().double()) == "initial_state is torch.float64; the kernels compute in float32"
    half = {name: inputs()[name][..., :64] for name in "qk"}
    assert reason(**half) == "K is 64; the kernels are built for K = 128, V = 128"
    assert reason(q=inputs()["q"].requires_grad_()) == (
        "an input requires grad and the kernels have no backward pass yet"
    )
    assert "k is of shape" in reason(k=inputs()["k"][:, 1:])
    assert "missing a required argument: 'q'" in chunk_gated_delta_rule.can_use()[1]


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "device_facts", lambda index: choose.Device("Other GPU", (8, 6), 84))
    text = "Other GPU has compute capability 8.6; the kernels need 9.0 (H100, H200, H20, GH200)"
    assert choose.device_obstacle(0) == text
    monkeypatch.setattr(choose, "device_facts", lambda index: choose.Device("H200", (9, 0), 132))
    assert choose.device_obstacle(0) is None
    # MI200 GPUs call themselves 9.0 too.
    monkeypatch.setattr(torch.version, "hip", "6.0")
    assert "ROCm" in str(choose.device_obstacle(0))


def test_missing_tools_are_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loader, "find_library", lambda kernel, data_type: None)
    monkeypatch.setattr(loader, "missing_loader", lambda: None)
    monkeypatch.setattr(loader, "missing_tools", lambda: "tilelang is not installed")
    assert choose.kernel_obstacle("simple_gla", "bfloat16") == "the kernels are not built and tilelang is not installed"
    monkeypatch.setattr(loader, "missing_tools", lambda: None)
    assert choose.kernel_obstacle("simple_gla", "bfloat16") is None
    monkeypatch.setattr(loader, "missing_loader", lambda: "apache-tvm-ffi is not installed")
    assert choose.kernel_obstacle("simple_gla", "bfloat16") == "apache-tvm-ffi is not installed"


# Explaining


def test_explain_the_portable_implementation() -> None:
    text = "chunk_gated_delta_rule: reference (q is on cpu; the kernels run on CUDA devices of compute capability 9.0)"
    assert str(chunk_gated_delta_rule.explain(**inputs())) == text
    asked = qla_ops.explain(chunk_gated_delta_rule, **inputs(), impl="reference")
    assert str(asked) == "chunk_gated_delta_rule: reference (asked for with impl='reference')"
    with pytest.raises(
        ValueError, match="print is no operator of this library; allowed: chunk_comba, chunk_delta_rule, "
    ):
        qla_ops.explain(print)


@pytest.fixture
def explained(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call would get kernels, on a GPU with 132 SMs."""
    monkeypatch.setattr(inspecting, "choose", lambda call, strict, impl: "hopper")
    monkeypatch.setattr(inspecting, "device_facts", lambda index: choose.Device("H200", (9, 0), 132))


def shapes(length: int, heads: int) -> dict[str, torch.Tensor]:
    """Arguments without memory."""
    vectors = dict.fromkeys("qkv", torch.empty(1, length, heads, 128, dtype=torch.bfloat16, device="meta"))
    return {**vectors, **dict.fromkeys(("g", "beta"), torch.empty(1, length, heads, device="meta"))}


@pytest.mark.usefixtures("explained")
def test_explain_kernels() -> None:
    kernels = choose.OPERATORS["gated_delta_rule"].kernels
    prepare = next(kernel for kernel in kernels if kernel.name.endswith("prepare_pair"))
    assert str(chunk_gated_delta_rule.explain(**inputs())).splitlines() == [
        "chunk_gated_delta_rule: hopper (its kernels take these arguments)",
        f"  gated_delta_rule_prepare_pair: 2 CTAs (persistent, {prepare.ctas_per_sm} on each of 132 SMs at most)",
        "  gated_delta_rule_forward_v64: 8 CTAs (4 segments x heads, tile of 64 columns, all at once on 132 SMs)",
        "  sequences stay whole (cutting them is not faster, by the model)",
        "  modelled: 7 us without the prepare kernels",
    ]


@pytest.mark.usefixtures("explained")
def test_explain_a_cut() -> None:
    text = str(chunk_gated_delta_rule.explain(**shapes(32768, 8), auto_cp=4))
    assert re.search(r"gated_delta_rule_segment_v\d+: \d+ CTAs \(32 segments x heads, tile of", text)
    assert "join: 64 CTAs (carries states over the segments that do not forget them)" in text
    assert "join: 132 CTAs" in str(chunk_gated_delta_rule.explain(**shapes(32768, 8), auto_cp=16))
    assert "each sequence is cut into 4 segments, where its chunks allow (auto_cp=4)" in text
    times = r"modelled: (\d+) us without the prepare kernels \(states \d+, join \d+, forward \d+, idle \d+\)"
    found = re.search(times + r"; whole: (\d+) us", text)
    assert found is not None
    narrow = next(k for k in choose.OPERATORS["gated_delta_rule"].kernels if k.name.endswith("forward_v64"))
    assert int(found[1]) < int(found[2]) == round((512 * narrow.chunk_nanoseconds[0] + costs.START) / 1000)
    assert "segments, where its chunks allow (the model's choice)" in str(
        chunk_gated_delta_rule.explain(**shapes(32768, 8))
    )


@pytest.mark.usefixtures("explained")
def test_explain_packed_sequences() -> None:
    offsets = torch.empty(5, dtype=torch.int32, device="meta")
    text = str(chunk_gated_delta_rule.explain(**shapes(32768, 8), cu_seqlens=offsets))
    assert re.search(r"sequences are cut on the GPU, by their lengths, \d+ times at most \(the model's choice\)", text)
    assert re.search(r"modelled, all equally long: .*\n  modelled, one long, the others a chunk: .*; whole: ", text)
    known = torch.tensor([0, 30000, 31000, 32000, 32768])
    text = str(chunk_gated_delta_rule.explain(**shapes(32768, 8), cu_seqlens=offsets, cu_seqlens_cpu=known))
    assert re.search(r"sequences are cut into \d+ segments of \d+ tokens at most \(the model's choice\)", text)
    assert len(re.findall(r"modelled", text)) == 1
    text = str(chunk_gated_delta_rule.explain(**shapes(32768, 8), cu_seqlens=offsets, auto_cp=False))
    assert "sequences stay whole (auto_cp=False)" in text


@pytest.mark.usefixtures("explained")
def test_explain_an_operator_without_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    operator = choose.OPERATORS["gated_delta_rule"]
    programs = tuple(program for program in operator.programs if program.variants[0].kind != "segment")
    monkeypatch.setitem(choose.OPERATORS, "gated_delta_rule", replace(operator, name="other", programs=programs))
    text = str(chunk_gated_delta_rule.explain(**shapes(32768, 8), auto_cp=4))
    assert "sequences stay whole: this operator has no kernels for segments" in text


def test_workers_are_no_more_than_the_work() -> None:
    assert choose.workers(PATTERN, 5, 132) == 5
    assert choose.workers(PATTERN, 5000, 132) == 132
    assert choose.workers(PATTERN, 0, 132) == 1


def test_ctas_with_items_of_the_same_size_all_do_as_many_or_one_less() -> None:
    prepare = replace(PATTERN, kind="chunk_parallel", ctas_per_sm=3)
    assert choose.workers(prepare, 396, 132) == 396
    assert choose.workers(prepare, 397, 132) == 199
    assert choose.workers(prepare, 2048, 132) == 342  # six turns, as with 396
    assert choose.workers(prepare, 0, 132) == 1


def test_items_of_every_kind_of_kernel() -> None:
    """Of 8 segments 3 at most are the last of their sequence; the others have a state and a map."""
    operator = choose.OPERATORS["gated_delta_rule"]
    offsets = torch.tensor([0, 640, 1280, 1280], dtype=torch.int32)
    tables = packed_tables(offsets, 1280, operator.chunk, Cutting(8, 3, CUT_NOTHING.weights))
    found = {kernel.name: hopper._items(operator, kernel, tables, 2, 4, 132) for kernel in operator.kernels}
    assert (found["gated_delta_rule_forward_v128"], found["gated_delta_rule_forward_v64"]) == (8 * 4, 8 * 4 * 2)
    assert (found["gated_delta_rule_segment_v128"], found["gated_delta_rule_segment_v64"]) == (5 * 4 * 2, 5 * 4 * 4)
    assert hopper._items(operator, loader.JOIN, tables, 2, 4, 132) == tables.chain_count * 4 * 128 // 16
    assert {kernel.persistent for kernel in operator.kernels if kernel.kind == "chunk_parallel"} == {True}


# Buffers


@pytest.mark.parametrize("value_first", [False, True])
def test_output_buffers(value_first: bool) -> None:
    state = states(value_first=value_first)
    options = {"initial_state": state, "state_v_first": value_first}
    o, final = chunk_gated_delta_rule(**inputs(), **options, output_final_state=True)
    assert final is not None
    assert final.dtype == torch.float32
    assert final.is_contiguous()
    out = torch.full_like(o, float("nan"))
    buffer = torch.full_like(final, float("nan"), dtype=torch.bfloat16)
    got = chunk_gated_delta_rule(**inputs(), **options, out=out, final_state_out=buffer)
    assert got[0] is out
    assert got[1] is buffer
    assert torch.equal(out, o)
    assert torch.equal(buffer, final.bfloat16())
    aliased = chunk_gated_delta_rule(**inputs(), **options, final_state_out=state)
    assert aliased[1] is state
    assert torch.equal(state, final)


def test_layouts_of_the_state_agree() -> None:
    state = states()
    o, final = chunk_gated_delta_rule(**inputs(), initial_state=state, output_final_state=True)
    turned = state.transpose(-1, -2).contiguous()
    o2, final2 = chunk_gated_delta_rule(**inputs(), initial_state=turned, output_final_state=True, state_v_first=True)
    assert final is not None
    assert final2 is not None
    assert torch.equal(o, o2)
    assert torch.equal(final, final2.transpose(-1, -2))
    assert not torch.equal(final, final2)


def test_no_state_unless_asked() -> None:
    assert chunk_gated_delta_rule(**inputs())[1] is None
    assert chunk_gated_delta_rule(**inputs(), final_state_out=torch.empty_like(states()))[1] is not None


def test_kernels_write_where_they_can(hopper_for_all: list[dict[str, Any]]) -> None:
    shape = (1, 70, 4, 128)
    out, final = torch.empty(shape, dtype=torch.bfloat16), torch.empty_like(states())
    before = out._version + 1  # the stand-in for the kernels fills it, which counts too
    o, state = chunk_gated_delta_rule(**inputs(), out=out, final_state_out=final)
    assert o is out
    assert state is final
    assert hopper_for_all[0]["o"] is out
    assert out._version == before + 1
    assert hopper_for_all[0]["final_state"] is final


@pytest.mark.parametrize("kind", ["strided", "misaligned", "bf16 state", "shifted over the initial state"])
def test_kernels_never_write_where_they_cannot(kind: str, hopper_for_all: list[dict[str, Any]]) -> None:
    shape = (1, 70, 4, 128)
    size = 70 * 4 * 128
    out: dict[str, torch.Tensor] = {
        "strided": torch.empty(1, 70, 4, 256, dtype=torch.bfloat16)[..., ::2],
        "misaligned": torch.empty(size + 8, dtype=torch.bfloat16)[1 : size + 1].view(shape),
    }
    pool = torch.zeros(4 * 128 * 128 + 128)
    first = pool[:-128].view(1, 4, 128, 128)
    final = {
        "bf16 state": torch.empty(1, 4, 128, 128, dtype=torch.bfloat16),
        "shifted over the initial state": pool[128:].view(1, 4, 128, 128),
    }
    given = {"out": out.get(kind), "final_state_out": final.get(kind)}
    o, state = chunk_gated_delta_rule(**inputs(), initial_state=first, output_final_state=True, **given)
    seen = hopper_for_all[0]
    assert seen["o"].is_contiguous()
    assert seen["o"].data_ptr() % 16 == 0
    assert seen["final_state"].dtype == torch.float32
    if given["out"] is not None:
        assert o is given["out"]
        assert seen["o"] is not o
    if given["final_state_out"] is not None:
        assert state is given["final_state_out"]
        assert seen["final_state"].data_ptr() != state.data_ptr()
    assert bool((o == 1).all())
    assert state is not None
    assert bool((state == 2).all())


# Arithmetic around the operator


def test_unit_vectors(hopper_for_all: list[dict[str, Any]]) -> None:
    values = inputs()
    values["q"] = values["q"] * 7
    values["k"] = torch.zeros_like(values["k"])
    before = values["q"].clone()
    chunk_gated_delta_rule(**values, use_qk_l2norm_in_kernel=True)
    q, k, v, *_ = hopper_for_all[0]["inputs"]
    assert q.dtype == torch.bfloat16
    torch.testing.assert_close(q.float().norm(dim=-1), torch.ones(1, 70, 2), atol=5e-3, rtol=0)
    assert not k.any()
    assert v is values["v"]
    assert torch.equal(values["q"], before)


def test_unit_vectors_leave_unit_vectors() -> None:
    values = inputs(dtype=torch.float32)
    plain, _ = chunk_gated_delta_rule(**values)
    scaled = {**values, "q": values["q"] * 3, "k": values["k"] * 0.1}
    normalised, _ = chunk_gated_delta_rule(**scaled, use_qk_l2norm_in_kernel=True)
    torch.testing.assert_close(normalised, plain, atol=2e-4, rtol=0)


def test_autocast_changes_nothing() -> None:
    values = inputs(dtype=torch.float32)
    plain, _ = chunk_gated_delta_rule(**values)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside, _ = chunk_gated_delta_rule(**values)
    assert torch.equal(plain, inside)


def test_gradients_come_from_the_portable_implementation() -> None:
    values = {name: value.double().requires_grad_() for name, value in inputs(length=5).items()}
    state = states().double().requires_grad_()
    o, final = chunk_gated_delta_rule(**values, initial_state=state, output_final_state=True)
    assert final is not None
    gradients = torch.autograd.grad([o, final], [*values.values(), state], [torch.ones_like(o), torch.ones_like(final)])
    assert all(bool(gradient.isfinite().all()) and bool(gradient.any()) for gradient in gradients)
    with torch.no_grad():
        assert not chunk_gated_delta_rule(**values)[0].requires_grad


def no_tokens() -> dict[str, Any]:
    return inputs(batch=2, length=0)


CASES: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any], int]] = {
    "no tokens": (no_tokens, {}, 2),
    "all sequences empty": (inputs, {"cu_seqlens": torch.tensor([0, 0, 0])}, 2),
    "no sequences": (inputs, {"cu_seqlens": torch.tensor([0])}, 0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("with_state", [False, True])
def test_nothing_to_do(name: str, with_state: bool) -> None:
    make, options, count = CASES[name]
    state = states(count) if with_state else None
    o, final = chunk_gated_delta_rule(**make(), **options, initial_state=state, output_final_state=True)
    assert final is not None
    assert not o.any()
    assert torch.equal(final, torch.zeros_like(final) if state is None else state)


def test_strided_inputs() -> None:
    """Slices of a packed tensor and expanded tensors are as good as their copies."""
    values = inputs()
    packed = torch.cat([values["q"], values["k"], values["v"]], dim=2)
    views = {
        "q": packed[:, :, :2],
        "k": packed[:, :, 2:4],
        "v": packed[:, :, 4:],
        "g": values["g"][..., :1].expand(1, 70, 4),
    }
    got, _ = chunk_gated_delta_rule(**{**values, **views})
    copies = {name: value.contiguous() for name, value in views.items()}
    expected, _ = chunk_gated_delta_rule(**{**values, **copies})
    assert torch.equal(got, expected)
