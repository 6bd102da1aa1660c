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

// Waits for all threads of the cluster.
__device__ __forceinline__ void sync_cluster() {
#ifdef __CUDACC__
  asm volatile(
      "barrier.cluster.arrive.aligned;\n"
      "barrier.cluster.wait.aligned;" ::
          : "memory");
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
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
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

// Starts a copy into shared memory, for the lane itself.
template <class T>
__device__ __forceinline__ void start_copy(T& to, const float* from) {
#ifdef __CUDACC__
  if constexpr (sizeof(T) == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(&to)), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(&to)), "l"(from) : "memory");
  }
#else
  tl::cp_async_gs<sizeof(T)>(&to, from);
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
  // The CTA's rows j of the state, by turns: for each pair of neighbours a word of high and one of low parts.
  uint2 state[2][kColumns][K / 4];
  // What rows add to the products: pairs of neighbours k.
  float2 sums[kStages + 1][2 * kTiles][K];
  uint64_t full[2][K / 32];
};

// Half of a tile's map: columns `one` and `two` of the four that a lane has in each row j.
template <int K>
struct Fragments {
  unsigned high[Shared<K>::kSteps][4];
  unsigned low[Shared<K>::kSteps][4];

  __device__ __forceinline__ void split(int step, const float (&rows)[4][2]) {
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        ::split(rows[2 * pair][k], rows[2 * pair + 1][k], high[step][2 * pair + k], low[step][2 * pair + k]);
      }
    }
  }
};

// Sums of one m16 tile: of products high by high, high by low, low by high, which need not wait for one another.
struct Products {
  float sums[kTiles][3][4];

  __device__ __forceinline__ Products() {
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
#pragma unroll
      for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
        for (int place = 0; place < 4; ++place) sums[tile][kind][place] = 0.f;
      }
    }
  }

  __device__ __forceinline__ void add(const unsigned (&high)[4], const unsigned (&low)[4],
                                      const uint4 (&state)[kTiles]) {
    // In this order: neighbours in it are never of one sum.
#pragma unroll
    for (int kind = 0; kind < 3; ++kind) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const unsigned state_high[2] = {state[tile].x, state[tile].z};
        const unsigned state_low[2] = {state[tile].y, state[tile].w};
        multiply(sums[tile][kind], kind == 2 ? low : high, kind == 1 ? state_low : state_high);
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
  const auto copy_sums = [&](int of, int to) {
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      start_copy(shared.sums[to][part][thread], values + of * row_stride + column(part));
    }
  };
  const auto copy_map = [&](int of, int to, int step) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      start_copy(shared.maps[to][step][j][thread], map + of * row_stride + (32 * step + 4 * (j / 2) + j % 2) * K);
    }
  };
  // Pairs change places within a column, so that neither writes nor reads meet a conflict.
  const auto place = [](int column, int pair) { return pair ^ (column / 2 % 4 * 4) ^ (column % 2 * 8); };
  const auto put_state = [&](unsigned to, const float2 (&sums)[2 * kTiles]) {
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      const int column = 8 * (part / 2) + 2 * quad + part % 2;
      uint2 words;
      split(sums[part].x, sums[part].y, words.x, words.y);
      shared.state[to][column][place(column, 8 * warp + group)] = words;
    }
  };
  int next = list.find(row + 1);
  int coming = list.find(next + 1);
  int held = -1;  // the row whose state shared memory holds
  int stage = 0;  // of the row's map
  int slot = 0;   // of what it adds
#pragma unroll
  for (int ahead = 0; ahead < kStages; ++ahead) {
    const int of = ahead == 0 ? row : next;
    if (of < list.end) {
      copy_sums(of, ahead);
#pragma unroll
      for (int step = 0; step < kSteps; ++step) copy_map(of, ahead, step);
    }
    commit_copies();
  }
  Fragments<K> away, home;      // for the other CTA, for this one
  float rest[kSteps][4][2];     // of a map, not yet split
  const auto read_map = [&](int from, int step) {
    float part[4][2];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float4 read = shared.maps[from][step][j][thread];
      part[j][0] = rank == 0 ? read.z : read.x;
      part[j][1] = rank == 0 ? read.w : read.y;
      rest[step][j][0] = rank == 0 ? read.x : read.z;
      rest[step][j][1] = rank == 0 ? read.y : read.w;
    }
    away.split(step, part);
  };
  wait_for_copies<1>();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    read_map(stage, step);
    if (coming < list.end) copy_map(coming, stage, step);
  }
  if (coming < list.end) copy_sums(coming, kStages);
  commit_copies();
  while (row < list.end) {
    const unsigned parity = turn % 2;
    if (held != row - 1) {
      float2 sums[2 * kTiles];
#pragma unroll
      for (int part = 0; part < 2 * kTiles; ++part) {
        sums[part] = *reinterpret_cast<const float2*>(values + (row - 1) * row_stride + column(part));
      }
      put_state(parity, sums);
      sync_cta<K>();
    }
    if (lane == 0) expect_bytes(shared.full[parity][warp], kTiles * 32 * sizeof(float4));
    uint4 words[kSteps][kTiles];
    Products sent;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
#pragma unroll
      for (int tile = 0; tile < kTiles; ++tile) {
        const int column = 8 * tile + group;
        words[step][tile] =
            *reinterpret_cast<const uint4*>(&shared.state[parity][column][place(column, 8 * step + 2 * quad)]);
      }
      sent.add(away.high[step], away.low[step], words[step]);
      home.split(step, rest[step]);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      send(shared.partials[parity][tile][thread], shared.full[parity][warp], way, sent.get(tile));
    }
    float2 sums[2 * kTiles];
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) sums[part] = shared.sums[slot][part][thread];
    const int after = list.find(coming + 1);
    // For want of a next row this one's place is read, which nobody needs: cheaper than a branch.
    if (next < list.end) stage ^= 1;
    wait_for_copies<1>();
    Products kept;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      kept.add(home.high[step], home.low[step], words[step]);
      read_map(stage, step);
      if (after < list.end) copy_map(after, stage, step);
    }
    if (after < list.end) copy_sums(after, slot);
    commit_copies();
    wait_for(shared.full[parity][warp], turn / 2 % 2);
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const float4 other = shared.partials[parity][tile][thread];
      const float4 own = kept.get(tile);
      sums[2 * tile].x += own.x + other.x;
      sums[2 * tile].y += own.z + other.z;
      sums[2 * tile + 1].x += own.y + other.y;
      sums[2 * tile + 1].y += own.w + other.w;
    }
    put_state(parity ^ 1, sums);
#pragma unroll
    for (int part = 0; part < 2 * kTiles; ++part) {
      *reinterpret_cast<float2*>(values + row * row_stride + column(part)) = sums[part];
    }
    held = row;
    row = next;
    next = coming;
    coming = after;
    slot = (slot + 1) % (kStages + 1);
    ++turn;
    sync_cta<K>();
  }
  wait_for_copies<0>();  // of groups without copies
}

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
  sync_cluster();
  const int blocks = value_dim / kColumns;
  const int64_t per_head = static_cast<int64_t>(value_dim + K) * K;
  unsigned turn = 0;
  // Chains that are used come first, so that the clusters share them evenly.
  const int items = chain_count * value_heads * blocks;
  for (int item = static_cast<int>(blockIdx.x) / kBlocks; item < items; item += static_cast<int>(gridDim.x) / kBlocks) {
    const int column = item % blocks * kColumns;
    const int head = item / blocks % value_heads;
    const int* chain = chains + 2 * (item / blocks / value_heads);
    float* state = segment_state + head * per_head + column * K;
    if (rank == 0) {
      join_columns<K, 0>(state, segment_joined + head, chain[0], chain[1], value_heads, value_heads * per_head,
                         (value_dim - column) * K, shared, way, turn);
    } else {
      join_columns<K, 1>(state, segment_joined + head, chain[0], chain[1], value_heads, value_heads * per_head,
                         (value_dim - column) * K, shared, way, turn);
    }
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
