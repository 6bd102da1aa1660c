"""Finds what building needs: tilelang, the CUDA compiler and the headers of apache-tvm-ffi. Imports none of them."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from qla_ops.runtime.environment import cuda_home
from qla_ops.runtime.errors import BuildError


@dataclass(frozen=True)
class Toolchain:
    nvcc: str
    nvcc_version: str
    tilelang_version: str
    ffi_version: str

    @property
    def digest(self) -> str:
        """A short name for the versions: part of a cached kernel's file name."""
        text = "\n".join((self.nvcc_version, self.tilelang_version, self.ffi_version))
        return hashlib.sha256(text.encode()).hexdigest()[:8]


def missing_loader() -> str | None:
    """Why built kernels cannot be loaded, or None."""
    if importlib.util.find_spec("tvm_ffi") is None:
        return "apache-tvm-ffi is not installed (pip install apache-tvm-ffi)"
    return None


def missing_tools() -> str | None:
    """Why kernels cannot be built here, or None."""
    if importlib.util.find_spec("tilelang") is None:
        return "tilelang is not installed (pip install 'qla-ops[build]')"
    if find_nvcc() is None:
        return "no CUDA compiler was found (put nvcc on the path or set CUDA_HOME)"
    return missing_loader()


def find_nvcc() -> str | None:
    """The compiler's path: CUDA_HOME's, the one on the path, or /usr/local/cuda's."""
    home = cuda_home()
    candidates = [os.path.join(home, "bin", "nvcc")] if home else []
    candidates += ["nvcc", "/usr/local/cuda/bin/nvcc"]
    return next((found for found in map(shutil.which, candidates) if found), None)


@functools.lru_cache(maxsize=1)
def find_toolchain() -> Toolchain:
    """The toolchain with its versions. Raises BuildError when a part is missing."""
    missing = missing_tools()
    nvcc = find_nvcc()
    if missing or nvcc is None:
        raise BuildError(f"kernels cannot be built here: {missing}")
    return Toolchain(nvcc, _nvcc_version(nvcc), _version("tilelang"), _version("apache-tvm-ffi"))


def include_folders() -> tuple[Path, ...]:
    """Header folders of tilelang, the CUTLASS inside it, and apache-tvm-ffi."""
    tilelang = _package_folder("tilelang")
    return (tilelang / "src", tilelang / "3rdparty" / "cutlass" / "include", _package_folder("tvm_ffi") / "include")


def ffi_library_folder() -> Path:
    """The folder of libtvm_ffi."""
    return _package_folder("tvm_ffi") / "lib"


def _package_folder(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BuildError(f"{name} is not installed")
    return Path(spec.origin).parent


def _version(distribution: str) -> str:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def _nvcc_version(nvcc: str) -> str:
    try:
        result = subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError) as fault:
        raise BuildError(f"{nvcc} --version failed: {fault}") from fault
    release = re.search(r"release [^\n]*", result.stdout)
    return release[0] if release else result.stdout.strip()
