"""Builds kernels into libraries that need neither tilelang nor a compiler to be loaded, and keeps them in a folder.

A library's file name holds the kernel, the data type, a digest of source and recipe, and one of the tools' versions.
Any number of processes may build into one folder: a lock for each library, a temporary folder, an atomic rename.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from qla_ops.runtime.errors import BuildError
from qla_ops.runtime.records import Kernel
from qla_ops.runtime.source import EARLY_START, launcher, lower
from qla_ops.runtime.toolchain import Toolchain, ffi_library_folder, find_toolchain, include_folders

_RECIPE = 2
"""Raise it when source.py or the flags below change what is built."""
_FLAGS = (
    *("-std=c++20", "-O3", "-w", "--shared", "-Xcompiler", "-fPIC", "-gencode", "arch=compute_90a,code=sm_90a"),
    *("-Xptxas", "-v", "-Xlinker", "-s", "-Xlinker", "-Bsymbolic"),
)
_MESSAGE_LINES = 30
_LOWERING = threading.Lock()


@dataclass(frozen=True)
class Report:
    """What the compiler said about one library."""

    kernel: str
    data_type: str
    registers: int
    """Of the launch; setmaxnreg changes it inside."""
    spill_bytes: int
    """Stores and loads."""
    serialised_wgmma: int
    """ptxas messages C7510 to C7519: matrix products that wait for one another."""
    seconds: float
    """Time to lower and compile; 0 when the library was there already."""


@dataclass(frozen=True)
class Built:
    path: Path
    report: Report


Compile = Callable[[Kernel, str, Path], Report]
"""Writes the library of a kernel and data type to a path."""


def kernel_file(kernel: Kernel) -> Path:
    """The kernel's source file, TileLang or CUDA. It is found, not imported: that would need tilelang."""
    path = (Path(__file__).parent.parent / "kernels").joinpath(*kernel.module.split("."))
    cuda = path.with_suffix(".cu")
    return cuda if cuda.is_file() else path.with_suffix(".py")


def library_stem(kernel: Kernel, data_type: str) -> str:
    """File name of a library up to the tools' digest."""
    text = "\n".join((str(_RECIPE), *_FLAGS, platform.machine(), data_type, kernel_file(kernel).read_text("utf-8")))
    return f"{kernel.name}_{data_type}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def build(kernel: Kernel, data_type: str, folder: Path, compile_library: Compile | None = None) -> Built:
    """The library of a kernel in `folder`; built if it is not there. Raises BuildError.

    `compile_library` replaces the compiler, for tests.
    """
    path = folder / f"{library_stem(kernel, data_type)}-{find_toolchain().digest}.so"
    if not is_library(path):
        try:
            (folder / "locks").mkdir(parents=True, exist_ok=True)
            with _lock(folder / "locks" / f"{path.name}.lock"):
                # Another process may have built it while this one waited.
                if not is_library(path):
                    _build_into(kernel, data_type, path, compile_library or compile_kernel)
        except OSError as fault:
            hint = "set QLA_OPS_CACHE to a folder that can be written"
            raise BuildError(f"{kernel.name}: cannot write {path}: {fault}; {hint}") from fault
    return Built(path, _read_report(kernel, data_type, path))


def build_all(wanted: Sequence[tuple[Kernel, str]], folder: Path) -> list[Path]:
    """The libraries of kernels in `folder`; those that are not there are built at the same time. Raises BuildError."""
    with ThreadPoolExecutor(max(1, min(len(wanted), os.cpu_count() or 1))) as pool:
        return [built.path for built in pool.map(lambda pair: build(*pair, folder), wanted)]


def is_library(path: Path) -> bool:
    """Whether a finished library is there. An empty file is what a full disk leaves."""
    try:
        return path.stat().st_size > 0
    except OSError:
        return False


def compile_kernel(kernel: Kernel, data_type: str, output: Path) -> Report:
    """Lowers and compiles a kernel to `output`. Raises BuildError with the compiler's last lines."""
    tools, start = find_toolchain(), time.perf_counter()
    # Of several threads one lowers at a time; their compilers are processes of their own.
    with _LOWERING:
        text, fast = kernel_source(kernel, data_type)
    source = output.with_suffix(".cu")
    source.write_text(text, "utf-8")
    result = subprocess.run(_command(tools, fast, source, output), capture_output=True, text=True, check=False)
    said = result.stdout + result.stderr
    if result.returncode or not is_library(output):
        tail = "\n".join(said.splitlines()[-_MESSAGE_LINES:])
        raise BuildError(f"{kernel.name} ({data_type}): {tools.nvcc} failed with status {result.returncode}:\n{tail}")
    return read_messages(kernel.name, data_type, said, time.perf_counter() - start)


def kernel_source(kernel: Kernel, data_type: str) -> tuple[str, bool]:
    """The CUDA text to compile, and whether with fast arithmetic."""
    file = kernel_file(kernel)
    if file.suffix == ".cu":
        text, fast = EARLY_START + file.read_text("utf-8"), False
    else:
        module = importlib.import_module(f"qla_ops.kernels.{kernel.module}")
        text, fast = lower(module, data_type), bool(module.PASS_CONFIGS.get("tl.enable_fast_math"))
    return text + launcher(text, kernel), fast


def read_messages(kernel: str, data_type: str, said: str, seconds: float) -> Report:
    """The figures in ptxas's messages."""
    return Report(
        kernel=kernel,
        data_type=data_type,
        registers=max(map(int, re.findall(r"Used (\d+) registers", said)), default=0),
        spill_bytes=sum(map(int, re.findall(r"(\d+) bytes spill", said))),
        serialised_wgmma=len(re.findall(r"\bC751\d\b", said)),
        seconds=round(seconds, 2),
    )


def _command(tools: Toolchain, fast: bool, source: Path, output: Path) -> list[str]:
    arithmetic = ["--use_fast_math"] if fast else []
    includes = [f"-I{folder}" for folder in include_folders()]
    link = [f"-L{ffi_library_folder()}", "-ltvm_ffi"]
    return [tools.nvcc, *_FLAGS, *arithmetic, *includes, "-o", str(output), str(source), *link]


def _build_into(kernel: Kernel, data_type: str, path: Path, compile_library: Compile) -> None:
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as folder:
        output = Path(folder) / path.name
        report = compile_library(kernel, data_type, output)
        if not is_library(output):
            raise BuildError(f"{kernel.name} ({data_type}): the compiler wrote no library")
        note = output.with_suffix(".json")
        note.write_text(json.dumps(asdict(report), indent=1) + "\n", "utf-8")
        os.replace(note, path.with_suffix(".json"))
        os.replace(output, path)


def _read_report(kernel: Kernel, data_type: str, path: Path) -> Report:
    try:
        return Report(**json.loads(path.with_suffix(".json").read_text("utf-8")))
    except (OSError, ValueError, TypeError):
        return Report(kernel.name, data_type, 0, 0, 0, 0.0)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds a lock file. A file system without locks costs a second build, never a broken library."""
    with path.open("w") as handle:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
