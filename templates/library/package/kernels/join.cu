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
//
// Where few heads have long chains, most SMs would have nothing to do. Such a chain is walked in halves at once, the
// second one from its first row's N as if nothing came before. The rows of that row's map walk along, which gives each
// later row the product of the maps so far. When the first half is done, its state passes through these products, all
// rows at once. Tasks that are done are counted in the flags of the halves' last rows. There is one task for each CTA
// then, in this order. CTAs start in the order of their numbers, so that who waits for results waits for CTAs that have
// started and that wait for nobody, however few of them run at a time.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kColumns = 16;  // value columns of a CTA: the rows of an m16n8k16 product
constexpr int kTiles = 4;     // n8 tiles of a warp
constexpr int kStep = 16;     // summands of a product
constexpr int kStages = 3;    // maps that are on their way or not yet split
constexpr int kHalves = 10;   // rows from which a chain is walked in halves
constexpr int kParts = 8;     // tasks that share the rows of a second half, once the first one is done, at most
constexpr int kFewParts = 2;  // and at least
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

// Counts a task as done in a row's flag, which is 1 before: what its threads have stored is there for whoever sees it.
__device__ __forceinline__ void count_done(int* flag) {
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    atomicAdd(flag, 1);
  }
}

// Waits until so many tasks are done.
__device__ __forceinline__ void wait_for(int* flag, int tasks) {
  if (threadIdx.x == 0) {
    for (int value = 0; value <= tasks;) {
#ifdef __CUDACC__
      asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
#else
      value = AtomicLoad(flag, 0);
#endif
    }
  }
  __syncthreads();
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
  // Which of as many heads as there are threads have rows to join, and which of them in halves: a bit for each.
  unsigned found[2 * K / 32];
  unsigned halved[2 * K / 32];
};

// What walks through rows: columns of states, alone or behind another half's; or rows of a map, which add nothing.
enum Kind { kStates, kMaps, kBehind };

// What a task does: rows `row`, `row` + `step`, ... before `end`, those of them that are joined.
struct Walk {
  float* values;   // 16 columns of the row's state, or of the rows of its map
  float* results;  // of `kMaps`; others are put in the place of the values
  const float* maps;
  int64_t row_stride, product_stride;  // the latter of results that are, or maps that were, results of `kMaps`
  int row, end;
  // Of `kBehind`:
  int step;
  int before;  // the row whose state comes before all others
  int* flag;   // counts the tasks that make it
  int tasks;
};

// Carries 16 columns through a walk, of which one row is joined at least.
template <int K, Kind kind>
__device__ __forceinline__ void join_columns(const Walk& walk, const int* joined, int heads, Shared<K>& shared) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int group = lane / 4;
  const int quad = lane % 4;
  JoinedRows list = {joined, heads, walk.end, walk.row - 32, 0u};
  int row = list.find(walk.row);
  // Which columns k a warp has, and which half of the summands; of the results it keeps that half of the columns k:
  // of a row's state the lane is given k = own + 0..3 in the value columns `group` and `group` + 8.
  constexpr int kSteps = K / (2 * kStep);  // of half the summands; there are as many blocks
  const int block = warp % kSteps;
  const int part = warp / kSteps;
  const int own = 2 * kStep * block + kStep * part + 4 * quad;
  const int key = 2 * kStep * block + kStep * (group % 2 ^ part) + 4 * (group / 2);
  const int place = (part * (K / 2) + 4 * quad) * (K / 4) + ((key / 4) ^ quad);
  float* const values = walk.values + group * K + own;
  const int64_t map_stride = kind == kBehind ? walk.product_stride : walk.row_stride;
  const int step_of_rows = kind == kBehind ? walk.step : 1;
  // Eight rows of a map are copied by all threads together; a step has four such turns.
  const int column = static_cast<int>(threadIdx.x) % (K / 4);
  const int line = static_cast<int>(threadIdx.x) / (K / 4);
  const float* const lines = walk.maps + 4 * static_cast<int>(threadIdx.x);
  float4* const even = &shared.maps[0][line][column ^ (line / 4)];
  float4* const odd = &shared.maps[0][line][column ^ (line / 4) ^ 2];
  constexpr int kMap = K * K / 4;  // groups of four numbers
  const auto copy_part = [&](int step, int stage, const float* from) {
    const int done = step * 8 * K;
    start_copies<8 * K * sizeof(float)>(even + stage * kMap + done, odd + stage * kMap + done, from + 4 * done);
  };
  const auto copy_map = [&](int of, int stage) {
    if (of < list.end) {
      for (int step = 0; step < kSteps; ++step) copy_part(step, stage, lines + of * map_stride);
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
      to[half] = *reinterpret_cast<const float4*>(values + of * walk.row_stride + 8 * half * K);
    }
  };
  const auto store_values = [&](int of, const float4 (&from)[2]) {
    float* const to = kind == kMaps ? walk.results + group * K + own + of * walk.product_stride
                                    : values + of * walk.row_stride;
    for (int half = 0; half < 2; ++half) *reinterpret_cast<float4*>(to + 8 * half * K) = from[half];
  };
  const auto row_before = [&](int of) { return kind == kBehind ? walk.before : of - 1; };
  const auto put_state = [&](int to, const float4 (&sums)[2]) {
    uint4 high, low;
    split(sums[0].x, sums[0].y, high.x, low.x);
    split(sums[1].x, sums[1].y, high.y, low.y);
    split(sums[0].z, sums[0].w, high.z, low.z);
    split(sums[1].z, sums[1].w, high.w, low.w);
    shared.state[to][0][2 * block + part][lane] = high;
    shared.state[to][1][2 * block + part][lane] = low;
  };
  int held = row_before(row);  // the row whose state shared memory holds
  int turn = 0;                // where it is
  float4 before[2], added[2];  // the state, and what the row adds to the products
  if (kind != kBehind) load_values(held, before);
  load_values(row, added);
  copy_map(row, 0);
  int next = list.find(row + step_of_rows);
  copy_map(next, 1);
  int coming = list.find(next + step_of_rows);  // the one after the next
  copy_map(coming, 2);
  int later = list.find(coming + step_of_rows);  // the one after that
  int stage = 1;                                 // of the next map
  if (kind == kBehind) {
    wait_for(walk.flag, walk.tasks);
    load_values(held, before);
  }
  put_state(turn, before);
  if (kind == kMaps) store_values(held, before);
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
    const float* from = lines + later * map_stride;
    keep(from);
    if (held != row_before(row)) {
      load_values(row_before(row), before);
      put_state(turn, before);
      __syncthreads();
    }
    uint4 factor[kSteps][2];
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int low = 0; low < 2; ++low) factor[step][low] = shared.state[turn][low][part * kSteps + step][lane];
    }
    float4 sums[2] = {};
    if (kind != kMaps) sums[0] = added[0], sums[1] = added[1];
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
    const int after = list.find(later + step_of_rows);
    sync_pair(block);
    for (int half = 0; half < 2; ++half) {
      const float4 mine = product(half, 0);
      const float4 other = shared.products[block + (1 - part) * kSteps][half][lane];
      sums[half].x += mine.x + other.x;
      sums[half].y += mine.y + other.y;
      sums[half].z += mine.z + other.z;
      sums[half].w += mine.w + other.w;
    }
    if (kind != kBehind) {
      turn ^= 1;
      put_state(turn, sums);
      held = row;
    }
    store_values(row, sums);
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

// Whether a chain has rows that are joined, and whether it is long and all of them are. `flags`: of the second row on.
template <bool halving>
__device__ __forceinline__ void look_through(const int* flags, int rows, int heads, bool& any, bool& all) {
  constexpr int kTogether = 16;  // flags that are read at once
  int found = 0;
  unsigned least = halving && rows >= kHalves;  // of them
  for (int row = 0; row < rows && (found == 0 || least > 0); row += kTogether) {
#pragma unroll
    for (int ahead = 0; ahead < kTogether; ++ahead) {
      int flag = -1;
      if (row + ahead < rows) found |= flag = flags[ahead * heads];
      if (halving) least = min(least, static_cast<unsigned>(flag));
    }
    flags += kTogether * heads;
  }
  any = found != 0;
  all = least > 0;
}

// Number of the n-th bit that is set, from 0.
__device__ __forceinline__ int find_bit(const unsigned* words, int n) {
  int word = 0;
  while (n >= __popc(words[word])) n -= __popc(words[word++]);
  unsigned left = words[word];
  for (; n > 0; --n) left &= left - 1;
  return 32 * word + __ffs(static_cast<int>(left)) - 1;
}

// Where a chain's halves lie: the first one's rows end before `middle`.
struct Chain {
  int first, end, middle;
};

__device__ __forceinline__ Chain chain_of(const int* chains, int n) {
  const int first = chains[2 * n], rows = chains[2 * n + 1];
  return {first, first + rows, first + 1 + (rows - 1) / 2};
}

// The operands of a kernel.
struct Operands {
  const int* chains;
  float* state;
  int* joined;
  float* products;  // of maps: of `rooms` heads at most, a row below the other
  int heads, value_dim, rooms;
};

// How many tasks there are of each kind, where so many heads have rows to join, some of them in halves.
template <int K>
struct Tasks {
  int blocks;  // of a head's columns
  int parts;   // of a second half's rows
  int whole;   // of chains, or of their first halves
  int second;  // of second halves
  int all;     // with those that wait
  __device__ __forceinline__ Tasks(int value_dim, int found, int halved) {
    blocks = value_dim / kColumns;
    whole = found * blocks;
    second = halved * (blocks + K / kColumns);
    const int left = static_cast<int>(gridDim.x) - whole - second;
    parts = halved > 0 ? min(kParts, left / (halved * blocks)) : 0;
    all = whole + second + halved * blocks * parts;
  }
};

// One task of the heads that have been found, which are numbered from `base` on.
template <int K, bool halving>
__device__ __forceinline__ void do_task(const Operands& o, const Tasks<K>& tasks, int task, int base,
                                        Shared<K>& shared) {
  const bool first = !halving || task < tasks.whole;
  const bool second = !first && task < tasks.whole + tasks.second;
  task -= first ? 0 : second ? tasks.whole : tasks.whole + tasks.second;
  const int each = first ? tasks.blocks : second ? tasks.blocks + K / kColumns : tasks.blocks * tasks.parts;
  const int n = task / each;  // of the heads of this kind
  task %= each;
  const int bit = find_bit(first ? shared.found : shared.halved, n);
  const bool halved = halving && (shared.halved[bit / 32] >> bit % 32 & 1) != 0;
  const int head = (base + bit) % o.heads;
  const Chain chain = chain_of(o.chains, (base + bit) / o.heads);
  int* const joined = o.joined + head;
  const int64_t per_head = static_cast<int64_t>(o.value_dim + K) * K;
  const bool maps = second && task >= tasks.blocks;
  const int column = (first || maps ? task : task % tasks.blocks) * kColumns;  // behind the values are the maps
  float* const state = o.state + head * per_head;
  float* const products = o.products + static_cast<int64_t>(n) * K * K;
  Walk walk = {state + column * K,
               products + (column - o.value_dim) * K,
               state + o.value_dim * K,
               o.heads * per_head,
               static_cast<int64_t>(o.rooms) * K * K,
               chain.first + 1,
               chain.end};
  int* const left = joined + static_cast<int64_t>(chain.middle - 1) * o.heads;
  int* const right = joined + static_cast<int64_t>(chain.end - 1) * o.heads;
  if (first || second) {
    if (second) walk.row = chain.middle + 1;
    if (first && halved) walk.end = chain.middle;
    if (maps) {
      join_columns<K, kMaps>(walk, joined, o.heads, shared);
    } else {
      join_columns<K, kStates>(walk, joined, o.heads, shared);
    }
    if (halved) count_done(first ? left : right);
  } else if (chain.middle + task / tasks.blocks < chain.end) {
    walk.maps = products;
    walk.row = chain.middle + task / tasks.blocks;
    walk.step = tasks.parts;
    walk.before = chain.middle - 1;
    walk.flag = left;
    walk.tasks = tasks.blocks;
    wait_for(right, tasks.blocks + K / kColumns);
    join_columns<K, kBehind>(walk, joined, o.heads, shared);
  }
}

template <int words>
__device__ __forceinline__ int count_bits(const unsigned (&set)[words]) {
  int bits = 0;
  for (const unsigned word : set) bits += __popc(word);
  return bits;
}

// Every CTA looks through the heads of all chains, a thread for each, so that they share evenly those that have rows to
// join. `halving`: whether a chain may be long.
template <int K, bool halving>
__global__ void __launch_bounds__(2 * K, 1) join_kernel(const int* chains, float* segment_state, int* segment_joined,
                                                        float* segment_products, int chain_count, int value_heads,
                                                        int value_dim, int rooms) {
  cudaGridDependencySynchronize();
  cudaTriggerProgrammaticLaunchCompletion();
  extern __shared__ __align__(128) unsigned char memory[];
  Shared<K>& shared = *reinterpret_cast<Shared<K>*>(memory);
  const Operands operands = {chains, segment_state, segment_joined, segment_products, value_heads, value_dim, rooms};
  const int all = chain_count * value_heads;
  const int ctas = static_cast<int>(gridDim.x);
  int task = static_cast<int>(blockIdx.x);  // among those of the heads that have been found
  for (int base = 0; base < all; base += 2 * K) {
    const int mine = base + static_cast<int>(threadIdx.x);
    bool wanted = false, halved = false;
    if (mine < all) {
      const int* chain = chains + 2 * (mine / value_heads);
      const int* flags = segment_joined + static_cast<int64_t>(chain[0] + 1) * value_heads + mine % value_heads;
      look_through<halving>(flags, chain[1] - 1, value_heads, wanted, halved);
    }
    const unsigned found = __ballot_sync(kAll, wanted), long_ones = __ballot_sync(kAll, halved);
    if (threadIdx.x % 32 == 0) shared.found[threadIdx.x / 32] = found;
    if (halving && threadIdx.x % 32 == 0) shared.halved[threadIdx.x / 32] = long_ones;
    __syncthreads();
    const int count = count_bits(shared.found);
    if (count == 0 && all <= 2 * K) return;
    const int count_halved = halving ? count_bits(shared.halved) : 0;
    Tasks<K> tasks(value_dim, count, count_halved);
    if (count_halved > 0 && (all > 2 * K || count_halved > rooms || tasks.parts < kFewParts)) {
      // There are not enough CTAs, or no room.
      __syncthreads();
      if (threadIdx.x % 32 == 0) shared.halved[threadIdx.x / 32] = 0;
      __syncthreads();
      tasks = Tasks<K>(value_dim, count, 0);
    }
    for (; task < tasks.all; task += ctas) do_task<K, halving>(operands, tasks, task, base, shared);
    task -= tasks.all;
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

template <int K, bool halving>
static int make_room() {
  constexpr auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  return report(cudaFuncSetAttribute(join_kernel<K, halving>, limit, sizeof(Shared<K>)));
}

extern "C" TL_EXPORT int init() {
  const int failed = make_room<64, false>() | make_room<64, true>() | make_room<128, false>() | make_room<128, true>();
  return failed ? -1 : 0;
}

extern "C" TL_EXPORT int call(int* chains, float* segment_state, int* segment_joined, float* segment_products, int
    chain_count, int value_heads, int key_dim, int value_dim, int rooms, int workers, cudaStream_t stream) {
  if ((key_dim != 64 && key_dim != 128) || value_dim % kColumns != 0) {
    snprintf(error_buf, sizeof(error_buf), "join_kernel: no kernel for K = %d, V = %d", key_dim, value_dim);
    return -1;
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(workers, 1, 1);
  config.blockDim = dim3(2 * key_dim, 1, 1);
  config.dynamicSmemBytes = key_dim == 64 ? sizeof(Shared<64>) : sizeof(Shared<128>);
  config.stream = stream;
  const auto small = rooms > 0 ? join_kernel<64, true> : join_kernel<64, false>;
  const auto large = rooms > 0 ? join_kernel<128, true> : join_kernel<128, false>;
  const auto kernel = key_dim == 64 ? small : large;
  return report(cudaLaunchKernelEx(&config, kernel, chains, segment_state, segment_joined, segment_products,
                                   chain_count, value_heads, value_dim, rooms));
}
