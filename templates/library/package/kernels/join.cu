// Carries states through the segments of cut sequences: N[r] := M[r] N[r - 1] + N[r] for every joined row r, in order.
//
// A row (see qla_ops/runtime/metadata.py) holds, for one segment and head, the state N that the segment leaves behind
// when it starts from zero, V x K, and its map M, K x K, both transposed: N[v][k] and M[j][k] with k contiguous; so
// N_new[v][k] = sum over j of N_old[v][j] M[j][k] + N[v][k]. A row that is not joined holds its exact state already.
//
// A cluster of two CTAs has 16 value columns of one (sequence, head): they pass through the maps without meeting other
// columns. What bounds a row is the way of its map to an SM, so each CTA takes half of it: of four neighbours among the
// summands j one CTA has the first two and the other the last two, and of the columns k of a result it keeps the same.
// A warp has 32 columns k: what its CTA sums up for the other one it computes first and sends there, into the other's
// shared memory, and while that is on its way it computes what its CTA keeps.
//
// Products run on tensor cores, the map first, with each fp32 factor as the sum of two bf16 numbers, high and low; the
// three products that matter are added in fp32, which leaves a relative error of about 2^-16 in a product. Maps come
// by copies into shared memory that each lane starts and reads itself, and are split beside the products: one half of a
// warp's columns while the other half is multiplied. The state passes between warps through shared memory.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kCtas = 2;      // of a cluster
constexpr int kColumns = 16;  // value columns of a cluster
constexpr int kTiles = 2;     // n8 tiles of them
constexpr int kStep = 16;     // summands of a product
constexpr int kStages = 2;    // maps that are on their way or not yet split
constexpr unsigned kAll = 0xffffffffu;

static char error_buf[256];

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
#ifdef __CUDACC__
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
#else
  return 0;
#endif
}

// The emulator knows no clusters: there one block has the threads and the shared memory of all CTAs of a cluster.
#ifdef __CUDACC__
#define CLUSTER __cluster_dims__(kCtas, 1, 1)
constexpr int kBlocks = kCtas;  // blocks of a cluster
#else
#define CLUSTER
constexpr int kBlocks = 1;
#endif

// The CTA's number in its cluster.
template <int threads>
__device__ __forceinline__ int cluster_rank() {
#ifdef __CUDACC__
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return static_cast<int>(threadIdx.x) / threads;
#endif
}

// Tells the cluster that the thread has come here; `wait_for_cluster` waits until all have.
__device__ __forceinline__ void arrive_in_cluster() {
#ifdef __CUDACC__
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#endif
}

__device__ __forceinline__ void wait_for_cluster() {
#ifdef __CUDACC__
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// Waits for all threads of the CTA.
template <int threads>
__device__ __forceinline__ void sync_cta() {
#ifdef __CUDACC__
  __syncthreads();
#else
  tl::__sync_thread_partial(1 + cluster_rank<threads>(), threads);
#endif
}

// What to add to an address in the CTA's shared memory for the same place in the other CTA's.
template <class T>
__device__ __forceinline__ int way_to_peer(const T& shared, int rank) {
#ifdef __CUDACC__
  unsigned there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(&shared)), "r"(1 - rank));
  return static_cast<int>(there - shared_address(&shared));
#else
  return (1 - 2 * rank) * static_cast<int>(sizeof(T));
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

// Makes the barriers' first values visible to the cluster.
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

// Stores into the other CTA's shared memory; it counts for the phase of its barrier.
__device__ __forceinline__ void send(float4& to, uint64_t& barrier, int way, const float4& value) {
#ifdef __CUDACC__
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   shared_address(&to) + way),
               "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w), "r"(shared_address(&barrier) + way)
               : "memory");
#else
  *reinterpret_cast<float4*>(reinterpret_cast<char*>(&to) + way) = value;
  reinterpret_cast<Barrier*>(reinterpret_cast<char*>(&barrier) + way)->complete_transaction(sizeof(value));
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

// Starts a copy into shared memory, for the lane itself; zeros instead, and nothing is read, if it is not `wanted`.
template <class T>
__device__ __forceinline__ void start_copy(T& to, const float* from, bool wanted) {
#ifdef __CUDACC__
  const int bytes = wanted ? sizeof(T) : 0;
  if constexpr (sizeof(T) == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(&to)), "l"(from), "r"(bytes)
                 : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(&to)), "l"(from), "r"(bytes)
                 : "memory");
  }
#else
  tl::cp_async_gs_conditional<sizeof(T)>(&to, from, wanted);
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

// What a CTA shares, and what it keeps for each lane. A CTA has K / 32 warps.
template <int K>
struct Shared {
  static constexpr int kSteps = K / kCtas / kStep;
  // Maps: for every step the four rows j of a lane, four columns k each.
  float4 maps[kStages][kSteps][4][K];
  // What the other CTA has summed up for this one, by turns.
  float4 partials[2][kTiles][K];
  // The CTA's rows j of the state, by turns: of two pairs of neighbours the high parts and the low parts.
  uint4 state[2][kColumns][K / 8];
  // What rows add to the products: pairs of neighbours k.
  float2 sums[kStages + 1][2 * kTiles][K];
  uint64_t full[2][K / 32];
};

// A step's products need four rows j of the map, of which a lane has two columns k.
struct Fragment {
  unsigned high[4];
  unsigned low[4];

  __device__ __forceinline__ void split(const float2 (&rows)[4]) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      ::split(rows[2 * pair].x, rows[2 * pair + 1].x, high[2 * pair], low[2 * pair]);
      ::split(rows[2 * pair].y, rows[2 * pair + 1].y, high[2 * pair + 1], low[2 * pair + 1]);
    }
  }
};

// Sums of one m16 tile: of products high by high, high by low, low by high, which need not wait for one another.
struct Products {
  float sums[kTiles][3][4] = {};

  __device__ __forceinline__ void add(const Fragment& map, const uint4 (&state)[kTiles]) {
#pragma unroll
    for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const unsigned high[2] = {state[tile].x, state[tile].y};
        const unsigned low[2] = {state[tile].z, state[tile].w};
        multiply(sums[tile][kind], kind == 2 ? map.low : map.high, kind == 1 ? low : high);
      }
    }
  }

  // In the columns 8 tile + 2 quad and + 1 of rows `group` and `group` + 8.
  __device__ __forceinline__ float4 get(int tile) const {
    const auto sum = [&](int place) {
      return sums[tile][0][place] + (sums[tile][1][place] + sums[tile][2][place]);
    };
    return make_float4(sum(0), sum(1), sum(2), sum(3));
  }
};

// Carries the states of one chain's rows. `turn` counts the rows that the cluster has joined.
template <int K, int rank>
__device__ __forceinline__ void join_columns(float* state, const int* joined, int first, int rows, int heads,
                                             int64_t row_stride, int map_offset, Shared<K>& shared, int way,
                                             unsigned& turn) {
  constexpr int kSteps = Shared<K>::kSteps;
  const int thread = static_cast<int>(threadIdx.x) % K;
  const int lane = thread % 32;
  const int warp = thread / 32;
  const int group = lane / 4;
  const int quad = lane % 4;
  JoinedRows list = {joined, heads, first + rows, first - 31, 0u};
  int row = list.find(first + 1);
  if (row >= list.end) return;
  const int key = 32 * warp + 4 * group;
  const float* const map = state + map_offset + (8 * quad + 2 * rank) * K + key;
  float* const values = state + 2 * quad * K + key + 2 * rank;
  const auto column = [&](int part) { return (8 * (part / 2) + part % 2) * K; };
  // Starts the copies of a row; some of a group, if there is none.
  const auto copy_row = [&](int of, int stage, int slot) {
    const bool wanted = of < list.end;
    const int64_t offset = (wanted ? of : row) * row_stride;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int place = (32 * step + 4 * (j / 2) + j % 2) * K;
        start_copy(shared.maps[stage][step][j][thread], map + offset + place, wanted);
      }
    }
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      start_copy(shared.sums[slot][part][thread], values + offset + column(part), wanted);
    }
    commit_copies();
  };
  // Pairs change places within a column, so that neither writes nor reads meet more conflicts than they must.
  const auto place = [](int column, int pairs) { return pairs ^ (column / 2 % 4 * 2) ^ (column % 2 * 4); };
  const auto put_state = [&](unsigned to, const float2 (&sums)[2 * kTiles]) {
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      const int column = 8 * (part / 2) + 2 * quad + part % 2;
      unsigned* words = reinterpret_cast<unsigned*>(&shared.state[to][column][place(column, 4 * warp + group / 2)]);
      split(sums[part].x, sums[part].y, words[group % 2], words[2 + group % 2]);
    }
  };
  const auto add_products = [](float2 (&sums)[2 * kTiles], int tile, const float4& products) {
    sums[2 * tile].x += products.x;
    sums[2 * tile].y += products.z;
    sums[2 * tile + 1].x += products.y;
    sums[2 * tile + 1].y += products.w;
  };
  const auto load_state = [&](float2 (&sums)[2 * kTiles], int of) {
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      sums[part] = *reinterpret_cast<const float2*>(values + of * row_stride + column(part));
    }
  };
  int next = list.find(row + 1);
  int coming = list.find(next + 1);  // the one after the next
  int held = row - 1;                // the row whose state shared memory holds
  int stage = 0;                     // of the row's map
  int slot = 0;                      // of what it adds
  float2 before[2 * kTiles];
  load_state(before, held);
  copy_row(row, 0, 0);
  copy_row(next, 1, 1);
  // Of a map: columns for the other CTA, columns for this one, not yet split.
  float2 away[kSteps][4], home[kSteps][4];
  const auto read_map = [&](int step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 read = shared.maps[stage][step][j][thread];
      away[step][j] = rank == 0 ? make_float2(read.z, read.w) : make_float2(read.x, read.y);
      home[step][j] = rank == 0 ? make_float2(read.x, read.y) : make_float2(read.z, read.w);
    }
  };
  // A row takes 2 kSteps steps: kSteps for the other CTA, then kSteps for this one. While one is multiplied, the map is
  // split for the second one after it and read for the fourth.
  constexpr int kSplit = 2;
  constexpr int kRead = 2;
  Fragment ready[2 * kSteps];
  const auto split_map = [&](int step) { ready[step].split(step < kSteps ? away[step] : home[step - kSteps]); };
  wait_for_copies<1>();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) read_map(step);
#pragma unroll
  for (int step = 0; step < kSplit; ++step) split_map(step);
  copy_row(coming, 0, kStages);
  put_state(turn % 2, before);
  sync_cta<K>();
  while (row < list.end) {
    const unsigned parity = turn % 2;
    if (held != row - 1) {
      float2 sums[2 * kTiles];
      load_state(sums, row - 1);
      put_state(parity, sums);
      sync_cta<K>();
    }
    if (lane == 0) expect_bytes(shared.full[parity][warp], kTiles * 32 * sizeof(float4));
    uint4 words[kSteps][kTiles];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int column = 8 * tile + group;
        words[step][tile] = shared.state[parity][column][place(column, 4 * step + quad)];
      }
    }
    Products sent, kept;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      sent.add(ready[step], words[step]);
      split_map(step + kSplit);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      send(shared.partials[parity][tile][thread], shared.full[parity][warp], way, sent.get(tile));
    }
    float2 sums[2 * kTiles];
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) sums[part] = shared.sums[slot][part][thread];
    // For want of a next row this one's place is read, which nobody needs: cheaper than a branch.
    if (next < list.end) stage ^= 1;
    wait_for_copies<1>();
    float2 second[kSteps][4];
#pragma unroll
    for (int step = kSplit; step < kSteps; ++step) {
#pragma unroll
      for (int j = 0; j < 4; ++j) second[step][j] = home[step][j];
    }
#pragma unroll
    for (int step = 0; step < kSteps; ++step) read_map(step);
    const int after = list.find(coming + 1);
#pragma unroll
    for (int step = kSteps; step < 2 * kSteps; ++step) {
      kept.add(ready[step], words[step - kSteps]);
      if (step + kSplit < 2 * kSteps) ready[step + kSplit].split(second[step - kSteps + kSplit]);
    }
#pragma unroll
    for (int step = 0; step < kSplit; ++step) split_map(step);
    copy_row(after, stage, slot);
    float* const here = values + row * row_stride;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) add_products(sums, tile, kept.get(tile));
    wait_for(shared.full[parity][warp], turn / 2 % 2);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) add_products(sums, tile, shared.partials[parity][tile][thread]);
    put_state(parity ^ 1, sums);
    sync_cta<K>();
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      *reinterpret_cast<float2*>(here + column(part)) = sums[part];
    }
    held = row;
    row = next;
    next = coming;
    coming = after;
    slot = (slot + 1) % (kStages + 1);
    ++turn;
  }
  wait_for_copies<0>();  // of groups without copies
}

// What the clusters share: 16 value columns of one head of one chain each. Chains that are used come first.
template <int K>
struct Items {
  const int* chains;
  const int* joined;
  int chain_count;
  int heads;
  int value_dim;

  __device__ __forceinline__ int blocks() const { return value_dim / kColumns; }
  __device__ __forceinline__ int count() const { return chain_count * heads * blocks(); }
  __device__ __forceinline__ int column(int item) const { return item % blocks() * kColumns; }
  __device__ __forceinline__ int head(int item) const { return item / blocks() % heads; }
  // First row and number of rows.
  __device__ __forceinline__ int2 chain(int item) const {
    const int* found = chains + 2 * (item / blocks() / heads);
    return make_int2(found[0], found[1]);
  }

  // Which of 32 items, `first` and those each `stride` apart, have rows to join. All lanes of a warp call it together.
  __device__ __forceinline__ unsigned find(int first, int stride) const {
    constexpr int kTogether = 8;  // flags that are read at once
    const int mine = first + static_cast<int>(threadIdx.x % 32) * stride;
    int found = 0;
    if (mine < count()) {
      const int2 rows = chain(mine);
      const int end = rows.x + rows.y;
      for (int row = rows.x + 1; row < end && found == 0; row += kTogether) {
#pragma unroll
        for (int ahead = 0; ahead < kTogether; ++ahead) {
          if (row + ahead < end) found |= joined[static_cast<int64_t>(row + ahead) * heads + head(mine)];
        }
      }
    }
    return __ballot_sync(kAll, found != 0);
  }
};

template <int K>
__global__ void CLUSTER __launch_bounds__(K, 2) join_kernel(const int* chains, float* segment_state,
                                                            const int* segment_joined, int chain_count,
                                                            int value_heads, int value_dim) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int rank = cluster_rank<K>();
  Shared<K>& shared = reinterpret_cast<Shared<K>*>(memory)[kBlocks == 1 ? rank : 0];
  const int way = way_to_peer(shared, rank);
  if (threadIdx.x % K == 0) {
    for (int warp = 0; warp < K / 32; ++warp) {
      init_barrier(shared.full[0][warp]);
      init_barrier(shared.full[1][warp]);
    }
    fence_barriers();
  }
  __syncwarp();
  arrive_in_cluster();
  const Items<K> items = {chains, segment_joined, chain_count, value_heads, value_dim};
  const int clusters = static_cast<int>(gridDim.x) / kBlocks;
  int first = static_cast<int>(blockIdx.x) / kBlocks;
  unsigned found = items.find(first, clusters);
  wait_for_cluster();
  unsigned turn = 0;
  while (true) {
    for (; found != 0; found &= found - 1) {
      const int item = first + (__ffs(static_cast<int>(found)) - 1) * clusters;
      const int column = items.column(item);
      const int head = items.head(item);
      const int2 chain = items.chain(item);
      const int64_t per_head = static_cast<int64_t>(value_dim + K) * K;
      float* state = segment_state + head * per_head + column * K;
      const int* joined = segment_joined + head;
      const int64_t row_stride = value_heads * per_head;
      const int map_offset = (value_dim - column) * K;
      if (rank == 0) {
        join_columns<K, 0>(state, joined, chain.x, chain.y, value_heads, row_stride, map_offset, shared, way, turn);
      } else {
        join_columns<K, 1>(state, joined, chain.x, chain.y, value_heads, row_stride, map_offset, shared, way, turn);
      }
    }
    first += 32 * clusters;
    if (first >= items.count()) break;
    found = items.find(first, clusters);
  }
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() {
  const auto limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
  constexpr int kTogether = kCtas / kBlocks;
  cudaError_t status = cudaFuncSetAttribute(join_kernel<64>, limit, kTogether * sizeof(Shared<64>));
  if (status == cudaSuccess) status = cudaFuncSetAttribute(join_kernel<128>, limit, kTogether * sizeof(Shared<128>));
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
  constexpr int kTogether = kCtas / kBlocks;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(workers < kCtas ? kBlocks : workers / kCtas * kBlocks, 1, 1);
  config.blockDim = dim3(kTogether * key_dim, 1, 1);
  config.dynamicSmemBytes = kTogether * (key_dim == 64 ? sizeof(Shared<64>) : sizeof(Shared<128>));
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
