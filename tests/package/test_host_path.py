"""The host path from public arguments to the emitted kernels' own launch functions, with the CPU emulator as the GPU,
for whole sequences and for sequences that are cut into segments.

It checks what the host hands over: tables, workspaces, strides, flags, padding. The emulator refuses a tensor of the
wrong type or shape, and watches for accesses outside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from qla_ops import chunk_gated_delta_rule
from qla_ops.runtime import choose, costs, hopper
from qla_ops.runtime.builder import kernel_file
from qla_ops.runtime.choose import OPERATORS, Device
from qla_ops.runtime.loader import EARLY, JOIN, NOT_EARLY
from qla_ops.runtime.plan import AUTOMATIC, NEVER
from qla_ops.runtime.records import Kernel
from qlagen.emit.load import load_kernel
from qlagen.verify.emulator import EmulatedKernel, build_emulated, lower_kernel
from tests.package.calls import inputs, states
from tests.package.shared_kernels import join_kernel

OPERATOR = OPERATORS["gated_delta_rule"]
CALL_TABLES = ("chunk_offsets", "cu_seqlens", "g_cum", "segment_chunks", "segment_offsets", "segment_sequence")
SCALARS = {"scale": 128**-0.5}
STATES = ("initial_state", "final_state")
TOKENS = {"o", *(item.name for item in OPERATOR.tensors)}


@cache
def emulated(kernel: Kernel, data_type: str) -> EmulatedKernel:
    module = load_kernel(kernel_file(kernel))
    return build_emulated(lower_kernel(module.build(data_type), module.PASS_CONFIGS), f"{kernel.name}_{data_type}")


def launch_in_emulator(kernel: Kernel, data_type: str) -> Callable[..., None]:
    """Stands in for `loader.function`."""
    target = join_kernel() if kernel is JOIN else emulated(kernel, data_type)
    wanted = [parameter.name for parameter in target.lowered.parameters]

    def launch(*values: Any) -> None:
        assert values[-1] in (NOT_EARLY, EARLY)
        given = dict(zip(kernel.parameters, values[:-1], strict=True))
        # The host passes memory, whatever its shape; the emulator wants the declared one, even of an absent state.
        uncut = given.get("segment_state") is given.get("o")
        for name in given.keys() & TOKENS:
            given[name] = given[name].flatten(0, 1)
        for name in STATES:
            if name in given:
                present = given[f"has_{name}"]
                shape = (given["sequences"], given["value_heads"], -1)
                absent = torch.full((given["sequences"], given["value_heads"], 128 * 128), float("nan"))
                given[name] = given[name].view(shape) if present else absent
        if "given_offsets" in given:
            given["given_offsets"] = given["given_offsets"].view(torch.int32)
        if "segment_state" in given and uncut:
            given["segment_state"] = torch.empty((0, given["value_heads"], 256 * 128))
        if "segment_products" in given and not given["rooms"]:
            given["segment_products"] = torch.empty((len(given["segment_joined"]), 0, 128 * 128))
        target(**{name: given[name] for name in wanted if name in given})

    return launch


@pytest.fixture(autouse=True)
def emulator_as_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper.loader, "function", launch_in_emulator)
    monkeypatch.setattr(hopper, "_KNOWN", {})
    # Many processors: the narrow tile, whose kernel alone is built here.
    monkeypatch.setattr(hopper, "device_facts", lambda index: Device("emulator", (9, 0), 64))
    monkeypatch.setattr(hopper, "workers", lambda kernel, items, processors: min(items, 3))


def run(
    values: dict[str, torch.Tensor],
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | None = None,
    value_first: bool = False,
    final: bool = True,
    parts: int = NEVER,
    threshold: float = -10.0,
    known: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor | None, dict[str, torch.Tensor]]:
    batch, length, heads, width = values["v"].shape
    count = batch if cu_seqlens is None else len(cu_seqlens) - 1
    o = torch.full((batch, length, heads, width), float("nan"), dtype=values["v"].dtype)
    state = torch.full((count, heads, 128, 128), float("nan")) if final else None
    options = initial_state, cu_seqlens, known, value_first, parts, threshold
    made = hopper.forward(OPERATOR, values, SCALARS, *options, o, state)
    return o, state, made


def error(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got.float() - expected.float()).norm() / expected.float().norm())


def check(values: dict[str, torch.Tensor], **options: Any) -> None:
    o, state, _ = run(values, **options)
    expected, expected_state = chunk_gated_delta_rule(
        **values,
        initial_state=options.get("initial_state"),
        output_final_state=True,
        cu_seqlens=options.get("cu_seqlens"),
        state_v_first=options.get("value_first", False),
        impl="reference",
    )
    assert expected_state is not None
    assert state is not None
    assert error(o, expected) < 6e-3
    assert error(state, expected_state) < 6e-3
    end = int(options["cu_seqlens"][-1]) if options.get("cu_seqlens") is not None else o.shape[1]
    assert not o[:, end:].any()


@pytest.mark.slow
def test_equal_lengths() -> None:
    """Two rows, no initial state; the tables come from integers."""
    check(inputs(batch=2, length=70))


@pytest.mark.parametrize(("packed", "parts"), [(False, NEVER), (False, 4), (True, NEVER), (True, 4)])
def test_only_the_first_kernel_waits_for_all_that_came_before(
    packed: bool, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packed calls begin with the kernel that makes their tables."""
    launched: list[int] = []
    monkeypatch.setattr(
        hopper.loader, "function", lambda kernel, data_type: lambda *values: launched.append(values[-1])
    )
    tables = hopper.packed_tables(torch.tensor([0, 512]), 512, 64)
    monkeypatch.setattr(hopper, "packed_tables", lambda *_: tables)
    run(inputs(length=512), cu_seqlens=torch.tensor([0, 512]) if packed else None, parts=parts)
    assert launched == [EARLY if packed else NOT_EARLY, *[EARLY] * (len(launched) - 1)]
    assert len(launched) == (2 if parts == NEVER or packed else 4)


def test_arguments_are_converted_before_the_tables_are_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a prepare kernel reads beside the kernel in front of it was there before that one began."""
    happened: list[str] = []
    tables, ready = hopper.packed_tables, hopper.ready

    def make_tables(offsets: torch.Tensor, *values: object) -> object:
        assert offsets.is_contiguous()
        happened.append("tables")
        return tables(offsets, *values)

    def convert(data: bool, tensor: torch.Tensor) -> torch.Tensor:
        happened.append("ready")
        return ready(data, tensor)

    monkeypatch.setattr(hopper, "packed_tables", make_tables)
    monkeypatch.setattr(hopper, "ready", convert)
    monkeypatch.setattr(hopper.loader, "function", lambda *_: lambda *values: happened.append("launch"))
    offsets = torch.tensor([[0, 0], [200, 0], [512, 0]])[:, 0]
    assert not offsets.is_contiguous()
    state = states(2)
    run(inputs(length=512), cu_seqlens=offsets, parts=NEVER, initial_state=state)
    assert happened == ["ready"] * happened.count("ready") + ["tables", "launch", "launch"]
    assert happened.count("ready") == len(OPERATOR.tensors) + 1


@pytest.mark.slow
@pytest.mark.parametrize("value_first", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_packed(value_first: bool, index: torch.dtype) -> None:
    """Ragged, empty in the middle, padding at the end; either layout of the state."""
    offsets = torch.tensor([0, 65, 65, 180], dtype=index)
    check(inputs(length=190), initial_state=states(3, value_first), cu_seqlens=offsets, value_first=value_first)


@pytest.mark.slow
def test_views_and_types() -> None:
    """Packed slices, misaligned data, bf16 gates, a state that is a view: the kernels see contiguous fp32."""
    values = inputs(length=66)
    packed = torch.cat([values["q"], values["k"], values["v"]], dim=2)
    values |= {"q": packed[:, :, :2], "k": packed[:, :, 2:4], "v": packed[:, :, 4:]}
    values["g"] = values["g"].bfloat16()
    values["beta"] = torch.cat([values["beta"], values["beta"]], dim=-1)[..., 1:5]
    state = states(2)[1:].transpose(-1, -2).transpose(-1, -2)
    check(values, initial_state=state)
    storage = torch.zeros(values["q"].numel() + 1, dtype=torch.bfloat16)
    misaligned = storage[1:].view_as(values["q"])
    misaligned.copy_(values["q"])
    assert not hopper.is_aligned(misaligned)
    check({**values, "q": misaligned}, initial_state=state)


@pytest.mark.slow
def test_no_final_state_and_the_workspaces() -> None:
    o, state, made = run(inputs(length=70), final=False)
    assert state is None
    assert bool(o.isfinite().all())
    assert sorted(made) == ["a", *CALL_TABLES]
    assert made["chunk_offsets"].tolist() == [0, 2]
    assert made["segment_offsets"].tolist() == [0, 70]
    gate = inputs(length=70)["g"]
    torch.testing.assert_close(made["g_cum"][0, 1], gate[0, :64, 1].cumsum(0))


@pytest.mark.slow
def test_the_same_memory_for_both_states() -> None:
    values, state = inputs(length=70), states()
    _, expected, _ = run(values, initial_state=state)
    o = torch.empty(1, 70, 4, 128, dtype=torch.bfloat16)
    hopper.forward(OPERATOR, values, SCALARS, state, None, None, False, NEVER, -10.0, o, state)
    assert expected is not None
    assert torch.equal(state, expected)


CUT = {
    "every map": {"threshold": -math.inf},
    "some heads forget": {"threshold": -1.5},
    "values first": {"threshold": -math.inf, "value_first": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CUT)
def test_cut_sequences(name: str) -> None:
    """Packed sequences in three segments or as many as they have chunks; gates that decay slowly in half of the heads.

    Of a segment whose gates sum to less than the threshold what came before is left out: exp(-1.5) of it here.
    """
    values = inputs(length=270)
    values["g"] = values["g"] * torch.tensor([1e-3, 1.0, 1e-3, 1.0])
    offsets = torch.tensor([0, 64 * 3 + 1, 64 * 3 + 1, 262])
    options = CUT[name]
    state = states(3, options.get("value_first", False)) / 128
    check(values, initial_state=state, cu_seqlens=offsets, parts=3, **options)


@pytest.mark.slow
def test_a_long_chain_is_joined_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one head; the others forget within each segment."""
    launch = launch_in_emulator(JOIN, "float32")
    products: list[torch.Tensor] = []

    def join(*given: Any) -> None:
        launch(*given)
        products.append(dict(zip(JOIN.parameters, given[:-1], strict=True))["segment_products"])

    monkeypatch.setattr(hopper, "workers", lambda kernel, items, processors: min(items, processors))
    monkeypatch.setattr(hopper.loader, "function", lambda *of: join if of[0] is JOIN else launch_in_emulator(*of))
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *of, **options: empty(*of, **options).fill_(7))
    values = inputs(length=64 * 12 - 5)
    values["g"] = values["g"] * torch.tensor([1.0, 1e-3, 1.0, 1.0])
    check(values, initial_state=states() / 128, parts=12, threshold=-3.0)
    (made,) = products
    assert made.shape == (11, 1, 128 * 128)
    assert (made[:6] == 7).all()
    assert not (made[6:] == 7).any()


@pytest.mark.slow
@pytest.mark.parametrize("told", [[0, 193, 193, 262], [0, 270, 270, 270], [0, 0, 0, 0]], ids=["true", "one", "none"])
def test_lengths_that_the_host_was_told(told: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """They choose the plan; where they are not the true ones the results are right all the same."""
    for name in ("START", "LAUNCH", "EMPTY", "JOIN"):
        monkeypatch.setattr(costs, name, 0)
    monkeypatch.setattr(choose, "_PLANS", {})
    values = inputs(length=270)
    values["g"] = values["g"] * 1e-3
    options = {"initial_state": states(3) / 128, "cu_seqlens": torch.tensor([0, 193, 193, 262])}
    check(values, **options, known=torch.tensor(told), parts=AUTOMATIC, threshold=-math.inf)
    _, _, made = run(values, **options, known=torch.tensor(told), parts=AUTOMATIC)
    # Segments of one chunk, or of as many as the room that was made for the lengths told allows.
    count = {193: 4 + 1 + 2, 270: 5 + 1 + 1, 0: 3}[told[1]]
    assert len(made["segment_sequence"]) == count


@pytest.mark.slow
def test_cut_rows() -> None:
    """Two rows of equal length in four segments; no initial state. The tables of segments come back."""
    values = inputs(batch=2, length=64 * 4 - 5)
    values["g"] = values["g"] * 1e-3
    check(values, parts=4, threshold=-math.inf)
    _, _, made = run(values, parts=4, threshold=-math.inf)
    assert made["segment_sequence"].tolist() == [0] * 4 + [1] * 4
    assert made["segment_chunks"].tolist() == list(range(9))
    assert made["segment_offsets"].tolist() == [0, 64, 128, 192, 251, 315, 379, 443, 502]


def test_nothing_is_launched_without_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hopper.loader, "function", None)
    state = states(2)
    _, final, made = run(inputs(batch=2, length=0), initial_state=state)
    assert final is not None
    assert torch.equal(final, state)
    assert made == {}
    o, final, _ = run(inputs(length=9), cu_seqlens=torch.tensor([0]))
    assert final is not None
    assert final.shape[0] == 0
    assert not o.any()
    _, final, _ = run(inputs(batch=2, length=0))
    assert final is not None
    assert not final.any()
