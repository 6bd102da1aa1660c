"""Building and loading kernels: names, locks, damage, messages. A stand-in compiler takes the place of nvcc."""

from __future__ import annotations

import json
import multiprocessing
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from qla_ops import BuildError, LoadError, chunk_simple_gla
from qla_ops.runtime import builder, loader, source, toolchain
from qla_ops.runtime.builder import Report, build, library_stem, read_messages
from qla_ops.runtime.choose import OPERATORS
from qla_ops.runtime.records import Kernel

KERNEL = OPERATORS["simple_gla"].programs[-1].variants[0]
PROCESSES = 8


def slow_compiler(kernel: Kernel, data_type: str, output: Path) -> Report:
    """Leaves a trace of every run, and takes long enough for everybody to meet."""
    (output.parent.parent / f"run-{os.getpid()}").touch()
    output.write_bytes(b"")
    time.sleep(0.3)
    output.write_bytes(b"library")
    return Report(kernel.name, data_type, 100, 0, 0, 1.0)


def build_in_process(folder: Path, barrier: object, results: object) -> None:
    barrier.wait()  # type: ignore[attr-defined]
    path = build(KERNEL, "bfloat16", folder, slow_compiler).path
    results.put((str(path), path.read_bytes()))  # type: ignore[attr-defined]


def test_eight_processes_with_a_cold_cache(tmp_path: Path) -> None:
    """One build, the same whole file for everybody, nothing left behind."""
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    arguments = (tmp_path / "cache", barrier, results)
    processes = [context.Process(target=build_in_process, args=arguments) for _ in range(PROCESSES)]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(timeout=60)
        assert process.exitcode == 0
    assert len(set(found)) == 1
    assert found[0][1] == b"library"
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert sum(name.startswith("run-") for name in names) == 1
    assert [path.suffix for path in map(Path, names) if not path.name.startswith("run-")] == ["", ".json", ".so"]


def test_the_report_is_kept(tmp_path: Path) -> None:
    first = build(KERNEL, "bfloat16", tmp_path, slow_compiler)
    assert build(KERNEL, "bfloat16", tmp_path, None) == first
    assert first.report.registers == 100
    first.path.with_suffix(".json").unlink()
    assert build(KERNEL, "bfloat16", tmp_path, None).report.registers == 0


def test_what_names_a_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Source, data type, recipe and machine before the last dash, the tools' versions after it."""
    names = {library_stem(KERNEL, "bfloat16"), library_stem(KERNEL, "float16")}
    copy = tmp_path / "kernel.py"
    copy.write_text(builder.kernel_file(KERNEL).read_text() + "\n")
    with monkeypatch.context() as patch:
        patch.setattr(builder, "kernel_file", lambda kernel: copy)
        names.add(library_stem(KERNEL, "bfloat16"))
    for name, value in (("_RECIPE", 99), ("_FLAGS", ("-O0",))):
        with monkeypatch.context() as patch:
            patch.setattr(builder, name, value)
            names.add(library_stem(KERNEL, "bfloat16"))
    with monkeypatch.context() as patch:
        patch.setattr(builder.platform, "machine", lambda: "aarch64")
        names.add(library_stem(KERNEL, "bfloat16"))
    assert len(names) == 6
    tools = [toolchain.Toolchain("nvcc", *versions) for versions in (("1", "1", "1"), ("2", "1", "1"), ("1", "2", "1"))]
    assert len({item.digest for item in tools}) == 3


def test_an_empty_file_is_no_library(tmp_path: Path) -> None:
    path = build(KERNEL, "bfloat16", tmp_path, slow_compiler).path
    path.write_bytes(b"")
    assert build(KERNEL, "bfloat16", tmp_path, slow_compiler).path.read_bytes() == b"library"


def test_a_compiler_that_writes_nothing(tmp_path: Path) -> None:
    def idle(kernel: Kernel, data_type: str, output: Path) -> Report:
        return Report(kernel.name, data_type, 0, 0, 0, 0.0)

    with pytest.raises(BuildError, match=r"simple_gla_forward_v128 .bfloat16.: the compiler wrote no library"):
        build(KERNEL, "bfloat16", tmp_path, idle)
    assert not list(tmp_path.glob("*.so"))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BuildError, match=r"cannot write .*; set QLA_OPS_CACHE to a folder that can be written"):
        build(KERNEL, "bfloat16", tmp_path / "file", slow_compiler)


def test_a_failing_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last lines are the message."""
    monkeypatch.setattr(builder.importlib, "import_module", lambda name: SimpleNamespace(PASS_CONFIGS={}))
    monkeypatch.setattr(builder, "lower", lambda module, data_type: f"TL_EXPORT {HOST} {{ this is no CUDA")
    monkeypatch.setattr(builder, "launcher", lambda text, kernel: "")
    with pytest.raises(BuildError, match=r"(?s)simple_gla_forward_v128 \(float16\): .*nvcc failed with status .*error"):
        build(KERNEL, "float16", tmp_path)
    assert not list(tmp_path.glob("*.so"))
    assert not list(tmp_path.glob(".build-*"))


def test_messages_of_ptxas() -> None:
    said = """ptxas info    : 24 bytes stack frame, 92 bytes spill stores, 180 bytes spill loads
ptxas info    : Used 168 registers, used 1 barriers
ptxas info    : (C7512) Potential Performance Loss: wgmma.mma_async instructions are serialized"""
    assert read_messages("name", "float16", said, 1.234) == Report("name", "float16", 168, 272, 1, 1.23)


def test_missing_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "find_nvcc", lambda: None)
    toolchain.find_toolchain.cache_clear()
    assert toolchain.missing_tools() == "no CUDA compiler was found (put nvcc on the path or set CUDA_HOME)"
    with pytest.raises(BuildError, match="kernels cannot be built here: no CUDA compiler was found"):
        toolchain.find_toolchain()
    toolchain.find_toolchain.cache_clear()


# The launch function

LAUNCHED = Kernel(
    name="some_kernel",
    module="",
    tensors=("q", "o"),
    scalars=(("scale", "float32"), ("flag", "int32")),
    dynamic=("tokens", "heads"),
    kind="carried",
    value_tile=128,
    ctas_per_sm=1,
    data_types=("float16",),
)
HOST = "int call(half_t* __restrict__ o, half_t* __restrict__ q, int flag, float scale, int heads, int tokens, T s)"


def test_launcher_orders_arguments() -> None:
    """Whatever the order of TileLang's host function, the exported one has that of the kernel file."""
    text = source.launcher(f"TL_EXPORT {HOST} {{", LAUNCHED)
    assert (
        "void launch(tvm::ffi::TensorView q, tvm::ffi::TensorView o, double scale, int64_t flag, int64_t tokens, "
        in text
    )
    assert (
        "call(static_cast<half_t*>(o.data_ptr()), static_cast<half_t*>(q.data_ptr()), static_cast<int>(flag), "
        "static_cast<float>(scale), static_cast<int>(heads), static_cast<int>(tokens), stream)"
    ) in text
    assert "TVM_FFI_DLL_EXPORT_TYPED_FUNC(some_kernel, launch);" in text


def test_launcher_refuses_what_it_does_not_know() -> None:
    with pytest.raises(BuildError, match="the generated source has no host function"):
        source.launcher("int main() {}", LAUNCHED)
    with pytest.raises(BuildError, match="the host function takes extra, which its record does not have"):
        source.launcher(f"TL_EXPORT {HOST.replace('int heads', 'int extra')} {{", LAUNCHED)


def test_the_caller_says_which_kernels_start_early() -> None:
    allowed = "attribute[0].val.programmaticStreamSerializationAllowed = 1;"
    text = f"cudaGridDependencySynchronize(); {allowed}"
    assert source.with_early_start(text) == source.EARLY_START + text.replace("= 1", "= early_start")
    with pytest.raises(BuildError, match=r"version 0\.1\.15 is supported"):
        source.with_early_start("another wrapper")
    with pytest.raises(BuildError, match="does not call cudaGridDependencySynchronize"):
        source.with_early_start(allowed)
    launched = source.launcher(f"TL_EXPORT {HOST} {{", LAUNCHED)
    assert "int64_t heads, int64_t early) {" in launched
    assert launched.index("early_start = static_cast<int>(early);") < launched.index("call(")


# Finding and loading


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """An empty folder inside the package and an empty cache; nothing is loaded yet."""
    monkeypatch.setattr(loader, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr(loader, "_LOADED", {})
    monkeypatch.setenv("QLA_OPS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "prebuilt").mkdir()
    (tmp_path / "cache").mkdir()
    return tmp_path / "prebuilt", tmp_path / "cache"


def place(folder: Path, tools: str) -> Path:
    path = folder / f"{library_stem(KERNEL, 'bfloat16')}-{tools}.so"
    path.write_bytes(b"library")
    return path


def test_where_libraries_are_looked_for(caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """First in the package, of any tools; then in the cache, of these tools if there are any."""
    prebuilt, cache = caches
    assert loader.find_library(KERNEL, "bfloat16") is None
    others = place(cache, "01234567")
    assert loader.find_library(KERNEL, "bfloat16") is None
    ours = place(cache, toolchain.find_toolchain().digest)
    assert loader.find_library(KERNEL, "bfloat16") == ours
    with monkeypatch.context() as patch:
        patch.setattr(loader, "missing_tools", lambda: "no tools")
        assert loader.find_library(KERNEL, "bfloat16") == min(others, ours)
    shipped = place(prebuilt, "89abcdef")
    assert loader.find_library(KERNEL, "bfloat16") == shipped
    shipped.write_bytes(b"")
    assert loader.find_library(KERNEL, "bfloat16") == ours
    assert loader.find_library(KERNEL, "float16") is None


def test_a_damaged_library_heals(caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    path = place(caches[1], toolchain.find_toolchain().digest)
    built: list[str] = []

    def rebuild(kernel: Kernel, data_type: str, folder: Path) -> builder.Built:
        assert not path.exists()
        built.append(data_type)
        return builder.Built(path, Report(kernel.name, data_type, 0, 0, 0, 0.0))

    def open_library(kernel: Kernel, opened: Path) -> object:
        if not built:
            raise LoadError("damaged")
        return print

    monkeypatch.setattr(loader, "build", rebuild)
    monkeypatch.setattr(loader, "_open", open_library)
    assert loader.function(KERNEL, "bfloat16") is print
    assert loader.function(KERNEL, "bfloat16") is print
    assert built == ["bfloat16"]


@pytest.mark.usefixtures("caches")
def test_a_library_that_cannot_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"no library")
    with pytest.raises(LoadError, match=f"simple_gla_forward_v128: cannot load {path}: "):
        loader._open(KERNEL, path)


def test_warmup(caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every variant, once; what is there already is not built."""
    import torch

    monkeypatch.setattr(builder, "compile_kernel", slow_compiler)
    paths = chunk_simple_gla.warmup()
    names = [f"{kernel.name}_bfloat16" for kernel in OPERATORS["simple_gla"].kernels]
    shared = ["tables_int32", "unit_vectors_float32", "join_float32"]
    assert [path.name.split("-")[0] for path in paths] == [*names, *shared]
    assert {path.parent for path in paths} == {caches[1]}
    monkeypatch.setattr(builder, "compile_kernel", None)
    assert chunk_simple_gla.warmup() == paths
    with pytest.raises(ValueError, match=r"data_types has torch\.float32; allowed: torch.bfloat16, torch.float16"):
        chunk_simple_gla.warmup((torch.float32,))


def test_missing_kernels_are_built_at_the_same_time(caches: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """A first call does not wait for one compiler after another; what is there is left alone."""
    meeting = threading.Barrier(2, timeout=30)

    def compiler(kernel: Kernel, data_type: str, output: Path) -> Report:
        meeting.wait()
        return slow_compiler(kernel, data_type, output)

    first, second, third = ((kernel, "bfloat16") for kernel in OPERATORS["simple_gla"].kernels[:3])
    monkeypatch.setattr(loader, "_LOADED", {(first[0].name, "bfloat16"): print})
    monkeypatch.setattr(builder, "compile_kernel", compiler)
    loader.build_missing([first, second, third])
    assert loader.find_library(*first) is None
    assert {path and path.parent for path in (loader.find_library(*second), loader.find_library(*third))} == {caches[1]}
    monkeypatch.setattr(builder, "compile_kernel", None)
    loader.build_missing([first, second, third])


@pytest.mark.slow
def test_a_real_kernel_is_built_and_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """nvcc builds it without a GPU; it is loaded, and refuses CPU tensors rather than reading them."""
    import torch

    monkeypatch.setattr(loader, "_LOADED", {})
    monkeypatch.setenv("QLA_OPS_CACHE", str(tmp_path))
    smallest = OPERATORS["simple_gla"].programs[0].variants[0]
    for kernel, data_type in ((smallest, "bfloat16"), *((kernel, kernel.data_types[0]) for kernel in loader.SHARED)):
        launch = loader.function(kernel, data_type)
        report = json.loads(next(tmp_path.glob(f"{kernel.name}*.json")).read_text())
        assert report["registers"] > 0
        assert report["spill_bytes"] == 0
        tensors = [torch.zeros(1) for _ in kernel.tensors]
        numbers = [1.0 if kind == "float32" else 1 for _, kind in kernel.scalars]
        with pytest.raises(ValueError, match=f"{kernel.tensors[0]} is not on a CUDA device"):
            launch(*tensors, *numbers, *(1 for _ in kernel.dynamic), loader.EARLY)
