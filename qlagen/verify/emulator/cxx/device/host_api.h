// The few CUDA host names that a wrapped TileLang `call` uses: tensor maps, kernel launch, error codes.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "vector_types.h"

using cudaStream_t = void*;
#define cudaStreamDefault nullptr
using cuuint32_t = uint32_t;
using cuuint64_t = uint64_t;

enum cudaError_t { cudaSuccess = 0, cudaErrorInvalidValue = 1, cudaErrorLaunchFailure = 719 };
enum CUresult { CUDA_SUCCESS = 0, CUDA_ERROR_INVALID_VALUE = 1 };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed };
enum cudaLaunchAttributeID { cudaLaunchAttributeClusterDimension, cudaLaunchAttributeProgrammaticStreamSerialization };
enum CUtensorMapDataType {};
enum CUtensorMapInterleave {};
enum CUtensorMapSwizzle {};
enum CUtensorMapL2promotion {};
enum CUtensorMapFloatOOBfill {};

struct alignas(64) CUtensorMap {
  uint64_t opaque[16];
};

struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  union {
    int programmaticStreamSerializationAllowed;
    struct {
      unsigned x, y, z;
    } clusterDim;
  } val;
};

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace emu {
// Same checks as the driver's encoder; a refused map makes `call` fail as it would on a GPU.
CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
const char* refused_tensor_map();
cudaError_t launch(const cudaLaunchConfig_t& config, const char* name, void (*body)(void*), void* arguments);
const char* failure_text();
bool failed();
}  // namespace emu

inline cudaError_t cudaGetLastError() { return emu::failed() ? cudaErrorLaunchFailure : cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t error) {
  return error == cudaSuccess ? "no error" : error == cudaErrorInvalidValue ? "invalid argument" : emu::failure_text();
}
inline const char* cudaGetErrorName(cudaError_t error) { return error == cudaSuccess ? "cudaSuccess" : "cudaError"; }

template <class Kernel>
inline cudaError_t cudaFuncSetAttribute(Kernel*, cudaFuncAttribute attribute, int value) {
  constexpr int kSharedMemoryPerBlock = 227 * 1024;  // opt-in limit of compute capability 9.0
  bool refused = attribute == cudaFuncAttributeMaxDynamicSharedMemorySize && value > kSharedMemoryPerBlock;
  return refused ? cudaErrorInvalidValue : cudaSuccess;
}

template <class... Parameters, class... Arguments>
inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                                      Arguments... arguments) {
  auto run = [&] { kernel(arguments...); };
  return emu::launch(*config, "kernel", [](void* body) { (*static_cast<decltype(run)*>(body))(); }, &run);
}

#define CUTLASS_CUDA_DRIVER_WRAPPER_CALL(function) emu::function
#define TILELANG_CHECK_LAST_ERROR(name)                \
  do {                                                 \
    if (emu::failed()) {                               \
      snprintf(error_buf, ERROR_BUF_SIZE, "%s", name); \
      return -1;                                       \
    }                                                  \
  } while (0)
