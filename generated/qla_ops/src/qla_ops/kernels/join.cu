// Carries states through the segments of cut sequences: N[r] := M[r] N[r - 1] + N[r] for every joined row r, in order.
//
// A row (see qla_ops/runtime/metadata.py) holds, for one segment and head, the state N that the segment leaves behind
// when it starts from zero, V x K, and its map M, K x K, both transposed: N[v][k] and M[j][k] with k contiguous; so
// N_new[v][k] = sum over j of N_old[v][j] M[j][k] + N[v][k]. A row that is not joined holds its exact state already.
//
// A CTA has 16 value columns of one (sequence, head): they pass through the maps without meeting other columns. Maps
// come by bulk copies into a ring of stages in shared memory, as many rows ahead as there are stages. The product runs
// on tensor cores with each fp32 factor as the sum of two bf16 numbers, high and low; the three products that matter
// are kept and added in fp32, which leaves a relative error of about 2^-16 in a product. While a row's products run,
// the next map is split, into the registers that they free; so only the products are on the chain from row to row. The
// state passes between warps through shared memory. One more warp does nothing but start the copies.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kColumns = 16;  // value columns of a CTA: the rows of an m16n8k16 product
constexpr int kTiles = 2;     // n8 tiles of a warp
constexpr int kDepth = 32;    // summands of two k16 products, whose fragments a lane reads together
constexpr int kStages = 3;    // maps that are on their way or in use
constexpr unsigned kAll = 0xffffffffu;

static char error_buf[256];

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
#ifdef __CUDACC__
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
#else
  return 0;
#endif
}

// An mbarrier for one arrival in each phase.
__device__ __forceinline__ void init_barrier(uint64_t& barrier) {
#ifdef __CUDACC__
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)) : "memory");
#else
  tl::mbarrier_init(barrier, 1);
#endif
}

// Makes the barriers' first values visible to bulk copies.
__device__ __forceinline__ void fence_barriers() {
#ifdef __CUDACC__
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
}

// Arrives, and lets the phase wait for `bytes` besides.
__device__ __forceinline__ void expect_bytes(uint64_t& barrier, unsigned bytes) {
#ifdef __CUDACC__
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes)
               : "memory");
#else
  tl::mbarrier_arrive_expect_tx(barrier, bytes);
#endif
}

// Waits until the phase of this parity is over.
__device__ __forceinline__ void wait_for(uint64_t& barrier, unsigned parity) {
#ifdef __CUDACC__
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(shared_address(&barrier)),
      "r"(parity)
      : "memory");
#else
  tl::mbarrier_wait(barrier, static_cast<int>(parity));
#endif
}

// Starts a copy of contiguous bytes into shared memory; it ends with the phase of the barrier.
__device__ __forceinline__ void copy_bulk(void* to, const void* from, unsigned bytes, uint64_t& barrier) {
#ifdef __CUDACC__
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(&barrier))
               : "memory");
#else
  tl::tma_load(to, from, barrier, bytes);
#endif
}

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

// Shared memory of a CTA for key size K, in bytes. The state lies there as words of two bf16, high and low, and twice:
// while one copy is read the next one is written. Its rows have a stride of 16 banks modulo 32, so that reads meet no
// conflict. Blocks of 8 rows of a map are moved apart by 8 banks for the same reason.
template <int K>
struct Layout {
  static constexpr int kWords = K / 2 + 16;
  static constexpr int kCopy = kColumns * kWords;
  static constexpr int kState = 4 * kCopy * static_cast<int>(sizeof(unsigned));
  static constexpr int kBlock = 8 * K * static_cast<int>(sizeof(float));
  static constexpr int kStride = kBlock + 8 * static_cast<int>(sizeof(float));
  static constexpr int kMap = K / 8 * kStride;
  static constexpr int kBytes = kStages * kMap + kState;
};

// The maps of rows, in order, through the ring of stages. The counters run on from one chain to the next.
template <int K>
struct Maps {
  unsigned char* stages;
  uint64_t* full;
  unsigned filled;
  unsigned split;  // how many have been split into registers

  // Starts the copies of the next map; of one thread.
  __device__ __forceinline__ void fill(const float* map) {
    const unsigned stage = filled % kStages;
    unsigned char* to = stages + stage * Layout<K>::kMap;
    expect_bytes(full[stage], K * K * sizeof(float));
#pragma unroll 1
    for (int block = 0; block < K / 8; ++block) {
      copy_bulk(to + block * Layout<K>::kStride, map + block * 8 * K, Layout<K>::kBlock, full[stage]);
    }
  }

  // Waits for the next map to split.
  __device__ __forceinline__ const unsigned char* wait() const {
    wait_for(full[split % kStages], split / kStages % 2);
    return stages + split % kStages * Layout<K>::kMap;
  }
};

// Fragments of a map for one warp, split: two k16 products, n8 tiles, two registers.
template <int K>
struct Fragments {
  unsigned high[K / kDepth][2][kTiles][2];
  unsigned low[K / kDepth][2][kTiles][2];

  // One depth of the map in a stage; lane (group, quad) has columns `key` and `key` + 1.
  __device__ __forceinline__ void read(const unsigned char* stage, int depth, int quad, int key) {
    const unsigned char* block = stage + (4 * depth + quad) * Layout<K>::kStride;
    const float* from = reinterpret_cast<const float*>(block) + key;
#pragma unroll
    for (int part = 0; part < 2; ++part) {
#pragma unroll
      for (int pair = 0; pair < 2; ++pair) {
        const float2 one = *reinterpret_cast<const float2*>(from + (4 * part + 2 * pair) * K);
        const float2 two = *reinterpret_cast<const float2*>(from + (4 * part + 2 * pair + 1) * K);
        ::split(one.x, two.x, high[depth][part][0][pair], low[depth][part][0][pair]);
        ::split(one.y, two.y, high[depth][part][1][pair], low[depth][part][1][pair]);
      }
    }
  }
};

// Warps of a CTA: those that multiply, and one that loads.
template <int K>
constexpr int kWarps = K / 16 + 1;

// Carries the states of one chain's rows.
template <int K>
__device__ __forceinline__ void join_columns(float* state, const int* joined, int first, int rows, int heads,
                                             int64_t row_stride, int map_offset, unsigned* halves, Maps<K>& maps) {
  constexpr int kWords = Layout<K>::kWords;
  constexpr int kCopy = Layout<K>::kCopy;
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const bool loads = warp == kWarps<K> - 1;
  const int group = lane / 4;
  const int quad = lane % 4;
  // Of the products' columns lane (group, quad) multiplies k = key + 0, 1 and is given k = own + 0..3.
  const int key = warp * 8 * kTiles + kTiles * group;
  const int own = warp * 8 * kTiles + 2 * kTiles * quad;
  JoinedRows list = {joined, heads, first + rows, first - 31, 0u};
  JoinedRows ahead = list;
  int row = list.find(first + 1);
  if (row >= list.end) return;
  int coming = row;  // the next row whose map is to be copied
  const auto fill = [&]() {
    while (coming < list.end && maps.filled < maps.split + kStages) {
      if (lane == 0) maps.fill(state + coming * row_stride + map_offset);
      ++maps.filled;
      coming = ahead.find(coming + 1);
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
  // Takes the state of a row from memory.
  const auto load_state = [&](int copy, int from) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = group + 8 * half;
      put_state(copy, column, *reinterpret_cast<const float4*>(state + from * row_stride + own + column * K));
    }
  };
  int copy = 0;
  int held = row - 1;  // the row whose state shared memory holds
  if (loads) {
    fill();
    ++maps.split;
    __syncthreads();
    // The other warps' steps, as far as the barrier and the counters go.
    while (row < list.end) {
      if (held != row - 1) __syncthreads();
      const int next = list.find(row + 1);
      maps.split += next < list.end;
      held = row;
      row = next;
      __syncthreads();
      // All warps have split what was waited for: its stage, and at first the one before it, are free.
      fill();
    }
    return;
  }
  load_state(copy, held);
  Fragments<K> map;
  const unsigned char* stage = maps.wait();
#pragma unroll
  for (int depth = 0; depth < K / kDepth; ++depth) map.read(stage, depth, quad, key);
  ++maps.split;
  __syncthreads();
  while (row < list.end) {
    if (held != row - 1) {
      load_state(copy, row - 1);
      __syncthreads();
    }
    float* here = state + row * row_stride + own;
    float4 sums[2];
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[half] = *reinterpret_cast<const float4*>(here + (group + 8 * half) * K);
    const int next = list.find(row + 1);
    if (next < list.end) stage = maps.wait();
    float high_high[kTiles][4] = {};
    float cross[2][kTiles][4] = {};
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
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
          multiply(high_high[tile], high[part], map.high[depth][part][tile]);
          multiply(cross[0][tile], high[part], map.low[depth][part][tile]);
          multiply(cross[1][tile], low[part], map.high[depth][part][tile]);
        }
      }
      // After the last row it reads a map again, which nobody needs: cheaper than a branch.
      map.read(stage, depth, quad, key);
    }
    copy ^= 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto sum = [&](int tile, int place) {
        return high_high[tile][place] + (cross[0][tile][place] + cross[1][tile][place]);
      };
      sums[half].x += sum(0, 2 * half);
      sums[half].y += sum(1, 2 * half);
      sums[half].z += sum(0, 2 * half + 1);
      sums[half].w += sum(1, 2 * half + 1);
      *reinterpret_cast<float4*>(here + (group + 8 * half) * K) = sums[half];
      put_state(copy, group + 8 * half, sums[half]);
    }
    maps.split += next < list.end;
    held = row;
    row = next;
    __syncthreads();
  }
}

template <int K>
__global__ void __launch_bounds__(32 * kWarps<K>, 1) join_kernel(const int* chains, float* segment_state,
                                                        const int* segment_joined, int chain_count,
                                                        int value_heads, int value_dim) {
  extern __shared__ __align__(128) unsigned char shared[];
  __shared__ __align__(8) uint64_t full[3];
  unsigned* halves = reinterpret_cast<unsigned*>(shared + kStages * Layout<K>::kMap);
  Maps<K> maps = {shared, full, 0u, 0u};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) init_barrier(full[stage]);
    fence_barriers();
  }
  __syncthreads();
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
                    (value_dim - column) * K, halves, maps);
  }
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() {
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t status = cudaFuncSetAttribute(join_kernel<64>, limit, Layout<64>::kBytes);
  if (status == cudaSuccess) status = cudaFuncSetAttribute(join_kernel<128>, limit, Layout<128>::kBytes);
  if (status != cudaSuccess) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: %s", cudaGetErrorString(status));
    return -1;
  }
  return 0;
}

extern "C" TL_EXPORT int call(int* chains, float* segment_state, int* segment_joined, int chain_count, int
    value_heads, int key_dim, int value_dim, int workers, cudaStream_t stream) {
  if ((key_dim != 64 && key_dim != 128) || value_dim % kColumns != 0) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: no kernel for K = %d, V = %d", key_dim, value_dim);
    return -1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(workers, 1, 1);
  config.blockDim = dim3(key_dim == 64 ? 32 * kWarps<64> : 32 * kWarps<128>, 1, 1);
  config.dynamicSmemBytes = key_dim == 64 ? Layout<64>::kBytes : Layout<128>::kBytes;
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
