"""Emulated kernels from a few lines of CUDA, for primitives that TileLang emits only inside larger kernels."""

from __future__ import annotations

from qlagen.verify.emulator import EmulatedKernel, Launch, LoweredKernel, Parameter, build_emulated

_SOURCE = """
extern "C" __global__ void __launch_bounds__({threads}, 1) main_kernel({declarations}) {{
  extern __shared__ __align__(1024) uchar buf_dyn_shmem[];
  void* tile = ((void*)((char*)buf_dyn_shmem + 0));
  __shared__ __align__(16) uint64_t barrier_mem[4];
  auto barrier = reinterpret_cast<Barrier*>(barrier_mem);
  const int tx = threadIdx.x;
{body}
}}
#define TL_EXPORT
#define ERROR_BUF_SIZE 1024
static char error_buf[ERROR_BUF_SIZE];
extern "C" TL_EXPORT const char* get_last_error() {{ return error_buf; }}
extern "C" TL_EXPORT int init() {{ return 0; }}
extern "C" TL_EXPORT int call({declarations}, cudaStream_t stream=cudaStreamDefault) {{
  cudaLaunchConfig_t config;
  config.gridDim = dim3({grid}, 1, 1);
  config.blockDim = dim3({threads}, 1, 1);
  config.dynamicSmemBytes = {shared};
  cudaLaunchKernelEx(&config, main_kernel, {names});
  TILELANG_CHECK_LAST_ERROR("main_kernel");
  return 0;
}}
"""
_C_TYPES = {"float32": "float", "int32": "int", "bfloat16": "bfloat16_t", "float16": "half_t"}


def kernel_from_text(
    name: str, body: str, tensors: dict[str, str], threads: int = 32, shared: int = 4096, grid: int = 1
) -> EmulatedKernel:
    """A kernel with one-dimensional tensors by name and dtype, `tile` in shared memory and four mbarriers."""
    parameters = tuple(Parameter(n, f"{_C_TYPES[d]}*", d, (f"{n}_size",)) for n, d in tensors.items())
    text = _SOURCE.format(
        body=body,
        declarations=", ".join(f"{p.c_type} {p.name}" for p in parameters),
        names=", ".join(tensors),
        threads=threads,
        grid=grid,
        shared=shared,
    )
    launch = Launch("main_kernel", (str(grid), "1", "1"), threads, shared)
    return build_emulated(LoweredKernel(text, text, parameters, (launch,)), name)
