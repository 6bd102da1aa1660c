"""Reductions, scans, plain and asynchronous copies as TileLang generates them."""

from __future__ import annotations

from dataclasses import replace

import torch

from qlagen.verify.emulator import STANDARD_MODES, build_emulated, lower_kernel

from .kernels import line_sums, masked_copy


def test_reductions_and_scan() -> None:
    kernel = build_emulated(lower_kernel(line_sums(32, 64)), "line_sums")
    x = torch.randn(32, 64)
    total, peak, running = torch.zeros(32), torch.zeros(32), torch.zeros(32, 64)
    modes = [replace(mode, fences="path") for mode in STANDARD_MODES]  # TileLang fences in the storing thread only
    kernel.run_in_modes({"x": x, "total": total, "peak": peak, "running": running}, modes)
    assert torch.allclose(total, x.sum(1), atol=1e-5)
    assert torch.equal(peak, x.max(1).values)
    assert torch.allclose(running, x.cumsum(1), atol=1e-5)


def test_masked_copy_with_symbolic_heads() -> None:
    """Rows past the end are neither read nor stored; the integer parameter arrives by value."""
    kernel = build_emulated(lower_kernel(masked_copy()), "masked_copy")
    assert "cp_async" in kernel.lowered.device_source
    x = torch.randn(37, 3, 32).half()
    out = torch.full_like(x, float("nan"))
    kernel.run_in_modes({"x": x, "out": out, "shift": 3})
    assert torch.equal(out, x + 3)
