"""Matrix instructions against float64 products of the rounded operands."""

from __future__ import annotations

import pytest
import torch

from qlagen.verify.emulator import Mode, build_emulated, lower_kernel

from .kernels import product, transposed_copies, warp_product

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


def relative_error(result: torch.Tensor, reference: torch.Tensor) -> float:
    return float((result.double() - reference).norm() / reference.norm())


@pytest.mark.parametrize(
    ("n", "k", "dtype", "transpose_a", "transpose_b", "a_in_registers"),
    [
        (128, 128, "bfloat16", False, True, False),  # both K-major, two swizzle atoms along K
        (256, 64, "float16", True, False, False),  # both MN-major, several atoms along N
        (24, 32, "bfloat16", False, True, False),  # 64-byte swizzle, N not a multiple of 16
        (16, 16, "float16", False, False, False),  # 32-byte swizzle
        (8, 64, "bfloat16", False, True, False),  # smallest N
        (64, 64, "bfloat16", False, False, True),  # A in registers, B MN-major
        (40, 32, "float16", False, True, True),  # A in registers, B K-major
    ],
)
def test_wgmma(n: int, k: int, dtype: str, transpose_a: bool, transpose_b: bool, a_in_registers: bool) -> None:
    kernel = build_emulated(lower_kernel(product(n, k, dtype, transpose_a, transpose_b, a_in_registers)), "product")
    assert ("wgmma_rs" in kernel.lowered.device_source) == a_in_registers
    torch.manual_seed(n + k)
    a, b = torch.randn(64, k).to(DTYPES[dtype]), torch.randn(k, n).to(DTYPES[dtype])
    reference = a.double() @ b.double()
    for mode in (Mode(), Mode(lazy=True), Mode(lazy=True, late=True, seed=1)):
        out = torch.full((64, n), float("nan"))
        kernel(a=a.T.contiguous() if transpose_a else a, b=b.T.contiguous() if transpose_b else b, out=out, mode=mode)
        assert relative_error(out, reference) < 3e-7


@pytest.mark.parametrize(("dtype", "tolerance"), [("bfloat16", 3e-7), ("float16", 3e-7), ("float32", 2e-3)])
def test_mma(dtype: str, tolerance: float) -> None:
    """float32 runs as tfloat32: it keeps ten bits of the operands, so it is neither exact nor far off."""
    kernel = build_emulated(lower_kernel(warp_product(32, 32, 64, dtype)), "warp_product")
    assert "mma_sync" in kernel.lowered.device_source
    assert "ldmatrix" in kernel.lowered.device_source
    torch.manual_seed(3)
    a, b = torch.randn(32, 64).to(DTYPES[dtype]), torch.randn(32, 64).to(DTYPES[dtype])
    out = torch.full((32, 32), float("nan"))
    kernel.run_in_modes({"a": a, "b": b, "out": out})
    error = relative_error(out, a.double() @ b.double().T)
    assert error < tolerance
    assert dtype != "float32" or error > 1e-5


def test_transposed_store_and_load() -> None:
    kernel = build_emulated(lower_kernel(transposed_copies()), "transposed_copies")
    assert "ptx_stmatrix_m8n8_x4_trans" in kernel.lowered.device_source
    assert "ptx_ldmatrix_x4_trans" in kernel.lowered.device_source
    a = torch.randn(64, 128).bfloat16()
    out, back = torch.zeros(128, 64).bfloat16(), torch.zeros(64, 128).bfloat16()
    kernel.run_in_modes({"a": a, "out": out, "back": back})
    assert torch.equal(out, a.T)
    assert torch.equal(back, a)
