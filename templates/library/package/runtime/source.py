"""CUDA source of a kernel: TileLang lowers it, its own host function encodes the tensor maps and launches.

The function appended here has a fixed parameter order (tensors, numbers, run-time dimensions, whether it may start
early), takes torch tensors through apache-tvm-ffi, launches on the first tensor's device and torch's current stream,
and needs no TileLang.

A kernel that starts early (programmatic dependent launch) is on its way while the kernel before it on the stream still
runs. It waits for that one before it touches what kernels of the call hand to one another, and it lets the next one
start only when it has waited itself. So all before that one have ended: their results, the tables say, can be read.
"""

from __future__ import annotations

import re
from typing import Any

from qla_ops.runtime.errors import BuildError
from qla_ops.runtime.records import Kernel

_C_TYPES = {"float32": "double", "int32": "int64_t"}

EARLY_START = "static thread_local int early_start = 0;\n"
"""Whether the next launch of a library may start early. CUDA files of this package never do, and leave it alone."""

_LAUNCHER = r"""
#include <atomic>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

namespace {{

constexpr int kDevices = 64;
std::atomic<bool> prepared[kDevices];

// Makes a device the current one, and the former one current again.
class CurrentDevice {{
 public:
  explicit CurrentDevice(int device) : device_(device) {{
    cudaGetDevice(&former_);
    if (former_ != device_) cudaSetDevice(device_);
  }}
  ~CurrentDevice() {{
    if (former_ != device_) cudaSetDevice(former_);
  }}

 private:
  int device_;
  int former_ = 0;
}};

// The limit of dynamic shared memory belongs to a device: raised once on each.
void prepare(int device) {{
  const bool known = device < kDevices;
  if (known && prepared[device].load(std::memory_order_acquire)) return;
  if (init() != 0) TVM_FFI_THROW(RuntimeError) << get_last_error();
  if (known) prepared[device].store(true, std::memory_order_release);
}}

void launch({parameters}, int64_t early) {{
  const DLDevice device = {first}.device();
  if (device.device_type != kDLCUDA) TVM_FFI_THROW(ValueError) << "{first} is not on a CUDA device";
  CurrentDevice current(device.device_id);
  prepare(device.device_id);
  early_start = static_cast<int>(early);
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  if (call({arguments}, stream) != 0) TVM_FFI_THROW(RuntimeError) << get_last_error();
}}

}}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, launch);
"""


def lower(module: Any, data_type: str) -> str:
    """CUDA and TileLang's host function of a kernel module (`qla_ops.kernels...`), for ``bfloat16`` or ``float16``."""
    # Imported here: a process that only loads built kernels has no tilelang.
    import tilelang
    from tilelang import tvm
    from tilelang.jit.adapter.wrapper import TLCUDASourceWrapper
    from tvm.target import Target

    target = Target({"kind": "cuda", "arch": "sm_90a"})
    configs = dict(module.PASS_CONFIGS)
    function = module.build(data_type)
    with tvm.transform.PassContext(opt_level=3, config=configs), target:
        artifact = tilelang.lower(function, target=target)
    wrapper = TLCUDASourceWrapper(
        scheduled_ir_module=tvm.IRModule({function.attrs["global_symbol"]: function}),
        source=artifact.kernel_source,
        target=target,
        device_mod=artifact.device_mod,
        host_mod=artifact.host_mod,
        pass_configs=configs,
    )
    return with_early_start(wrapper.lib_code)


def with_early_start(source: str) -> str:
    """TileLang's host function lets every kernel start early. Here the caller decides, launch by launch."""
    found = "programmaticStreamSerializationAllowed = 1"
    waits = "cudaGridDependencySynchronize()"
    if found not in source:
        raise BuildError("the host function of this tilelang version has another form; version 0.1.15 is supported")
    if waits not in source:
        raise BuildError(f"a kernel that may start early does not call {waits}")
    return EARLY_START + source.replace(found, "programmaticStreamSerializationAllowed = early_start")


def launcher(source: str, kernel: Kernel) -> str:
    """The exported function for `source`, whose ``call`` takes its run-time dimensions in an order of its own."""
    signature = re.search(r"TL_EXPORT int call\(([^)]*)\)", source)
    if signature is None:
        raise BuildError(f"{kernel.name}: the generated source has no host function")
    types = {}
    for parameter in signature[1].split(",")[:-1]:
        c_type, name = parameter.replace("__restrict__", "").rsplit(None, 1)
        types[name] = c_type.strip()
    scalars = dict(kernel.scalars)
    known = {*kernel.tensors, *scalars, *kernel.dynamic}
    if set(types) - known:
        names = ", ".join(sorted(set(types) - known))
        raise BuildError(f"{kernel.name}: the host function takes {names}, which its record does not have")
    parameters = [f"tvm::ffi::TensorView {name}" for name in kernel.tensors]
    parameters += [f"{_C_TYPES[kind]} {name}" for name, kind in kernel.scalars]
    parameters += [f"int64_t {name}" for name in kernel.dynamic]
    arguments = [
        f"static_cast<{c_type}>({name}{'.data_ptr()' if name in kernel.tensors else ''})"
        for name, c_type in types.items()
    ]
    return _LAUNCHER.format(
        name=kernel.name,
        first=kernel.tensors[0],
        parameters=", ".join(parameters),
        arguments=", ".join(arguments),
    )
