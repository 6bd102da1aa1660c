"""From a TileLang prim_func to CUDA text for sm_90a, on a machine without a GPU."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from qlagen.emit.load import lower, tilelang_for_target
from qlagen.errors import QlagenError

_CALL = re.compile(r"TL_EXPORT int call\((?P<parameters>[^)]*)\)")
_SHARED_BUFFER = re.compile(r"void\* (?P<name>\w+) = \(\(void\*\)\(\(char\*\)buf_dyn_shmem \+ (?P<offset>\d+)\)\);")
_PDL = "programmaticStreamSerializationAllowed = "


@dataclass(frozen=True)
class Parameter:
    """One argument of the host `call`.

    `shape` is the shape of a tensor (numbers, names of dynamic dimensions, or text of other expressions), None for a
    number passed by value; `dtype` is TileLang's name of the element type.
    """

    name: str
    c_type: str
    dtype: str
    shape: tuple[int | str, ...] | None = None

    @property
    def is_tensor(self) -> bool:
        return self.shape is not None


@dataclass(frozen=True)
class Launch:
    """How one kernel of the host `call` is launched: grid expressions, threads of a block, bytes of shared memory."""

    kernel: str
    grid: tuple[str, str, str]
    threads: int
    dynamic_shared_bytes: int


@dataclass(frozen=True)
class LoweredKernel:
    """The CUDA of a prim_func: device source, the same with the host `call` around it, and what `call` takes."""

    device_source: str
    source: str
    parameters: tuple[Parameter, ...]
    launches: tuple[Launch, ...]

    @property
    def shared_buffers(self) -> tuple[tuple[str, int], ...]:
        """Names of the buffers in dynamic shared memory and the bytes at which they start."""
        return tuple((m["name"], int(m["offset"])) for m in _SHARED_BUFFER.finditer(self.device_source))


def lower_kernel(prim_func: Any, pass_configs: Mapping[str, Any] | None = None) -> LoweredKernel:
    """Lowers `prim_func` with TileLang for sm_90a and wraps it with TileLang's own host code.

    Programmatic dependent launch, which the wrapper would switch on for every kernel, is switched off.

    Raises QlagenError E-EMU-TILELANG when TileLang is not installed and E-EMU-LOWER when it rejects the kernel.
    """
    try:
        tilelang, target = tilelang_for_target()
        wrapper = importlib.import_module("tilelang.jit.adapter.wrapper").TLCUDASourceWrapper
    except ImportError as error:
        hint = "install the `tilelang` package"
        raise QlagenError("E-EMU-TILELANG", f"TileLang cannot be imported: {error}", hints=(hint,)) from error
    configs = dict(pass_configs or {})
    try:
        artifact = lower(tilelang, target, prim_func, configs)
        wrapped = wrapper(
            scheduled_ir_module=tilelang.tvm.IRModule({prim_func.attrs["global_symbol"]: prim_func}),
            source=artifact.kernel_source,
            target=target,
            device_mod=artifact.device_mod,
            host_mod=artifact.host_mod,
            pass_configs=configs,
        ).lib_code
    except Exception as error:  # TVM raises many types; none of them may reach the user as a traceback
        raise QlagenError("E-EMU-LOWER", "TileLang cannot lower the kernel", notes=_last_lines(error)) from error
    source = str(wrapped).replace(f"{_PDL}1", f"{_PDL}0")
    return LoweredKernel(
        device_source=str(artifact.kernel_source),
        source=source,
        parameters=_parameters(prim_func, source),
        launches=tuple(_launch(name, function) for name, function in _device_functions(artifact.device_mod)),
    )


def _last_lines(error: BaseException, count: int = 6) -> tuple[str, ...]:
    lines = [line.strip() for line in f"{type(error).__name__}: {error}".splitlines() if line.strip()]
    return tuple(lines[-count:])


def _parameters(prim_func: Any, source: str) -> tuple[Parameter, ...]:
    """The arguments of `call` in its own order; the stream, always last, is left out."""
    match = _CALL.search(source)
    if match is None:
        raise QlagenError("E-EMU-LOWER", "TileLang's wrapped source has no host `call`")
    buffers = {buffer.data.name: buffer for buffer in prim_func.buffer_map.values()}
    parameters = []
    for declaration in match["parameters"].split(",")[:-1]:
        words = declaration.replace("__restrict__", "").split()
        name, c_type = words[-1], " ".join(words[:-1])
        if name in buffers:
            shape = tuple(int(d) if str(d).isdigit() else str(d) for d in buffers[name].shape)
            parameters.append(Parameter(name, c_type, str(buffers[name].dtype), shape))
        else:
            parameters.append(Parameter(name, c_type, c_type))
    return tuple(parameters)


def _device_functions(device_mod: Any) -> list[tuple[str, Any]]:
    return sorted((str(name.name_hint), function) for name, function in device_mod.functions.items())


def _launch(name: str, function: Any) -> Launch:
    extent = {str(axis): value for axis, value in function.attrs["thread_extent"].items()}
    threads = 1
    for axis in ("threadIdx.x", "threadIdx.y", "threadIdx.z"):
        threads *= int(extent.get(axis, 1))
    grid = (str(extent.get("blockIdx.x", 1)), str(extent.get("blockIdx.y", 1)), str(extent.get("blockIdx.z", 1)))
    attributes = {str(key): value for key, value in function.attrs.items()}
    return Launch(name, grid, threads, int(attributes.get("dyn_shared_memory_buf", 0)))
