// Divides rows by their Euclidean norm (see qla_ops/runtime/normalise.py): up to four tensors in one launch.
//
// A row is read once, by as many lanes of a warp as it has pieces of 16 bytes, and by all 32 lanes element by element
// where a row is not so aligned. All arithmetic is fp32.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kThreads = 256;
constexpr int kLanes = 32;
constexpr int kTensors = 4;
constexpr int kLongest = 256;
constexpr int kPiece = 16;
constexpr float kEpsilon = 1e-6f;

static char error_buf[256];

struct Sources {
  const void* data[kTensors];
  int64_t stride[kTensors];  // elements from one token to the next; the heads of a token are dense
};

template <class T, int kCount>
struct alignas(sizeof(T) * kCount) Piece {
  T values[kCount];
};

__device__ __forceinline__ float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ float widen(__half value) { return __half2float(value); }
__device__ __forceinline__ float widen(float value) { return value; }
__device__ __forceinline__ void narrow(float value, __nv_bfloat16& result) { result = __float2bfloat16_rn(value); }
__device__ __forceinline__ void narrow(float value, __half& result) { result = __float2half_rn(value); }
__device__ __forceinline__ void narrow(float value, float& result) { result = value; }

// `lanes` (a power of two) share a row of `width` elements; block y takes tensor y. The result is dense:
// [tensors, rows, width].
template <class T, int kCount>
__global__ void __launch_bounds__(256) unit_vectors_kernel(
    Sources sources, T* unit, int rows, int heads, int width, int lanes) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  using Element = Piece<T, kCount>;
  constexpr int kMost = kLongest > kLanes * kCount ? kLongest / (kLanes * kCount) : 1;
  const int row = static_cast<int>(blockIdx.x) * (kThreads / lanes) + static_cast<int>(threadIdx.x) / lanes;
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int tensor = static_cast<int>(blockIdx.y);
  // Lanes without a row stay: a shuffle is of the whole warp.
  const int pieces = row < rows ? width / kCount : 0;
  const T* data = static_cast<const T*>(sources.data[tensor]);
  data += (row / heads) * sources.stride[tensor] + static_cast<int64_t>(row % heads) * width;
  const Element* source = reinterpret_cast<const Element*>(data);
  Element kept[kMost];
  float squares = 0.0f;
#pragma unroll
  for (int turn = 0; turn < kMost; ++turn) {
    const int at = lane + turn * lanes;
    if (at < pieces) {
      kept[turn] = source[at];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const float value = widen(kept[turn].values[i]);
        squares += value * value;
      }
    }
  }
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    squares += __shfl_xor_sync(0xffffffffu, squares, distance);
  }
  const float factor = rsqrtf(squares + kEpsilon);
  Element* target = reinterpret_cast<Element*>(unit + (static_cast<int64_t>(tensor) * rows + row) * width);
#pragma unroll
  for (int turn = 0; turn < kMost; ++turn) {
    const int at = lane + turn * lanes;
    if (at < pieces) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        narrow(widen(kept[turn].values[i]) * factor, kept[turn].values[i]);
      }
      target[at] = kept[turn];
    }
  }
}

template <class T, int kCount>
cudaError_t launch_pieces(
    const Sources& sources, void* unit, int count, int rows, int heads, int width, cudaStream_t stream) {
  int lanes = 1;
  while (lanes < kLanes && lanes * kCount < width) lanes *= 2;
  const int rows_per_block = kThreads / lanes;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3((rows + rows_per_block - 1) / rows_per_block, count, 1);
  config.blockDim = dim3(kThreads, 1, 1);
  config.dynamicSmemBytes = 0;
  config.stream = stream;
  return cudaLaunchKernelEx(
      &config, unit_vectors_kernel<T, kCount>, sources, static_cast<T*>(unit), rows, heads, width, lanes);
}

template <class T>
cudaError_t launch_type(
    const Sources& sources, void* unit, int count, int rows, int heads, int width, cudaStream_t stream) {
  bool aligned = width * sizeof(T) % kPiece == 0 && reinterpret_cast<uintptr_t>(unit) % kPiece == 0;
  for (int i = 0; i < count; ++i) {
    aligned = aligned && reinterpret_cast<uintptr_t>(sources.data[i]) % kPiece == 0;
    aligned = aligned && sources.stride[i] * sizeof(T) % kPiece == 0;
  }
  return aligned ? launch_pieces<T, kPiece / sizeof(T)>(sources, unit, count, rows, heads, width, stream)
                 : launch_pieces<T, 1>(sources, unit, count, rows, heads, width, stream);
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() { return 0; }

// `type`: 0 for bfloat16, 1 for float16, 2 for float32. Of the four tensors the first `count` are read.
extern "C" TL_EXPORT int call(void* first, void* second, void* third, void* fourth, void* unit, int type, int count, int rows, int heads, int width, int64_t first_stride, int64_t second_stride, int64_t third_stride, int64_t fourth_stride, cudaStream_t stream) {
  const Sources sources = {{first, second, third, fourth}, {first_stride, second_stride, third_stride, fourth_stride}};
  if (count < 1 || count > kTensors || width < 1 || width > kLongest || type < 0 || type > 2) {
    snprintf(error_buf, sizeof(error_buf), "unit_vectors: count %d, width %d or type %d is out of range", count, width, type);
    return -1;
  }
  cudaError_t status;
  if (type == 0) {
    status = launch_type<__nv_bfloat16>(sources, unit, count, rows, heads, width, stream);
  } else if (type == 1) {
    status = launch_type<__half>(sources, unit, count, rows, heads, width, stream);
  } else {
    status = launch_type<float>(sources, unit, count, rows, heads, width, stream);
  }
  if (status != cudaSuccess) {
    snprintf(error_buf, sizeof(error_buf), "unit_vectors_kernel: %s", cudaGetErrorString(status));
    return -1;
  }
  return 0;
}
