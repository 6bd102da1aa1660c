"""Compiling kernel files: what is read from ptxas, what is refused, what is kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from qlagen.emit import compile_check
from qlagen.emit.compile_check import CompileReport, check_compiled, compile_kernel, find_tool, judge, read_messages
from qlagen.emit.load import device_source, load_kernel
from qlagen.errors import QlagenError
from tests.emit.kernels import emitted

SAID = """ptxas info    : 1024 bytes gmem
ptxas info    : Compiling entry function 'a_kernel' for 'sm_90a'
ptxas info    : Function properties for a_kernel
    8 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers, 4096 bytes smem
{more}"""
SERIALISED = (
    "ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized due to "
    "insufficient register resources for the wgmma pipeline in the function 'a_kernel'"
)
needs_nvcc = pytest.mark.skipif(find_tool("nvcc") is None, reason="there is no CUDA compiler")


def report(stores: int = 0, loads: int = 0, more: str = "") -> CompileReport:
    return read_messages("a", "bfloat16", SAID.format(stores=stores, loads=loads, more=more))


def test_figures_are_read_from_the_compiler_s_messages() -> None:
    found = report(stores=12, loads=20, more=SERIALISED)
    assert (found.registers, found.spill_bytes, found.static_shared_bytes) == (168, 32, 4096)
    assert found.messages == (SERIALISED,)
    assert len(found.faults()) == 2
    assert report().faults() == ()


@pytest.mark.parametrize("code", ["C7510", "C7511", "C7512", "C7513", "C7514"])
def test_serialised_products_are_refused(code: str) -> None:
    with pytest.raises(QlagenError, match="1 kernels do not compile well") as caught:
        judge([report(), report(more=SERIALISED.replace("C7512", code))])
    assert caught.value.code == "E-SLOW"
    assert caught.value.notes[0].startswith(f"a (bfloat16): ptxas info    : ({code})")


def test_spills_are_refused() -> None:
    with pytest.raises(QlagenError) as caught:
        judge([report(loads=4)])
    assert caught.value.notes == ("a (bfloat16): 4 bytes of registers are spilled",)


def test_other_messages_are_reported_only() -> None:
    found = report(more=SERIALISED.replace("C7512", "C7519"))
    assert found.messages
    judge([found])


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_check, "find_tool", lambda name: None)
    with pytest.raises(QlagenError, match="nvcc is not on PATH") as caught:
        compile_kernel(tmp_path / "k.py", "bfloat16")
    assert caught.value.code == "E-COMPILE"
    assert "install the CUDA toolkit" in caught.value.hints


def test_a_missing_kernel_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(QlagenError, match="there is no kernel file") as caught:
        load_kernel(tmp_path / "absent.py")
    assert caught.value.code == "E-KERNEL"


def test_an_unknown_data_type_is_said(tmp_path: Path) -> None:
    file = tmp_path / "k.py"
    file.write_text(emitted("simple_gla", "prepare", "tile"), encoding="utf-8")
    with pytest.raises(QlagenError, match="cannot be built for 'float8'") as caught:
        device_source(load_kernel(file), "float8")
    assert caught.value.notes == ("data types: bfloat16, float16",)


def test_a_kernel_that_tilelang_rejects_is_said(tmp_path: Path) -> None:
    file = tmp_path / "k.py"
    text = emitted("simple_gla", "prepare", "tile").replace("lane_sum[0] +=", "lane_sum[0, 0] +=")
    file.write_text(text, encoding="utf-8")
    with pytest.raises(QlagenError, match="TileLang cannot lower kernel simple_gla_prepare_tile") as caught:
        device_source(load_kernel(file), "bfloat16")
    assert caught.value.notes


@needs_nvcc
def test_a_report_is_kept_by_the_hash_of_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, cache = tmp_path / "k.py", tmp_path / "cache"
    file.write_text(emitted("simple_gla", "prepare", "tile"), encoding="utf-8")
    (first,) = check_compiled([file], ["bfloat16"], cache)
    assert first.spill_bytes == 0
    assert 0 < first.registers <= 255
    (kept,) = cache.iterdir()
    assert json.loads(kept.read_text(encoding="utf-8"))["registers"] == first.registers
    monkeypatch.setattr(compile_check, "device_source", None)  # a second compilation would fail
    assert check_compiled([file], ["bfloat16"], cache) == (first,)
    file.write_text(file.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")
    with pytest.raises(TypeError):
        check_compiled([file], ["bfloat16"], cache)


@needs_nvcc
def test_a_state_role_with_too_few_registers_is_refused(tmp_path: Path) -> None:
    """The compiler's own message for a real kernel, so that a change of its wording is noticed."""
    file = tmp_path / "k.py"
    text = emitted("delta_rule", "forward", "v64")
    assert "STATE_REGISTERS = 240" in text
    file.write_text(text.replace("STATE_REGISTERS = 240", "STATE_REGISTERS = 152"), encoding="utf-8")
    with pytest.raises(QlagenError) as caught:
        check_compiled([file], ["bfloat16"])
    assert caught.value.code == "E-SLOW"
    assert any("C7512" in note or "spilled" in note for note in caught.value.notes)
