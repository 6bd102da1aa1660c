// Carries states through the segments of cut sequences: N[r] := M[r] N[r - 1] + N[r] for every joined row r, in order.
//
// A row (see qla_ops/runtime/metadata.py) holds, for one segment and head, the state N that the segment leaves behind
// when it starts from zero, V x K, and its map M, K x K, both transposed: N[v][k] and M[j][k] with k contiguous; so
// N_new[v][k] = sum over j of N_old[v][j] M[j][k] + N[v][k]. A row that is not joined holds its exact state already.
//
// A CTA has 16 value columns of one (sequence, head): they pass through the maps without meeting other columns. Maps come
// into shared memory two rows ahead, by copies of whole lines that all threads share; so does what a row adds. No way
// from memory is on the chain from row to row.
//
// A warp has 32 columns k and half the rows j of a map. Products run on tensor cores with each fp32 factor as the sum of
// two bf16 numbers, high and low; the three products that matter are added in fp32, which leaves a relative error of
// about 2^-16 in a product. Two warps then add their halves through shared memory. The state passes between warps as
// fragments: what a lane is given by the products of one row is what the same lane of every warp multiplies in the next.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kColumns = 16;  // value columns of a CTA: the rows of an m16n8k16 product
constexpr int kTiles = 4;     // n8 tiles of a warp
constexpr int kStep = 16;     // summands of a product
constexpr int kAhead = 2;     // rows that are on their way while one is joined
constexpr unsigned kAll = 0xffffffffu;

static char error_buf[256];

// c += a b for a 16 x 16 (row-major), b 16 x 8 (column-major), bf16 in fp32.
__device__ __forceinline__ void multiply(float (&c)[4], const uint4& a, const unsigned (&b)[2]) {
#ifdef __CUDACC__
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b[0]), "r"(b[1]));
#else
  constexpr auto type = tl::DataType::kBFloat16;
  const unsigned words[4] = {a.x, a.y, a.z, a.w};
  tl::mma_sync<type, type, tl::DataType::kFloat32, 16, 8, 16, false, true>(c, words, b);
#endif
}

// Starts a copy of 16 bytes into shared memory, for the lane itself.
__device__ __forceinline__ void start_copy(float4* to, const float* from) {
#ifdef __CUDACC__
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(static_cast<unsigned>(__cvta_generic_to_shared(to))),
               "l"(from)
               : "memory");
#else
  tl::cp_async_gs<16>(to, from);
#endif
}

// Ends a group of copies; there may be none in it.
__device__ __forceinline__ void commit_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  tl::cp_async_commit();
#endif
}

// Waits for all groups of the lane's copies but the last `groups`.
template <int groups>
__device__ __forceinline__ void wait_for_copies() {
#ifdef __CUDACC__
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#else
  tl::cp_async_wait<groups>();
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

// One step of a warp's map: of its 32 columns k lane (group, quad) has four neighbours, one in each tile; of the step's
// summands j it has 4 quad + 0..3, as the products' results are shared out.
struct Fragments {
  unsigned high[kTiles][2];
  unsigned low[kTiles][2];

  // From a map in shared memory with rows of `pitch` groups of four numbers.
  __device__ __forceinline__ void split(const float4* from, int pitch) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float4 one = from[2 * pair * pitch];
      const float4 two = from[(2 * pair + 1) * pitch];
      ::split(one.x, two.x, high[0][pair], low[0][pair]);
      ::split(one.y, two.y, high[1][pair], low[1][pair]);
      ::split(one.z, two.z, high[2][pair], low[2][pair]);
      ::split(one.w, two.w, high[3][pair], low[3][pair]);
    }
  }
};

// What a CTA shares, and what it keeps for each lane.
template <int K>
struct Shared {
  // The state as the products' first factor, a fragment for each step, high and low. Between its reads and its writes
  // all warps wait for one another's halves.
  uint4 state[2][K / kStep][32];
  // Maps, on the way or there. Groups of four numbers change places within a row, so that reads meet no conflicts.
  float4 maps[kAhead + 1][K][K / 4];
  // Products over half the summands, for the warp that has the other half.
  float4 products[K / kStep][2][32];
  // What rows add to the products, on the way or there; each lane its own.
  float4 sums[2][2][2 * K];
};

// Carries the states of one chain's rows.
template <int K>
__device__ __forceinline__ void join_columns(float* state, const int* joined, int first, int rows, int heads,
                                             int64_t row_stride, int map_offset, Shared<K>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  JoinedRows list = {joined, heads, first + rows, first - 31, 0u};
  int row = list.find(first + 1);
  if (row >= list.end) return;
  // Which columns k a warp has, and which half of the summands; of the results it keeps that half of the columns k:
  // of a row's state the lane is given k = own + 0..3 in the value columns `group` and `group` + 8.
  constexpr int kPairs = K / (2 * kStep);
  constexpr int kSteps = kPairs;
  const int block = warp % kPairs;
  const int part = warp / kPairs;
  const int own = 2 * kStep * block + kStep * part + 4 * quad;
  const int key = 2 * kStep * block + kStep * (group % 2) + 4 * (group / 2);
  const float* const map = state + map_offset;
  const int place = (part * (K / 2) + 4 * quad) * (K / 4) + ((key / 4) ^ quad);
  const auto copy_map = [&](int of, int to) {
    if (of < list.end) {
#pragma unroll
      for (int turn = 0; turn < K / 8; ++turn) {
        const int chunk = turn * 2 * K + static_cast<int>(threadIdx.x);
        const int j = chunk / (K / 4);
        start_copy(&shared.maps[to][j][chunk % (K / 4) ^ (j / 4 % 4)], map + of * row_stride + 4 * chunk);
      }
    }
  };
  float* const values = state + group * K + own;
  const auto copy_sums = [&](int of, int to) {
    if (of < list.end) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        start_copy(&shared.sums[to][half][threadIdx.x], values + of * row_stride + 8 * half * K);
      }
    }
  };
  const auto put_state = [&](const float4 (&sums)[2]) {
    uint4 high, low;
    split(sums[0].x, sums[0].y, high.x, low.x);
    split(sums[1].x, sums[1].y, high.y, low.y);
    split(sums[0].z, sums[0].w, high.z, low.z);
    split(sums[1].z, sums[1].w, high.w, low.w);
    shared.state[0][2 * block + part][lane] = high;
    shared.state[1][2 * block + part][lane] = low;
  };
  int next = list.find(row + 1);
  int coming = list.find(next + 1);  // the one after the next
  int held = -1;  // the row whose state shared memory holds
  int stage = 0;  // of the map
  int slot = 0;   // of what the row adds
  copy_sums(row, 0);
  copy_map(row, 0);
  commit_copies();
  copy_map(next, 1);
  commit_copies();
  wait_for_copies<1>();
  while (row < list.end) {
    float4 sums[2];
    if (held != row - 1) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        sums[half] = *reinterpret_cast<const float4*>(values + (row - 1) * row_stride + 8 * half * K);
      }
      put_state(sums);
      __syncthreads();
    }
    int after = row;
    const float4* const now = &shared.maps[stage][0][0] + place;
    float products[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 high = shared.state[0][part * kSteps + step][lane];
      const uint4 low = shared.state[1][part * kSteps + step][lane];
      Fragments fragments;
      fragments.split(now + kStep * step * (K / 4), K / 4);
      // Not before the first product, where it would be on the chain.
      if (step == kSteps / 2) {
        copy_sums(next, slot ^ 1);
        copy_map(coming, (stage + kAhead) % (kAhead + 1));
        commit_copies();
        after = list.find(coming + 1);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[tile], high, fragments.high[tile]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[tile], low, fragments.high[tile]);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[tile], high, fragments.low[tile]);
    }
    const auto product = [&](int half, bool second) {
      const auto of = [&](int tile) { return second ? products[tile][2 * half + 1] : products[tile][2 * half]; };
      return make_float4(of(0), of(1), of(2), of(3));
    };
#pragma unroll
    for (int half = 0; half < 2; ++half) shared.products[warp][half][lane] = product(half, part == 0);
    wait_for_copies<1>();
#pragma unroll
    for (int half = 0; half < 2; ++half) sums[half] = shared.sums[slot][half][threadIdx.x];
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float4 mine = product(half, part != 0);
      const float4 other = shared.products[block + (1 - part) * kPairs][half][lane];
      sums[half].x += mine.x + other.x;
      sums[half].y += mine.y + other.y;
      sums[half].z += mine.z + other.z;
      sums[half].w += mine.w + other.w;
      *reinterpret_cast<float4*>(values + row * row_stride + 8 * half * K) = sums[half];
    }
    put_state(sums);
    held = row;
    row = next;
    next = coming;
    coming = after;
    slot ^= 1;
    stage = (stage + 1) % (kAhead + 1);
    __syncthreads();
  }
  wait_for_copies<0>();  // of groups without copies
}

template <int K>
__global__ void __launch_bounds__(2 * K, 1) join_kernel(const int* chains, float* segment_state,
                                                        const int* segment_joined, int chain_count, int value_heads,
                                                        int value_dim) {
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<K>& shared = *reinterpret_cast<Shared<K>*>(memory);
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
                    (value_dim - column) * K, shared);
  }
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() {
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  cudaError_t status = cudaFuncSetAttribute(join_kernel<64>, limit, sizeof(Shared<64>));
  if (status == cudaSuccess) status = cudaFuncSetAttribute(join_kernel<128>, limit, sizeof(Shared<128>));
  if (status != cudaSuccess) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: %s", cudaGetErrorString(status));
    return -1;
  }
  return 0;
}

static_assert(sizeof(Shared<128>) <= 227 * 1024);

extern "C" TL_EXPORT int call(int* chains, float* segment_state, int* segment_joined, int chain_count, int
    value_heads, int key_dim, int value_dim, int workers, cudaStream_t stream) {
  if ((key_dim != 64 && key_dim != 128) || value_dim % kColumns != 0) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: no kernel for K = %d, V = %d", key_dim, value_dim);
    return -1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(workers, 1, 1);
  config.blockDim = dim3(2 * key_dim, 1, 1);
  config.dynamicSmemBytes = key_dim == 64 ? sizeof(Shared<64>) : sizeof(Shared<128>);
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
