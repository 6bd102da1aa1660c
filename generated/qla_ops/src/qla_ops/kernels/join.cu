// Carries states through the segments of cut sequences: N[r] := M[r] N[r - 1] + N[r] for every joined row r, in order.
//
// A row (see qla_ops/runtime/metadata.py) holds, for one segment and head, the state N that the segment leaves behind
// when it starts from zero, V x K, and its map M, K x K, both transposed: N[v][k] and M[j][k] with k contiguous; so
// N_new[v][k] = sum over j of N_old[v][j] M[j][k] + N[v][k]. A row that is not joined holds its exact state already.
//
// A CTA has 16 value columns of one (sequence, head): they pass through the maps without meeting other columns. A warp
// has 32 columns k and half the rows j of a map. Products run on tensor cores with each fp32 factor as the sum of two
// bf16 numbers, high and low; the three products that matter are added in fp32, which leaves a relative error of about
// 2^-16 in a product. Two warps then add their halves through shared memory. The state passes between warps as
// fragments: what a lane is given by a row's products is what the same lane of every warp multiplies in the next row.
//
// Maps come into shared memory by copies of whole lines that all threads share, up to three rows ahead. While a row is
// multiplied, a warp reads its part of the next map from there into registers and splits it; so the chain from row to
// row has no way from memory and next to no elementwise work.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kColumns = 16;  // value columns of a CTA: the rows of an m16n8k16 product
constexpr int kTiles = 4;     // n8 tiles of a warp
constexpr int kStep = 16;     // summands of a product
constexpr int kStages = 3;    // maps that are on their way or not yet split
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

// Keeps the compiler from working an address out again wherever it is used.
__device__ __forceinline__ void keep(const float*& address) {
#ifdef __CUDACC__
  asm volatile("" : "+l"(address));
#endif
}

// Starts four copies of 16 bytes into shared memory, for the lane itself, `distance` bytes from one another, which are
// part of the instructions; every second one goes to `odd`.
template <int distance>
__device__ __forceinline__ void start_copies(float4* even, float4* odd, const float* from) {
#ifdef __CUDACC__
  asm volatile(
      "cp.async.cg.shared.global [%0], [%2], 16;\n"
      "cp.async.cg.shared.global [%1 + %3], [%2 + %3], 16;\n"
      "cp.async.cg.shared.global [%0 + %4], [%2 + %4], 16;\n"
      "cp.async.cg.shared.global [%1 + %5], [%2 + %5], 16;\n" ::"r"(
          static_cast<unsigned>(__cvta_generic_to_shared(even))),
      "r"(static_cast<unsigned>(__cvta_generic_to_shared(odd))), "l"(from), "n"(distance), "n"(2 * distance),
      "n"(3 * distance)
      : "memory");
#else
  for (int turn = 0; turn < 4; ++turn) {
    tl::cp_async_gs<16>((turn % 2 == 0 ? even : odd) + turn * distance / 16, from + turn * distance / 4);
  }
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

// Waits for two warps, those of one `block` of columns.
__device__ __forceinline__ void sync_pair(int block) {
#ifdef __CUDACC__
  asm volatile("bar.sync %0, 64;" ::"r"(1 + block) : "memory");
#else
  tl::__sync_thread_partial(1 + block, 64);
#endif
}

// One step of a warp's map: of its 32 columns k lane (group, quad) has four neighbours, one in each tile; of the step's
// summands j it has 4 quad + 0..3, as the products' results are shared out.
struct Fragments {
  unsigned high[kTiles][2];
  unsigned low[kTiles][2];

  // From four rows j.
  __device__ __forceinline__ void split(const float4 (&rows)[4]) {
    for (int pair = 0; pair < 2; ++pair) {
      const float4& one = rows[2 * pair];
      const float4& two = rows[2 * pair + 1];
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
  // The state as the products' first factor, a fragment for each step, high and low; by turns.
  uint4 state[2][2][K / kStep][32];
  // Maps, on the way or there. Groups of four numbers change places within a row, so that reads meet no conflicts.
  float4 maps[kStages][K][K / 4];
  // Products over half the summands, for the warp that has the other half.
  float4 products[K / kStep][2][32];
  // Which of as many heads as there are threads have rows to join: a bit for each.
  unsigned found[2 * K / 32];
};

// Carries the states of one chain's rows, one of which is joined at least.
template <int K>
__device__ __forceinline__ void join_columns(float* state, const int* joined, int first, int rows, int heads,
                                             int64_t row_stride, int map_offset, Shared<K>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  JoinedRows list = {joined, heads, first + rows, first - 31, 0u};
  int row = list.find(first + 1);
  // Which columns k a warp has, and which half of the summands; of the results it keeps that half of the columns k:
  // of a row's state the lane is given k = own + 0..3 in the value columns `group` and `group` + 8.
  constexpr int kSteps = K / (2 * kStep);  // of half the summands; there are as many blocks
  const int block = warp % kSteps;
  const int part = warp / kSteps;
  const int own = 2 * kStep * block + kStep * part + 4 * quad;
  const int key = 2 * kStep * block + kStep * (group % 2 ^ part) + 4 * (group / 2);
  const int place = (part * (K / 2) + 4 * quad) * (K / 4) + ((key / 4) ^ quad);
  float* const values = state + group * K + own;
  // Eight rows of a map are copied by all threads together; a step has four such turns.
  const int column = static_cast<int>(threadIdx.x) % (K / 4);
  const int line = static_cast<int>(threadIdx.x) / (K / 4);
  const float* const lines = state + map_offset + 4 * static_cast<int>(threadIdx.x);
  float4* const even = &shared.maps[0][line][column ^ (line / 4)];
  float4* const odd = &shared.maps[0][line][column ^ (line / 4) ^ 2];
  constexpr int kMap = K * K / 4;  // groups of four numbers
  const auto copy_part = [&](int step, int stage, const float* from) {
    const int done = step * 8 * K;
    start_copies<8 * K * sizeof(float)>(even + stage * kMap + done, odd + stage * kMap + done, from + 4 * done);
  };
  const auto copy_map = [&](int of, int stage) {
    if (of < list.end) {
      for (int step = 0; step < kSteps; ++step) copy_part(step, stage, lines + of * row_stride);
    }
    commit_copies();
  };
  float4 unsplit[kSteps][4];  // rows j of a map
  const auto read_map = [&](int stage, int step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) unsplit[step][j] = (&shared.maps[stage][0][0])[place + (kStep * step + j) * (K / 4)];
  };
  const auto load_values = [&](int of, float4 (&to)[2]) {
    for (int half = 0; half < 2; ++half) {
      to[half] = *reinterpret_cast<const float4*>(values + of * row_stride + 8 * half * K);
    }
  };
  const auto put_state = [&](int to, const float4 (&sums)[2]) {
    uint4 high, low;
    split(sums[0].x, sums[0].y, high.x, low.x);
    split(sums[1].x, sums[1].y, high.y, low.y);
    split(sums[0].z, sums[0].w, high.z, low.z);
    split(sums[1].z, sums[1].w, high.w, low.w);
    shared.state[to][0][2 * block + part][lane] = high;
    shared.state[to][1][2 * block + part][lane] = low;
  };
  int held = row - 1;  // the row whose state shared memory holds
  int turn = 0;        // where it is
  float4 before[2], added[2];  // the state, and what the row adds to the products
  load_values(held, before);
  load_values(row, added);
  copy_map(row, 0);
  int next = list.find(row + 1);
  copy_map(next, 1);
  int coming = list.find(next + 1);  // the one after the next
  copy_map(coming, 2);
  int later = list.find(coming + 1);  // the one after that
  int stage = 1;                      // of the next map
  put_state(turn, before);
  wait_for_copies<2>();
  __syncthreads();
  // The map of a row is read while the row before is joined, and split one step before it is multiplied: what a product
  // waits for the compiler does not put off.
  for (int step = 0; step < kSteps; ++step) read_map(0, step);
  Fragments ready;
  ready.split(unsplit[0]);
  wait_for_copies<1>();
  __syncthreads();
  while (row < list.end) {
    const bool wanted = later < list.end;
    const float* from = lines + later * row_stride;
    keep(from);
    if (held != row - 1) {
      load_values(row - 1, before);
      put_state(turn, before);
      __syncthreads();
    }
    uint4 factor[kSteps][2];
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int low = 0; low < 2; ++low) factor[step][low] = shared.state[turn][low][part * kSteps + step][lane];
    }
    float4 sums[2] = {added[0], added[1]};
    read_map(stage, 0);
    float products[kTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const Fragments now = ready;
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[tile], factor[step][0], now.high[tile]);
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[tile], factor[step][1], now.high[tile]);
      for (int tile = 0; tile < kTiles; ++tile) multiply(products[tile], factor[step][0], now.low[tile]);
      // Beside the products: what later rows need.
      if (step == 0) load_values(next < list.end ? next : row, added);
      ready.split(unsplit[(step + 1) % kSteps]);
      if (step + 1 < kSteps) read_map(stage, step + 1);
      if (wanted) copy_part(step, (stage + kStages - 1) % kStages, from);
    }
    commit_copies();
    // Of the two neighbours in a lane's products the first is in a column that the warp keeps.
    const auto product = [&](int half, int neighbour) {
      const int i = 2 * half + neighbour;
      return make_float4(products[0][i], products[1][i], products[2][i], products[3][i]);
    };
    for (int half = 0; half < 2; ++half) shared.products[warp][half][lane] = product(half, 1);
    const int after = list.find(later + 1);
    sync_pair(block);
    for (int half = 0; half < 2; ++half) {
      const float4 mine = product(half, 0);
      const float4 other = shared.products[block + (1 - part) * kSteps][half][lane];
      sums[half].x += mine.x + other.x;
      sums[half].y += mine.y + other.y;
      sums[half].z += mine.z + other.z;
      sums[half].w += mine.w + other.w;
    }
    turn ^= 1;
    put_state(turn, sums);
    for (int half = 0; half < 2; ++half) {
      *reinterpret_cast<float4*>(values + row * row_stride + 8 * half * K) = sums[half];
    }
    held = row;
    row = next;
    next = coming;
    coming = later;
    later = after;
    stage = (stage + 1) % kStages;
    wait_for_copies<1>();
    __syncthreads();
  }
  wait_for_copies<0>();  // of groups without copies
}

// Whether a chain has rows that are joined.
__device__ __forceinline__ bool any_joined(const int* joined, int first, int rows, int heads) {
  constexpr int kTogether = 16;  // flags that are read at once
  const int end = first + rows;
  int found = 0;
  for (int row = first + 1; row < end && found == 0; row += kTogether) {
#pragma unroll
    for (int ahead = 0; ahead < kTogether; ++ahead) {
      if (row + ahead < end) found |= joined[static_cast<int64_t>(row + ahead) * heads];
    }
  }
  return found != 0;
}

// Number of the n-th bit that is set, from 0.
__device__ __forceinline__ int find_bit(const unsigned* words, int n) {
  int word = 0;
  while (n >= __popc(words[word])) n -= __popc(words[word++]);
  unsigned left = words[word];
  for (; n > 0; --n) left &= left - 1;
  return 32 * word + __ffs(static_cast<int>(left)) - 1;
}

// Every CTA looks through the heads of all chains, a thread for each, so that they share evenly those that have rows to
// join.
template <int K>
__global__ void __launch_bounds__(2 * K, 1) join_kernel(const int* chains, float* segment_state,
                                                        const int* segment_joined, int chain_count, int value_heads,
                                                        int value_dim) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<K>& shared = *reinterpret_cast<Shared<K>*>(memory);
  const int64_t per_head = static_cast<int64_t>(value_dim + K) * K;
  const int blocks = value_dim / kColumns;
  const int all = chain_count * value_heads;
  int item = static_cast<int>(blockIdx.x);  // among the blocks of columns of the heads that have been found
  for (int base = 0; base < all; base += 2 * K) {
    const int mine = base + static_cast<int>(threadIdx.x);
    bool wanted = false;
    if (mine < all) {
      const int* chain = chains + 2 * (mine / value_heads);
      wanted = any_joined(segment_joined + mine % value_heads, chain[0], chain[1], value_heads);
    }
    const unsigned found = __ballot_sync(kAll, wanted);
    if (threadIdx.x % 32 == 0) shared.found[threadIdx.x / 32] = found;
    __syncthreads();
    int count = 0;
    for (const unsigned word : shared.found) count += __popc(word) * blocks;
    for (; item < count; item += static_cast<int>(gridDim.x)) {
      const int one = base + find_bit(shared.found, item / blocks);
      const int* chain = chains + 2 * (one / value_heads);
      const int head = one % value_heads;
      const int column = item % blocks * kColumns;
      join_columns<K>(segment_state + head * per_head + column * K, segment_joined + head, chain[0], chain[1],
                      value_heads, value_heads * per_head, (value_dim - column) * K, shared);
    }
    item -= count;
    __syncthreads();
  }
}

static_assert(sizeof(Shared<128>) <= 227 * 1024);

static int report(cudaError_t status) {
  if (status == cudaSuccess) return 0;
  snprintf(error_buf, sizeof(error_buf), "join_kernel: %s", cudaGetErrorString(status));
  return -1;
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() {
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  const cudaError_t status = cudaFuncSetAttribute(join_kernel<64>, limit, sizeof(Shared<64>));
  if (status != cudaSuccess) return report(status);
  return report(cudaFuncSetAttribute(join_kernel<128>, limit, sizeof(Shared<128>)));
}

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
  const auto kernel = key_dim == 64 ? join_kernel<64> : join_kernel<128>;
  return report(cudaLaunchKernelEx(&config, kernel, chains, segment_state, segment_joined, chain_count, value_heads,
                                   value_dim));
}
