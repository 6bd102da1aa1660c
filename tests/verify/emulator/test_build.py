"""Compiler, cache, arguments: faults that a user can cause, and code paths of other machines."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from qlagen.errors import QlagenError
from qlagen.verify.emulator import Mode, build_emulated, lower_kernel, toolchain

from .cuda_text import kernel_from_text
from .kernels import masked_copy

CONVERSIONS = """
  for (int i = tx; i < 1024; i += 32) {
    half[i] = half_t(x[i]);
    brain[i] = bfloat16_t(x[i]);
    back[i] = float(half[i]);
  }
"""


def arguments() -> dict[str, object]:
    return {"x": torch.zeros(5, 2, 32).half(), "out": torch.zeros(5, 2, 32).half(), "shift": 1}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": torch.zeros(5, 2, 32)}, "x has dtype float32, the kernel takes float16"),
        ({"x": torch.zeros(5, 2, 16).half()}, "x has shape (5, 2, 16), the kernel takes (tokens, heads, 32)"),
        (
            {"x": torch.zeros(6, 2, 32).half()},
            "out has shape (5, 2, 32), the kernel takes (tokens, heads, 32) with tokens = 6",
        ),
        ({"x": 3}, "x takes a tensor, got int"),
        ({"out": torch.zeros(2, 5, 32).half().transpose(0, 1)}, "out: a contiguous CPU tensor is needed"),
        ({"shift": 1.5}, "shift takes a number of type int, got 1.5"),
        ({"shift": None}, "no value for shift (int)"),
        ({"tokens": 4}, "dimension tokens is 5 in the tensors, but 4 was given"),
        ({"shifd": 1}, "unknown argument 'shifd'"),
    ],
)
def test_wrong_arguments(change: dict[str, object], message: str) -> None:
    kernel = build_emulated(lower_kernel(masked_copy()), "masked_copy")
    with pytest.raises(QlagenError) as caught:
        kernel(**{**arguments(), **change})
    assert (caught.value.code, caught.value.message) == ("E-EMU-ARGUMENT", message)


def test_unknown_argument_has_a_suggestion_and_missing_tensors_are_named() -> None:
    kernel = build_emulated(lower_kernel(masked_copy()), "masked_copy")
    with pytest.raises(QlagenError, match="did you mean 'shift'"):
        kernel(**arguments(), shifd=1)
    with pytest.raises(QlagenError, match="no tensor for x, out"):
        kernel(shift=1)


def test_missing_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(QlagenError) as caught:
        toolchain.find_compiler()
    assert caught.value.code == "E-EMU-COMPILER"
    assert "install g++ (12 or newer)" in caught.value.hints


@pytest.mark.parametrize("version", ["Debian clang version 14.0.6", "g++ (GCC) 11.4.0 20220101", ""])
def test_unfit_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, version: str) -> None:
    fake = tmp_path / "other++"
    fake.write_text(f"#!/bin/sh\necho '{version}'\n")
    fake.chmod(0o755)
    monkeypatch.setenv("CXX", str(fake))
    with pytest.raises(QlagenError, match=r"not g\+\+ 12 or newer"):
        toolchain.find_compiler()


def test_lowering_errors_are_not_tracebacks() -> None:
    with pytest.raises(QlagenError) as caught:
        lower_kernel(masked_copy(), {"no.such.option": 1})
    assert caught.value.code == "E-EMU-LOWER"
    assert caught.value.notes


def test_libraries_are_cached_by_content() -> None:
    directory = toolchain.default_directory()
    source = 'extern "C" __attribute__((visibility("default"))) int answer() { return 1; }'
    first = toolchain.build_library(source, "answer", directory)
    made = first.stat().st_mtime_ns
    assert toolchain.build_library(source, "answer", directory) == first
    assert first.stat().st_mtime_ns == made
    assert toolchain.build_library(source.replace("1;", "2;"), "answer", directory) != first


def special_values() -> torch.Tensor:
    torch.manual_seed(1)
    scales = torch.logspace(-9, 5, 1009, dtype=torch.float64).float() * torch.randn(1009).sign()
    edges = [
        0.0,
        -0.0,
        float("inf"),
        -float("inf"),
        float("nan"),
        65504.0,
        65519.9,
        65520.0,
        2.0**-24,
        2.0**-25,
        1.00048828125,
        1.00390625,
    ]
    return torch.cat([scales, torch.tensor([*edges, 3.0, 1e-40, 3e38])])


def check_conversions(name: str) -> None:
    x = special_values()
    assert x.numel() == 1024
    kernel = kernel_from_text(
        name, CONVERSIONS, {"x": "float32", "half": "float16", "brain": "bfloat16", "back": "float32"}
    )
    half, brain, back = torch.zeros(1024).half(), torch.zeros(1024).bfloat16(), torch.zeros(1024)
    kernel(x=x, half=half, brain=brain, back=back, mode=Mode(seed=1))
    assert torch.equal(half.nan_to_num(7), x.half().nan_to_num(7))
    assert torch.equal(brain.nan_to_num(7), x.bfloat16().nan_to_num(7))
    assert torch.equal(back.nan_to_num(7), x.half().float().nan_to_num(7))


def test_sixteen_bit_conversions() -> None:
    check_conversions("conversions")


def test_build_without_vector_instructions_and_assembly(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other CPUs use: conversions in software, and the C library's contexts in place of the x86 switch."""
    monkeypatch.setattr(toolchain, "_machine_flags", lambda: ())
    monkeypatch.setattr(toolchain, "_COMMON_FLAGS", (*toolchain._COMMON_FLAGS, "-DEMULATOR_PORTABLE_FIBERS"))
    monkeypatch.setattr(toolchain, "_RUNTIME_OPTIMISATION", "-O1")
    toolchain._describe.cache_clear()
    try:
        check_conversions("portable")
    finally:
        toolchain._describe.cache_clear()
