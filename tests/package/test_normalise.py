"""Unit vectors: the CUDA kernel, in the CPU emulator, against the torch operations."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from qla_ops.runtime import normalise
from qla_ops.runtime.builder import kernel_file
from qla_ops.runtime.loader import NOT_EARLY, UNIT_VECTORS
from qla_ops.runtime.normalise import launch, unit_vectors
from qla_ops.runtime.records import Kernel
from qlagen.verify.emulator import EmulatedKernel, Launch, LoweredKernel, Mode, Parameter, build_emulated

BITS = {torch.bfloat16: torch.int16, torch.float16: torch.int16, torch.float32: torch.int32}


@cache
def kernel(dtype: str) -> EmulatedKernel:
    """The CUDA kernel, compiled for the CPU emulator; the type is only that of the tensors it is given."""
    text = kernel_file(UNIT_VECTORS).read_text()
    parameters = [
        *(Parameter(name, "void*", dtype, (f"{name}_size",)) for name in UNIT_VECTORS.tensors),
        *(Parameter(name, "int64_t" if "stride" in name else "int", "int") for name, _ in UNIT_VECTORS.scalars),
    ]
    grid = Launch("unit_vectors_kernel", ("rows", "count", "1"), 256, 0)
    return build_emulated(LoweredKernel(text, text, tuple(parameters), (grid,)), "unit_vectors")


@pytest.fixture(params=[None, 1], ids=["in turn", "seeded"])
def emulator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The emulator as the GPU; the numbers of every launch are kept."""
    launches: list[dict[str, Any]] = []

    def function(wanted: Kernel, data_type: str) -> Any:
        assert (wanted, data_type) == (UNIT_VECTORS, "float32")

        def run(*values: Any) -> None:
            assert values[-1] == NOT_EARLY
            given = dict(zip(UNIT_VECTORS.parameters, values[:-1], strict=True))
            launches.append({name: value for name, value in given.items() if isinstance(value, int)})
            unit = given["unit"]
            unit.fill_(float("nan"))
            # What the kernel may read of a tensor: from its first element to its last.
            for name in UNIT_VECTORS.tensors[:4]:
                x = given[name]
                reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1
                given[name] = x.as_strided((reach,), (1,))
            given["unit"] = unit.view(-1)
            kernel(str(unit.dtype).removeprefix("torch."))(mode=Mode(seed=request.param), **given)

        return run

    monkeypatch.setattr(normalise.loader, "function", function)
    return launches


def make(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)


def check(*tensors: torch.Tensor) -> None:
    """Within one unit in the last place of what torch computes; of fp32, where the order of sums shows, a few."""
    before = [tensor.clone() for tensor in tensors]
    got = launch(tensors)
    assert len(got) == len(tensors)
    for unit, tensor, old in zip(got, tensors, before, strict=True):
        (expected,) = unit_vectors([tensor], False)
        assert (unit.shape, unit.dtype) == (expected.shape, expected.dtype)
        assert unit.is_contiguous()
        assert torch.equal(tensor, old)
        bits = BITS[unit.dtype]
        apart = (unit.view(bits).long() - expected.contiguous().view(bits).long()).abs()
        assert int(apart.max()) <= (1 if bits == torch.int16 else 4)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("width", [1, 7, 24, 64, 100, 128, 250, 256])
def test_widths_and_types(width: int, dtype: torch.dtype, emulator: list[dict[str, Any]]) -> None:
    """Rows that are whole pieces of 16 bytes and rows that are not; more rows than a block takes, and a rest."""
    check(make(1, 37, 3, width, dtype=dtype), make(1, 37, 3, width, dtype=dtype, seed=1))
    assert len(emulator) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_tensors_of_one_launch(count: int, emulator: list[dict[str, Any]]) -> None:
    check(*(make(2, 5, 2, 64, seed=seed) for seed in range(count)))
    assert [numbers["count"] for numbers in emulator] == [count]


def test_slices_of_a_packed_tensor_are_not_copied(emulator: list[dict[str, Any]]) -> None:
    packed = make(2, 9, 8, 128)
    check(packed[:, :, :2], packed[:, :, 2:4])
    assert (emulator[0]["first_stride"], emulator[0]["second_stride"]) == (8 * 128, 8 * 128)


@pytest.mark.parametrize("length", [1, 6])
def test_other_layouts_are_copied(length: int, emulator: list[dict[str, Any]]) -> None:
    """Heads before tokens, rows of a batch that are cut, one token for each batch row."""
    check(make(2, 2, length, 64).transpose(1, 2), make(2, length + 1, 2, 64)[:, :-1])
    check(make(3, length, 1, 64), make(3, length, 2, 64)[:, :, 1:])
    assert {numbers["heads"] for numbers in emulator} == {1, 2}


def test_strides_that_break_the_alignment(emulator: list[dict[str, Any]]) -> None:
    """Rows of 16 bytes each, but tokens 18 bytes apart: element by element."""
    check(make(1, 11, 9)[:, :, None, :8])
    assert emulator[0]["first_stride"] == 9


@pytest.mark.parametrize("dtype", BITS)
def test_extremes(dtype: torch.dtype, emulator: list[dict[str, Any]]) -> None:
    """Zero rows stay zero, tiny rows are divided by the root of epsilon, large rows become unit rows."""
    rows = make(1, 4, 1, 128, dtype=dtype)
    rows[0, 0] = 0
    rows[0, 1] = rows[0, 1] * 1e-4
    rows[0, 2] = rows[0, 2] * 1e3
    check(rows)
    (unit,) = launch([rows])
    assert not unit[0, 0].any()
    assert abs(float(unit[0, 2].float().norm()) - 1) < 4e-3


def test_who_takes_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel takes CUDA tensors of one shape and type only, five of them in two launches."""
    launched: list[int] = []

    def record(tensors: Any) -> Any:
        launched.append(len(tensors))
        return tensors

    monkeypatch.setattr(normalise, "launch", record)
    one = make(1, 3, 2, 64)
    assert unit_vectors([one], True)[0] is not one
    assert launched == []
    monkeypatch.setattr(normalise, "_DEVICE", "cpu")
    assert unit_vectors([one] * 5, True) == [one] * 5
    assert launched == [4, 1]
    for others in ([one.double()], [make(1, 3, 2, 257)], [one, one.half()], [one, one[:, :2]], [one[:, :0]], []):
        unit_vectors(others, True)
    unit_vectors([one], False)
    assert launched == [4, 1]
