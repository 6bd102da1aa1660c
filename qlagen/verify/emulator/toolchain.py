"""The C++ compiler: found, asked for its version, and run with a cache of everything it has built."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from qlagen.errors import QlagenError

CXX_ROOT = Path(__file__).resolve().parent / "cxx"

_COMMON_FLAGS = ("-std=c++20", "-w", "-fPIC", "-fno-strict-aliasing", "-fvisibility=hidden")
_OLDEST_GXX = 12
_RUNTIME_OPTIMISATION = "-O3"
_KERNEL_OPTIMISATION = "-O1"
_POISONED_LOCALS = "-ftrivial-auto-var-init=pattern"
"""Registers that a kernel reads before it writes them hold bytes 0xFE: -1.7e38 as float32, bfloat16."""
_STORE_HOOKS = (
    "-fsanitize=kernel-address",
    *(f"--param=asan-{name}" for name in ("instrumentation-with-call-threshold=0", "instrument-reads=0")),
    *(f"--param=asan-{name}" for name in ("stack=0", "globals=0", "memintrin=0")),
)
"""Makes the compiler call a function before every store of the kernel, and nothing else; see cxx/runtime/proxy.cc."""
_VECTOR_CPU_FLAGS = {"avx2", "fma", "f16c", "bmi2"}
_MISSING_MEMBER = re.compile(r"error: .(?P<name>\w+). is not a member of .(?P<scope>tl|emu).")
_UNDECLARED = re.compile(r"error: .(?P<name>\w+). (?:was not declared|has not been declared|does not name a type)")


@dataclass(frozen=True)
class Compiler:
    """Path of g++, the first line of its version, and the machine flags to use with it."""

    path: str
    version: str
    machine_flags: tuple[str, ...]

    def flags(self, optimisation: str) -> tuple[str, ...]:
        return (*_COMMON_FLAGS, *self.machine_flags, optimisation)


def find_compiler() -> Compiler:
    """The compiler named by the environment variable CXX, else `g++`. Raises QlagenError E-EMU-COMPILER."""
    wanted = os.environ.get("CXX") or "g++"
    path = shutil.which(wanted)
    if path is None:
        raise _no_compiler(f"no C++ compiler: {wanted!r} is not on PATH")
    compiler = _describe(path)
    version = re.search(r"(\d+)\.\d+", compiler.version.split(")")[-1])
    if "clang" in compiler.version or version is None or int(version[1]) < _OLDEST_GXX:
        raise _no_compiler(f"{wanted!r} is {compiler.version or 'unknown'!r}, not g++ {_OLDEST_GXX} or newer")
    return compiler


def _no_compiler(message: str) -> QlagenError:
    return QlagenError(
        "E-EMU-COMPILER",
        message,
        notes=("the emulator compiles generated kernels as C++20 for the CPU, and needs g++'s store hooks",),
        hints=(f"install g++ ({_OLDEST_GXX} or newer)", "or name one with the environment variable CXX"),
    )


@functools.lru_cache(maxsize=8)
def _describe(path: str) -> Compiler:
    version = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout.split("\n")[0]
    return Compiler(path, version, _machine_flags())


def _machine_flags() -> tuple[str, ...]:
    """256-bit vectors when this CPU has them; part of the cache key, since a cache may move between machines."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return ()
    flags = next((line.split(":", 1)[1].split() for line in text.splitlines() if line.startswith("flags")), [])
    return ("-march=x86-64-v3",) if set(flags) >= _VECTOR_CPU_FLAGS else ()


def default_directory() -> Path:
    """Where libraries are kept when the caller names no directory: the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "qlagen" / "emulator"


def build_library(source: str, name: str, directory: Path) -> Path:
    """Compiles `source` (see `emulated_source`) with the emulator's runtime to a shared library in `directory`.

    The file name holds a hash of source, emulator, compiler and flags; an existing file is used again. Raises
    QlagenError E-EMU-UNMODELLED when the kernel names something the emulator lacks, E-EMU-COMPILE for other errors.
    """
    compiler = find_compiler()
    flags = (*compiler.flags(_KERNEL_OPTIMISATION), _POISONED_LOCALS, *_STORE_HOOKS)
    key = _digest([compiler.path, compiler.version, *flags, _runtime_key(compiler), source])
    library = directory / f"emulated_{name}_{key}.so"
    if library.exists():
        return library
    directory.mkdir(parents=True, exist_ok=True)
    objects = _runtime_objects(compiler, directory)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        text, built = Path(scratch) / f"{name}.cc", Path(scratch) / library.name
        text.write_text(source)
        include = f"-I{CXX_ROOT / 'device'}"
        _run([compiler.path, *flags, include, "-shared", "-o", str(built), str(text), *map(str, objects)], name)
        os.replace(built, library)  # atomic: a concurrent build ends with the same file
    return library


def _runtime_key(compiler: Compiler) -> str:
    files = sorted(CXX_ROOT.glob("*/*"))
    contents = [part for file in files for part in (file.name, file.read_text())]
    return _digest([compiler.path, compiler.version, *compiler.flags(_RUNTIME_OPTIMISATION), *contents])


def _runtime_objects(compiler: Compiler, directory: Path) -> list[Path]:
    """The emulator's runtime, compiled once per directory."""
    sources = sorted((CXX_ROOT / "runtime").glob("*.cc"))
    target = directory / f"runtime_{_runtime_key(compiler)}"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=directory) as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
            staged = Path(scratch) / target.name
            staged.mkdir()
            base = [compiler.path, *compiler.flags(_RUNTIME_OPTIMISATION), "-c"]
            commands = [[*base, str(source), "-o", str(staged / f"{source.stem}.o")] for source in sources]
            list(pool.map(lambda command: _run(command, "emulator runtime"), commands))
            with contextlib.suppress(OSError):  # another process was first
                os.rename(staged, target)
    return [target / f"{source.stem}.o" for source in sources]


def _run(command: Sequence[str], name: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise _compile_error(result.stderr, name)


def _compile_error(output: str, name: str) -> QlagenError:
    unknown = {f"{m['scope']}::{m['name']}" for m in _MISSING_MEMBER.finditer(output)}
    unknown |= {m["name"] for m in _UNDECLARED.finditer(output)}
    if unknown:
        return QlagenError(
            "E-EMU-UNMODELLED",
            f"kernel {name!r} uses {', '.join(sorted(unknown))}, which the emulator does not model",
            hints=("use another TileLang primitive, or add the function to qlagen/verify/emulator/cxx/device",),
        )
    if "Assembler messages" in output or "in 'asm'" in output or "in ‘asm’" in output:
        return QlagenError(
            "E-EMU-UNMODELLED",
            f"kernel {name!r} has inline PTX, which the emulator does not execute",
            hints=("put it inside `#if defined(__CUDA_ARCH__)` when it changes no result",),
        )
    errors = [line for line in output.splitlines() if "error" in line][:5] or output.splitlines()[:5]
    return QlagenError("E-EMU-COMPILE", f"the C++ compiler rejects {name!r}", notes=errors)


def _digest(parts: Iterable[str]) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(part.encode())
        state.update(b"\0")
    return state.hexdigest()[:16]
