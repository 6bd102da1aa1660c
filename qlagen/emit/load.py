"""Loading kernel files and lowering them to CUDA text, on a machine without a GPU."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from qlagen.errors import QlagenError

TARGET = {"kind": "cuda", "arch": "sm_90a"}
_INSTALL = "install the `tilelang` package"


def load_kernel(path: Path) -> ModuleType:
    """The module of a kernel file. Raises QlagenError E-KERNEL when there is none or TileLang is missing."""
    name = f"qlagen_kernel_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise QlagenError("E-KERNEL", f"there is no kernel file {path}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # TileLang asks for the source of the function it compiles
    try:
        spec.loader.exec_module(module)
    except ImportError as error:
        raise QlagenError("E-KERNEL", f"{path.name} cannot be imported: {error}", hints=[_INSTALL]) from error
    return module


def device_source(module: ModuleType, data_type: str) -> str:
    """The CUDA that TileLang makes of a kernel for sm_90a, without host code.

    Raises E-KERNEL when TileLang is missing, rejects the kernel, or the kernel has no such data type.
    """
    if data_type not in module.DATA_TYPES:
        notes = [f"data types: {', '.join(module.DATA_TYPES)}"]
        raise QlagenError("E-KERNEL", f"kernel {module.NAME} cannot be built for {data_type!r}", notes=notes)
    try:
        tilelang, target = tilelang_for_target()
    except ImportError as error:
        raise QlagenError("E-KERNEL", f"TileLang cannot be imported: {error}", hints=[_INSTALL]) from error
    try:
        artifact = lower(tilelang, target, module.build(data_type), module.PASS_CONFIGS)
    except Exception as error:  # TVM raises many types; none of them may reach the user as a traceback
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        message = f"TileLang cannot lower kernel {module.NAME} for {data_type}"
        raise QlagenError("E-KERNEL", message, notes=lines[-6:]) from error
    return str(artifact.kernel_source)


def tilelang_for_target() -> tuple[Any, Any]:
    """TileLang and its target object for sm_90a, which no GPU is needed for. Raises ImportError."""
    tilelang = importlib.import_module("tilelang")
    return tilelang, importlib.import_module("tvm.target").Target(TARGET)


def lower(tilelang: Any, target: Any, prim_func: Any, pass_configs: Mapping[str, Any]) -> Any:
    """TileLang's artifact of a prim_func, without host code. What it raises is TVM's, of many types."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(tilelang.tvm.transform.PassContext(opt_level=3, config=dict(pass_configs)))
        stack.enter_context(target)
        return tilelang.lower(prim_func, target=target, enable_host_codegen=False, enable_device_compile=False)
