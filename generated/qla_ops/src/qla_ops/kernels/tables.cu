// Makes the tables of packed sequences (see qla_ops/runtime/metadata.py) in one launch of one block.
//
// Offsets that are out of range or fall back are put right on the way: start at 0, never decrease, end at `tokens` at
// most. What the other kernels read from these tables therefore never leads them outside a tensor.
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kThreads = 1024;

static char error_buf[256];

// The offset of sequence n, whatever its integer type, within 0 and `tokens`.
__device__ __forceinline__ int read_offset(const int* offsets, int wide, int n, int tokens) {
  if (n == 0) return 0;
  const int64_t value = wide ? reinterpret_cast<const int64_t*>(offsets)[n] : static_cast<int64_t>(offsets[n]);
  return static_cast<int>(value < 0 ? 0 : (value > tokens ? tokens : value));
}

extern "C" __global__ void __launch_bounds__(1024) tables_kernel(
    const int* given, int* cu_seqlens, int* chunk_offsets, int* chunk_first, int* chunk_rows, int wide, int sequences,
    int tokens, int chunk, int chunk_count) {
  __shared__ int largest[1024];
  __shared__ int chunks[1024];
  const int thread = static_cast<int>(threadIdx.x);
  int largest_before = 0;
  int chunks_before = 0;
  // Boundaries in groups of one per thread: first the running maximum of the offsets, then the running sum of chunks.
  for (int group = 0; group <= sequences; group += kThreads) {
    const int n = group + thread;
    largest[thread] = n <= sequences ? read_offset(given, wide, n, tokens) : 0;
    __syncthreads();
    for (int distance = 1; distance < kThreads; distance *= 2) {
      const int other = thread >= distance ? largest[thread - distance] : 0;
      __syncthreads();
      if (other > largest[thread]) largest[thread] = other;
      __syncthreads();
    }
    const int end = max(largest[thread], largest_before);
    const int start = thread == 0 ? largest_before : max(largest[thread - 1], largest_before);
    // Sequence n - 1 ends at boundary n.
    chunks[thread] = n <= sequences ? (end - start + chunk - 1) / chunk : 0;
    __syncthreads();
    for (int distance = 1; distance < kThreads; distance *= 2) {
      const int other = thread >= distance ? chunks[thread - distance] : 0;
      __syncthreads();
      chunks[thread] += other;
      __syncthreads();
    }
    if (n <= sequences) {
      cu_seqlens[n] = end;
      chunk_offsets[n] = chunks_before + chunks[thread];
    }
    largest_before = max(largest_before, largest[kThreads - 1]);
    chunks_before += chunks[kThreads - 1];
    __syncthreads();
  }
  for (int slot = thread; slot < chunk_count; slot += kThreads) {
    // The sequence of the slot: how many sequences have all their chunks before it.
    int low = 0;
    int high = sequences;
    while (low < high) {
      const int middle = (low + high) / 2;
      if (chunk_offsets[middle + 1] <= slot) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    int first = 0;
    int rows = 0;
    if (low < sequences) {
      first = cu_seqlens[low] + (slot - chunk_offsets[low]) * chunk;
      rows = min(chunk, cu_seqlens[low + 1] - first);
    }
    chunk_first[slot] = first;
    chunk_rows[slot] = rows;
  }
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() { return 0; }

extern "C" TL_EXPORT int call(int* given, int* cu_seqlens, int* chunk_offsets, int* chunk_first, int* chunk_rows, int wide, int sequences, int tokens, int chunk, int chunk_count, cudaStream_t stream) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, 1, 1);
  config.blockDim = dim3(kThreads, 1, 1);
  config.dynamicSmemBytes = 0;
  config.stream = stream;
  cudaError_t status = cudaLaunchKernelEx(&config, tables_kernel, given, cu_seqlens, chunk_offsets, chunk_first, chunk_rows, wide, sequences, tokens, chunk, chunk_count);
  if (status != cudaSuccess) {
    snprintf(error_buf, sizeof(error_buf), "tables_kernel: %s", cudaGetErrorString(status));
    return -1;
  }
  return 0;
}
