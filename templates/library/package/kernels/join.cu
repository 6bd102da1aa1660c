// Carries states through the segments of cut sequences: N[r] := M[r] N[r - 1] + N[r] for every joined row r, in order.
//
// A row (see qla_ops/runtime/metadata.py) holds, for one segment and head, the state N that the segment leaves behind
// when it starts from zero, V x K, and its map M, K x K, both transposed: N[v][k] and M[j][k] with k contiguous; so
// N_new[v][k] = sum over j of N_old[v][j] M[j][k] + N[v][k]. A row that is not joined holds its exact state already.
//
// A CTA has 16 value columns of one (sequence, head): they pass through the maps without meeting other columns. The
// product runs on tensor cores with each fp32 factor as the sum of two bf16 numbers, high and low; the three products
// that matter are kept and added in fp32, which leaves a relative error of about 2^-16 in a product. Each element of M
// is needed by one thread of the CTA only, so it goes from memory straight into the registers where the tensor core
// wants it, one row ahead; the state passes between warps through shared memory. The loads are volatile, as the
// products are: a compiler that moved them behind the products would leave their latency bare.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kColumns = 16;  // value columns of a CTA: the rows of an m16n8k16 product
constexpr int kTiles = 2;     // n8 tiles of a warp
constexpr int kDepth = 32;    // summands of two k16 products, whose fragments a lane reads together
constexpr unsigned kAll = 0xffffffffu;

static char error_buf[256];

// c += a b for a 16 x 16 (row-major), b 16 x 8 (column-major), bf16 in fp32.
__device__ __forceinline__ void multiply(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  constexpr auto type = tl::DataType::kBFloat16;
  tl::mma_sync<type, type, tl::DataType::kFloat32, 16, 8, 16, false, true>(c, a, b);
#endif
}

// Two numbers that no thread of this kernel writes.
__device__ __forceinline__ float2 load(const float* from) {
#ifdef __CUDACC__
  float2 value;
  asm volatile("ld.global.nc.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "l"(from));
  return value;
#else
  return *reinterpret_cast<const float2*>(from);
#endif
}

// Two numbers as pairs of bf16: x = high + low up to 2^-16 |x|.
__device__ __forceinline__ void split(float x, float y, unsigned& high, unsigned& low) {
  const __nv_bfloat162 rounded = __floats2bfloat162_rn(x, y);
  high = reinterpret_cast<const unsigned&>(rounded);
  const float rest_x = x - __uint_as_float(high << 16);
  const float rest_y = y - __uint_as_float(high & 0xffff0000u);
  const __nv_bfloat162 rest = __floats2bfloat162_rn(rest_x, rest_y);
  low = reinterpret_cast<const unsigned&>(rest);
}

// Finds joined rows of one head; keeps the flags of 32 rows at a time. All lanes of a warp call it together.
struct JoinedRows {
  const int* joined;
  int heads;
  int end;
  int base;
  unsigned flags;

  // The first joined row from `row` on; `end` if there is none.
  __device__ __forceinline__ int find(int row) {
    while (row < end) {
      if (row >= base + 32) {
        base = row;
        const int mine = base + static_cast<int>(threadIdx.x % 32);
        flags = __ballot_sync(kAll, mine < end && joined[static_cast<int64_t>(mine) * heads] != 0);
      }
      const unsigned left = flags >> (row - base);
      if (left != 0) return row + __ffs(static_cast<int>(left)) - 1;
      row = base + 32;
    }
    return end;
  }
};

// K: key size. Threads: K / 16 warps. The state lies in shared memory as words of two bf16, twice: while one copy is
// read the next one is written. Rows are padded to a stride of 16 banks modulo 32, so that reads meet no conflict.
__host__ __device__ constexpr int padded_words(int key_dim) { return key_dim / 2 + 16; }

template <int K>
__device__ __forceinline__ void join_columns(float* state, const int* joined, int first, int rows, int heads,
                                             int64_t row_stride, int map_offset, unsigned* halves) {
  constexpr int kWords = padded_words(K);
  constexpr int kCopy = kColumns * kWords;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  // Of the products' columns lane (group, quad) multiplies k = key + 0, 1 and is given k = own + 0..3.
  const int key = warp * 8 * kTiles + kTiles * group;
  const int own = warp * 8 * kTiles + 2 * kTiles * quad;
  JoinedRows list = {joined, heads, first + rows, first - 31, 0u};
  int row = list.find(first + 1);
  if (row >= list.end) return;

  using Map = float2[K / kDepth][8];
  const auto load_map = [&](int of, Map& map) {
    const float* from = state + of * row_stride + map_offset + 8 * quad * K + key;
#pragma unroll
    for (int depth = 0; depth < K / kDepth; ++depth) {
#pragma unroll
      for (int j = 0; j < 8; ++j) map[depth][j] = load(from + (depth * kDepth + j) * K);
    }
  };
  const auto put_state = [&](int copy, int column, const float4& value) {
    unsigned high[2], low[2];
    split(value.x, value.y, high[0], low[0]);
    split(value.z, value.w, high[1], low[1]);
    unsigned* to = halves + 2 * copy * kCopy + column * kWords + own / 2;
    *reinterpret_cast<uint2*>(to) = make_uint2(high[0], high[1]);
    *reinterpret_cast<uint2*>(to + kCopy) = make_uint2(low[0], low[1]);
  };
  int copy = 0;
  int held = -1;  // the row whose state shared memory holds
  // One row with the map in `now`, while the next row's map is on its way to `later`.
  const auto step = [&](Map& now, Map& later) {
    const int next = list.find(row + 1);
    if (next < list.end) load_map(next, later);
    float* here = state + row * row_stride + own;
    float4 sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[half] = *reinterpret_cast<const float4*>(here + (group + 8 * half) * K);
    if (held != row - 1) {
      const float* before = state + (row - 1) * row_stride + own;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int column = group + 8 * half;
        put_state(copy, column, *reinterpret_cast<const float4*>(before + column * K));
      }
      __syncthreads();
    }
    float high_high[kTiles][4] = {};
    float cross[kTiles][4] = {};
#pragma unroll
    for (int depth = 0; depth < K / kDepth; ++depth) {
      const unsigned* from = halves + 2 * copy * kCopy + depth * (kDepth / 2) + 4 * quad;
      const uint4 upper = *reinterpret_cast<const uint4*>(from + group * kWords);
      const uint4 lower = *reinterpret_cast<const uint4*>(from + (group + 8) * kWords);
      const uint4 upper_rest = *reinterpret_cast<const uint4*>(from + kCopy + group * kWords);
      const uint4 lower_rest = *reinterpret_cast<const uint4*>(from + kCopy + (group + 8) * kWords);
      const unsigned high[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
      const unsigned low[2][4] = {{upper_rest.x, lower_rest.x, upper_rest.y, lower_rest.y},
                                  {upper_rest.z, lower_rest.z, upper_rest.w, lower_rest.w}};
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const float2* m = now[depth] + 4 * part;
        unsigned map_high[kTiles][2], map_low[kTiles][2];
        split(m[0].x, m[1].x, map_high[0][0], map_low[0][0]);
        split(m[2].x, m[3].x, map_high[0][1], map_low[0][1]);
        split(m[0].y, m[1].y, map_high[1][0], map_low[1][0]);
        split(m[2].y, m[3].y, map_high[1][1], map_low[1][1]);
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply(high_high[tile], high[part], map_high[tile]);
          multiply(cross[tile], high[part], map_low[tile]);
          multiply(cross[tile], low[part], map_high[tile]);
        }
      }
    }
    copy ^= 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      sums[half].x += high_high[0][2 * half] + cross[0][2 * half];
      sums[half].y += high_high[1][2 * half] + cross[1][2 * half];
      sums[half].z += high_high[0][2 * half + 1] + cross[0][2 * half + 1];
      sums[half].w += high_high[1][2 * half + 1] + cross[1][2 * half + 1];
      *reinterpret_cast<float4*>(here + (group + 8 * half) * K) = sums[half];
      put_state(copy, group + 8 * half, sums[half]);
    }
    held = row;
    row = next;
    __syncthreads();
  };
  Map first_map, second_map;
  load_map(row, first_map);
  while (row < list.end) {
    step(first_map, second_map);
    if (row < list.end) step(second_map, first_map);
  }
}

template <int K>
__global__ void __launch_bounds__(2 * K) join_kernel(const int* chains, float* segment_state, const int* segment_joined,
                                                     int chain_count, int value_heads, int value_dim) {
  extern __shared__ __align__(16) unsigned halves[];
  const int blocks = value_dim / kColumns;
  const int64_t per_head = static_cast<int64_t>(value_dim + K) * K;
  // Chains that are used come first, so that the CTAs share them evenly.
  const int items = chain_count * value_heads * blocks;
  for (int item = static_cast<int>(blockIdx.x); item < items; item += static_cast<int>(gridDim.x)) {
    const int column = item % blocks * kColumns;
    const int head = item / blocks % value_heads;
    const int* chain = chains + 2 * (item / blocks / value_heads);
    float* state = segment_state + head * per_head + column * K;
    join_columns<K>(state, segment_joined + head, chain[0], chain[1], value_heads, value_heads * per_head,
                    (value_dim - column) * K, halves);
  }
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() { return 0; }

extern "C" TL_EXPORT int call(int* chains, float* segment_state, int* segment_joined, int chain_count, int
    value_heads, int key_dim, int value_dim, int workers, cudaStream_t stream) {
  if ((key_dim != 64 && key_dim != 128) || value_dim % kColumns != 0) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: no kernel for K = %d, V = %d", key_dim, value_dim);
    return -1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(workers, 1, 1);
  config.blockDim = dim3(2 * key_dim, 1, 1);
  config.dynamicSmemBytes = 4 * kColumns * padded_words(key_dim) * sizeof(unsigned);
  config.stream = stream;
  cudaError_t status =
      key_dim == 64
          ? cudaLaunchKernelEx(&config, join_kernel<64>, chains, segment_state, segment_joined, chain_count,
                               value_heads, value_dim)
          : cudaLaunchKernelEx(&config, join_kernel<128>, chains, segment_state, segment_joined, chain_count,
                               value_heads, value_dim);
  if (status != cudaSuccess) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: %s", cudaGetErrorString(status));
    return -1;
  }
  return 0;
}
