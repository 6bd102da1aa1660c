// Carries states through the segments of cut sequences: N[r] := M[r] N[r - 1] + N[r] for every joined row r, in order.
//
// A row (see qla_ops/runtime/metadata.py) holds, for one segment and head, the state N that the segment leaves behind
// when it starts from zero, V x K, and its map M, K x K, both transposed: N[v][k] and M[j][k] with k contiguous; so
// N_new[v][k] = sum over j of N_old[v][j] M[j][k] + N[v][k]. A row that is not joined holds its exact state already.
//
// A CTA has 8 value columns of one (sequence, head): they pass through the maps without meeting other columns, and few
// of them give a row little work and many SMs some. A warp has 32 columns k and half the rows j of a map. Nobody else
// in the CTA needs these: they go from memory, a line of it for eight lanes, straight into registers, two rows ahead;
// so does what a row adds, into shared memory. No way from memory is on the chain from row to row. Products run on
// tensor cores, the map first, with each fp32 factor as the sum of two bf16 numbers, high and low; the three products
// that matter are added in fp32, which leaves a relative error of about 2^-16 in a product. A map is split step by
// step, beside the products of the step before. Two warps then add their halves through shared memory, and so does the
// state pass between warps.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kColumns = 8;  // value columns of a CTA: the columns of an m16n8k16 product
constexpr int kTiles = 2;    // m16 tiles of a warp
constexpr int kStep = 16;     // summands of a product
constexpr int kAhead = 2;     // rows that are on their way while one is joined
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

// Four numbers of a map, which nobody writes while this kernel runs.
__device__ __forceinline__ float4 load(const float* from) {
#ifdef __CUDACC__
  float4 value;
  asm volatile("ld.global.nc.L1::no_allocate.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from));
  return value;
#else
  return *reinterpret_cast<const float4*>(from);
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

// 32 columns k of half a map, for a warp, as they were read.
//
// As rows of the products' first factor lane (group, quad) has k = key + 0..3, two in each tile; of the summands of a
// step it has j = 4 quad + 0..3.
template <int K>
struct Map {
  static constexpr int kSteps = K / kStep / 2;
  float4 read[kSteps][4];

  __device__ __forceinline__ void load(const float* from, int step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) read[step][j] = ::load(from + (kStep * step + j) * K);
  }

  // Fragments of two tiles; rows `group` and `group` + 8 of a tile are neighbours k.
  __device__ __forceinline__ void split(int step, unsigned (&high)[kTiles][4], unsigned (&low)[kTiles][4]) const {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const float4 one = read[step][2 * pair];
      const float4 two = read[step][2 * pair + 1];
      ::split(one.x, two.x, high[0][2 * pair], low[0][2 * pair]);
      ::split(one.y, two.y, high[0][2 * pair + 1], low[0][2 * pair + 1]);
      ::split(one.z, two.z, high[1][2 * pair], low[1][2 * pair]);
      ::split(one.w, two.w, high[1][2 * pair + 1], low[1][2 * pair + 1]);
    }
  }
};

// What a CTA shares, and what it keeps for each lane.
template <int K>
struct Shared {
  // The state as the products' second factor: for four k of a column two words, high, and two, low. Between its reads
  // and its writes all warps wait for one another's halves.
  uint4 state[kColumns][K / 4 + 4];
  // Products over half the summands, for the warp that has the other half.
  float4 products[K / kStep][32];
  // What rows add to the products, on the way or there; each lane its own.
  float4 sums[kAhead + 1][2 * K];
};

// Carries the states of one chain's rows.
template <int K>
__device__ __forceinline__ void join_columns(float* state, const int* joined, int first, int rows, int heads,
                                             int64_t row_stride, int map_offset, Shared<K>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  // Which columns k a warp has, and which half of the summands; of the results it keeps that half of the value columns.
  constexpr int kPairs = K / (2 * kStep);
  constexpr int kSteps = Map<K>::kSteps;
  const int block = warp % kPairs;
  const int part = warp / kPairs;
  const int key = 2 * kStep * block + 4 * group;
  const int mine = 2 * quad + part;  // the value column in which the lane keeps k = key + 0..3
  const float* const map = state + map_offset + (part * (K / 2) + 4 * quad) * K + key;
  float* const values = state + mine * K + key;
  JoinedRows list = {joined, heads, first + rows, first - 31, 0u};
  int row = list.find(first + 1);
  if (row >= list.end) return;
  int slot = 0;  // of what the row adds
  const auto copy_sums = [&](int of, int to) {
    if (of < list.end) start_copy(&shared.sums[to][threadIdx.x], values + of * row_stride);
    commit_copies();
  };
  const auto put_state = [&](const float4& sums) {
    uint4 words;
    split(sums.x, sums.y, words.x, words.z);
    split(sums.z, sums.w, words.y, words.w);
    shared.state[mine][key / 4] = words;
  };
  int next = list.find(row + 1);
  int coming = list.find(next + 1);  // the one after the next
  int held = -1;  // the row whose state shared memory holds
  copy_sums(row, 0);
  copy_sums(next, 1);
  // Joins one row; its registers take the map of the row after the next one.
  const auto join_row = [&](Map<K>& now) {
    float4 sums;
    if (held != row - 1) {
      put_state(*reinterpret_cast<const float4*>(values + (row - 1) * row_stride));
      __syncthreads();
    }
    int after = row;
    // For want of such a row a map is read again that nobody needs: cheaper than a branch.
    const float* from = map + (coming < list.end ? coming : row) * row_stride;
    // Steps take turns at two sums, whose products need not wait for one another.
    float products[2][kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const uint4 words = shared.state[group][4 * (part * kSteps + step) + quad];
      const unsigned high[2] = {words.x, words.y};
      const unsigned low[2] = {words.z, words.w};
      unsigned map_high[kTiles][4], map_low[kTiles][4];
      now.split(step, map_high, map_low);
      now.load(from, step);
      // Not before the first product, where it would be on the chain.
      if (step == kSteps / 2) {
        copy_sums(coming, (slot + kAhead) % (kAhead + 1));
        after = list.find(coming + 1);
      }
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[step % 2][tile], map_high[tile], high);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[step % 2][tile], map_high[tile], low);
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[step % 2][tile], map_low[tile], high);
    }
    const auto product = [&](bool second) {
      const auto of = [&](int tile, int row) {
        const float first = products[0][tile][2 * row] + products[1][tile][2 * row];
        return second ? products[0][tile][2 * row + 1] + products[1][tile][2 * row + 1] : first;
      };
      return make_float4(of(0, 0), of(0, 1), of(1, 0), of(1, 1));
    };
    shared.products[warp][lane] = product(part == 0);
    wait_for_copies<kAhead>();
    sums = shared.sums[slot][threadIdx.x];
    __syncthreads();
    const float4 own = product(part != 0);
    const float4 other = shared.products[block + (1 - part) * kPairs][lane];
    sums.x += own.x + other.x;
    sums.y += own.y + other.y;
    sums.z += own.z + other.z;
    sums.w += own.w + other.w;
    *reinterpret_cast<float4*>(values + row * row_stride) = sums;
    put_state(sums);
    held = row;
    row = next;
    next = coming;
    coming = after;
    slot = (slot + 1) % (kAhead + 1);
    __syncthreads();
  };
  Map<K> one, two;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) one.load(map + row * row_stride, step);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) two.load(map + (next < list.end ? next : row) * row_stride, step);
  while (row < list.end) {
    join_row(one);
    if (row < list.end) join_row(two);
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
