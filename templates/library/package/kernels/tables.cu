// Makes the tables of packed sequences (see qla_ops/runtime/metadata.py) in one launch of one block: chunks first, then
// the segments into which sequences are cut, for which it weighs lengths by the formula of qla_ops/runtime/model.py.
//
// Offsets that are out of range or fall back are put right on the way: start at 0, never decrease, end at `tokens` at
// most. What the other kernels read from these tables therefore never leads them outside a tensor.
#include <cuda_runtime.h>
#include <cstdint>
#include <cstdio>

#define TL_EXPORT

constexpr int kThreads = 1024;
constexpr int kLong = 1024;   // sequences that may be cut; with more of them the GPU is full
constexpr int kShares = 1024;
constexpr unsigned kAll = 0xffffffffu;
constexpr int64_t kNever = INT64_MAX;

static char error_buf[256];

// `Weights` of model.py.
struct Weights {
  int forward_chunk, forward_ctas, forward_slots;
  int segment_chunk, segment_alone, state_ctas, map_ctas, segment_slots;
  int join_step, join_ctas, processors;
  int start, share, warm_chunks;
};

// `Cut` of model.py, over the sequences that are cut.
struct Cut {
  int segments, longest, joints, inner, joint_chunks, inner_chunks, warm_chunks, longest_joint, most, chains;
};

__device__ __forceinline__ int rounded_up(int value, int by) { return (value + by - 1) / by; }

// The offset of sequence n, whatever its integer type, within 0 and `tokens`.
__device__ __forceinline__ int read_offset(const int* offsets, int wide, int n, int tokens) {
  if (n == 0) return 0;
  const int64_t value = wide ? reinterpret_cast<const int64_t*>(offsets)[n] : static_cast<int64_t>(offsets[n]);
  return static_cast<int>(value < 0 ? 0 : (value > tokens ? tokens : value));
}

// Running sum or maximum of nonnegative numbers over the threads of the block, and over all of them. The second
// barrier lets the caller use `warps` again.
template <bool Sum>
__device__ __forceinline__ int scan(int value, int* warps, int& total) {
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(threadIdx.x / 32);
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAll, value, distance);
    if (lane >= distance) value = Sum ? value + other : max(value, other);
  }
  if (lane == 31) warps[warp] = value;
  __syncthreads();
  int ends = warps[lane];
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(kAll, ends, distance);
    if (lane >= distance) ends = Sum ? ends + other : max(ends, other);
  }
  __syncthreads();
  total = __shfl_sync(kAll, ends, 31);
  const int before = __shfl_sync(kAll, ends, warp > 0 ? warp - 1 : 0);
  if (warp == 0) return value;
  return Sum ? value + before : max(value, before);
}

__device__ __forceinline__ int warp_sum(int value) {
  for (int bits = 16; bits > 0; bits /= 2) value += __shfl_xor_sync(kAll, value, bits);
  return value;
}

__device__ __forceinline__ int warp_max(int value) {
  for (int bits = 16; bits > 0; bits /= 2) value = max(value, __shfl_xor_sync(kAll, value, bits));
  return value;
}

// How many of the first boundaries after 0 are at `place` or before it.
__device__ __forceinline__ int find(const int* boundaries, int count, int place) {
  int low = 0;
  int high = count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (boundaries[middle + 1] <= place) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// `CANDIDATES` of model.py: 1 to 8, then four in each power of two.
__device__ __forceinline__ int candidate(int index) {
  return index < 8 ? index + 1 : (5 + (index - 8) % 4) << ((index - 8) / 4 + 1);
}

// `span` of model.py.
__device__ __forceinline__ int64_t span(int ctas, int64_t work, int64_t chain, int slots) {
  const int64_t turns = (ctas + slots - 1) / slots * chain;
  if (ctas <= slots || work >= ctas * chain - ctas * chain / 8) return turns;
  return min(turns, max(chain, work / slots + chain / 2));
}

// Nanoseconds of the kernels that depend on the cut, by the formula of model.py. All lanes of a warp come together: half
// of them price the forward kernel, the others the segment kernel, since divisions take their time.
__device__ __forceinline__ int64_t price(const Cut& cut, const Weights& w, int chunks) {
  const int maps = static_cast<int>(static_cast<int64_t>(cut.inner) * w.map_ctas * w.share / kShares);
  int ctas = cut.joints * w.state_ctas + maps;
  const int64_t chunk = ctas <= w.processors ? w.segment_alone : w.segment_chunk;
  const auto work_of = [&](int64_t all, int64_t each) { return all * chunk + each * w.start; };
  const int64_t whole =
      w.state_ctas * work_of(cut.joint_chunks, cut.joints) + w.map_ctas * work_of(cut.inner_chunks, cut.inner);
  const int64_t brief = w.state_ctas * work_of(cut.warm_chunks, cut.joints);
  int64_t work = (w.share * whole + (kShares - w.share) * brief) / kShares;
  int64_t chain = cut.longest_joint * chunk + w.start;
  int slots = w.segment_slots;
  const bool forward = threadIdx.x % 32 < 16;
  if (forward) {
    ctas = cut.segments * w.forward_ctas;
    work = static_cast<int64_t>(chunks) * w.forward_chunk + static_cast<int64_t>(cut.segments) * w.start;
    work *= w.forward_ctas;
    chain = static_cast<int64_t>(cut.longest) * w.forward_chunk + w.start;
    slots = w.forward_slots;
  }
  int64_t time = span(ctas, work, chain, slots);
  if (!forward && cut.joints == 0) time = 0;
  time += __shfl_xor_sync(kAll, static_cast<long long>(time), 16);
  const int joins = static_cast<int>(static_cast<int64_t>(cut.chains) * w.join_ctas * w.share / kShares);
  return time + static_cast<int64_t>(max(cut.most - 2, 0)) * w.join_step * max(1, rounded_up(joins, w.processors));
}

// The sums for segments of `length` chunks at most; the lanes of a warp share the work. `whole` sequences, of `longest`
// chunks at most, are not cut.
__device__ __forceinline__ Cut cut_sequences(const int* lengths, int count, int length, int whole, int longest,
                                             int warm) {
  Cut cut = {};
  cut.longest = longest;
  for (int i = static_cast<int>(threadIdx.x % 32); i < count; i += 32) {
    const int n = max(1, rounded_up(lengths[i], length));
    const int most_chunks = rounded_up(lengths[i], n);
    const int inner = max(n - 2, 0);
    cut.segments += n;
    cut.longest = max(cut.longest, most_chunks);
    cut.joints += n - 1;
    cut.inner += inner;
    cut.joint_chunks += (n - 1) * most_chunks;
    cut.inner_chunks += inner * most_chunks;
    cut.warm_chunks += (n - 1) * min(most_chunks, warm);
    cut.longest_joint = max(cut.longest_joint, n > 1 ? most_chunks : 0);
    cut.most = max(cut.most, n);
    cut.chains += n > 2;
  }
  int* const sums[] = {&cut.segments,     &cut.joints,      &cut.inner, &cut.joint_chunks,
                       &cut.inner_chunks, &cut.warm_chunks, &cut.chains};
  int* const largest[] = {&cut.longest, &cut.longest_joint, &cut.most};
#pragma unroll
  for (int* sum : sums) *sum = warp_sum(*sum);
#pragma unroll
  for (int* most : largest) *most = warp_max(*most);
  cut.segments += whole;
  return cut;
}

// The chunks per segment of the cheapest cut into `segments` at most, the longest on a tie.
__device__ __forceinline__ int choose_length(const int* chunk_at, int sequences, int segments, int longest,
                                             const Weights& weights, int* warps) {
  __shared__ int lengths[1024];
  __shared__ int kept[1];  // how many sequences are in `lengths`
  __shared__ long long prices[32];
  const int thread = static_cast<int>(threadIdx.x);
  const int chunks = chunk_at[sequences];
  // No cut into segments of `length` has fewer than chunks / length of them. Sequences that no possible cut divides
  // need no second look.
  const int length = max(1, rounded_up(longest, candidate(thread % 32)));
  const bool possible = static_cast<int64_t>(length) * segments >= chunks;
  const int shortest = -warp_max(possible ? -length : -longest - 1);
  if (thread == 0) kept[0] = 0;
  __syncthreads();
  int longest_of_thread = 0;
  for (int n = thread; n < sequences; n += kThreads) {
    const int own = chunk_at[n + 1] - chunk_at[n];
    if (own <= shortest) {
      longest_of_thread = max(longest_of_thread, own);
    } else {
      const int place = atomicAdd(&kept[0], 1);
      if (place < kLong) lengths[place] = own;
    }
  }
  int longest_whole = 0;
  scan<false>(longest_of_thread, warps, longest_whole);
  if (kept[0] > kLong) return max(1, longest);
  const int tried = __shfl_sync(kAll, length, thread / 32);
  long long price_of_warp = kNever;
  if (__shfl_sync(kAll, static_cast<int>(possible), thread / 32)) {
    const Cut cut = cut_sequences(lengths, kept[0], tried, sequences - kept[0], longest_whole, weights.warm_chunks);
    if (cut.segments <= segments) price_of_warp = price(cut, weights, chunks);
  }
  if (thread % 32 == 0) prices[thread / 32] = price_of_warp;
  __syncthreads();
  int best = 0;
  for (int index = 1; index < 32; ++index) {
    if (prices[index] < prices[best]) best = index;
  }
  return max(1, rounded_up(longest, candidate(best)));
}

// Segments of all sequences, of `length` chunks at most.
__device__ __forceinline__ int count_segments(const int* chunk_at, int sequences, int length) {
  __shared__ int total[1];
  int own = 0;
  for (int n = static_cast<int>(threadIdx.x); n < sequences; n += kThreads) {
    own += max(1, rounded_up(chunk_at[n + 1] - chunk_at[n], length));
  }
  if (threadIdx.x == 0) total[0] = 0;
  __syncthreads();
  own = warp_sum(own);
  if (threadIdx.x % 32 == 0) atomicAdd(&total[0], own);
  __syncthreads();
  return total[0];
}

// Offsets of sequences in tokens and in chunks. Returns the chunks of the longest sequence.
__device__ __forceinline__ int make_offsets(const int* given, int* token_at, int* chunk_at, int wide, int sequences,
                                            int tokens, int chunk, int* warps) {
  __shared__ int ends[1024];
  const int thread = static_cast<int>(threadIdx.x);
  int end_before = 0;
  int chunks_before = 0;
  int longest = 0;
  // Boundaries in groups of one per thread: first the running maximum of the offsets, then the running sum of chunks.
  for (int group = 0; group <= sequences; group += kThreads) {
    const int n = group + thread;
    int last = 0;
    int total = 0;
    const int end = max(scan<false>(n <= sequences ? read_offset(given, wide, n, tokens) : 0, warps, last), end_before);
    ends[thread] = end;
    __syncthreads();
    // Sequence n - 1 ends at boundary n.
    const int own = n <= sequences ? rounded_up(end - (thread == 0 ? end_before : ends[thread - 1]), chunk) : 0;
    longest = max(longest, own);
    const int chunks = scan<true>(own, warps, total);
    if (n <= sequences) {
      token_at[n] = end;
      chunk_at[n] = chunks_before + chunks;
    }
    end_before = max(end_before, last);
    chunks_before += total;
  }
  int longest_of_all = 0;
  scan<false>(longest, warps, longest_of_all);
  return longest_of_all;
}

// Offsets of sequences in segments, and chains.
__device__ __forceinline__ void cut(const int* chunk_at, int* segment_at, int* chains, int sequences, int chain_count,
                                    int parts, int length, int* warps) {
  const int thread = static_cast<int>(threadIdx.x);
  int segments_before = 0;
  int chains_before = 0;
  for (int group = 0; group < sequences; group += kThreads) {
    const int n = group + thread;
    const int chunks = n < sequences ? chunk_at[n + 1] - chunk_at[n] : 0;
    const int own = n < sequences ? max(1, parts > 0 ? min(parts, chunks) : rounded_up(chunks, length)) : 0;
    int total = 0;
    const int segments = segments_before + scan<true>(own, warps, total);
    segments_before += total;
    const int chain = chains_before + scan<true>(own > 2, warps, total) - 1;
    chains_before += total;
    if (n < sequences) segment_at[n + 1] = segments;
    if (own > 2 && chain < chain_count) {
      chains[2 * chain] = segments - own - n;
      chains[2 * chain + 1] = own - 1;
    }
  }
  if (thread == 0) segment_at[0] = 0;
  for (int chain = chains_before + thread; chain < chain_count; chain += kThreads) {
    chains[2 * chain] = chains[2 * chain + 1] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1) tables_kernel(
    const int* given, int* cu_seqlens, int* chunk_offsets, int* chunk_first, int* chunk_rows, int* sequence_segments,
    int* segment_offsets, int* segment_chunks, int* segment_sequence, int* chains, int wide, int sequences, int tokens,
    int chunk, int chunk_count, int segments, int chain_count, int parts, int length, Weights weights) {
  cudaGridDependencySynchronize();
  // Where sequences are cut, a prepare kernel that starts before this one's first load is back takes 4 to 11 us longer on
  // an H200, why is not known. The comparison always holds, once the load is there.
  if (segments == sequences || read_offset(given, wide, 1, tokens) >= 0) cudaTriggerProgrammaticLaunchCompletion();
  __shared__ int warps[32];
  // Copies of short tables, which are read again and again.
  __shared__ int tokens_kept[1024];
  __shared__ int chunks_kept[1024];
  __shared__ int segments_kept[1024];
  const bool small = sequences < kThreads;
  int* token_at = small ? tokens_kept : cu_seqlens;
  int* chunk_at = small ? chunks_kept : chunk_offsets;
  int* segment_at = small ? segments_kept : sequence_segments;
  const int thread = static_cast<int>(threadIdx.x);
  const int longest = make_offsets(given, token_at, chunk_at, wide, sequences, tokens, chunk, warps);
  __syncthreads();
  if (small && thread <= sequences) {
    cu_seqlens[thread] = token_at[thread];
    chunk_offsets[thread] = chunk_at[thread];
  }
  for (int slot = thread; slot < chunk_count; slot += kThreads) {
    const int n = find(chunk_at, sequences, slot);
    const int first = n < sequences ? token_at[n] + (slot - chunk_at[n]) * chunk : 0;
    chunk_first[slot] = first;
    chunk_rows[slot] = n < sequences ? min(chunk, token_at[n + 1] - first) : 0;
  }
  // The host may know the length; what it took for the sequences may have changed since.
  if (parts == 0 && (length == 0 || count_segments(chunk_at, sequences, length) > segments)) {
    length = choose_length(chunk_at, sequences, segments, longest, weights, warps);
  }
  cut(chunk_at, segment_at, chains, sequences, chain_count, parts, length, warps);
  __syncthreads();
  for (int segment = thread; segment <= segments; segment += kThreads) {
    const int n = find(segment_at, sequences, segment);
    int start = chunk_at[n];
    int token = token_at[n];
    if (n < sequences) {
      const int64_t before_times_parts = static_cast<int64_t>(segment - segment_at[n]) * (chunk_at[n + 1] - start);
      const int own = segment_at[n + 1] - segment_at[n];
      const int before = before_times_parts <= INT32_MAX ? static_cast<int>(before_times_parts) / own
                                                         : static_cast<int>(before_times_parts / own);
      start += before;
      token = min(token + before * chunk, token_at[n + 1]);
    }
    segment_offsets[segment] = token;
    segment_chunks[segment] = start;
    if (segment < segments) segment_sequence[segment] = n < sequences ? n : -1;
  }
}

extern "C" TL_EXPORT const char* get_last_error() { return error_buf; }

extern "C" TL_EXPORT int init() { return 0; }

extern "C" TL_EXPORT int call(int* given, int* cu_seqlens, int* chunk_offsets, int* chunk_first, int* chunk_rows,
    int* sequence_segments, int* segment_offsets, int* segment_chunks, int* segment_sequence, int* chains, int wide,
    int sequences, int tokens, int chunk, int chunk_count, int segments, int chain_count, int parts, int length, int
    forward_chunk, int forward_ctas, int forward_slots, int segment_chunk, int segment_alone, int state_ctas, int
    map_ctas, int segment_slots, int join_step, int join_ctas, int processors, int start, int share, int
    warm_chunks, cudaStream_t stream) {
  const Weights weights = {forward_chunk, forward_ctas, forward_slots, segment_chunk, segment_alone, state_ctas,
                           map_ctas, segment_slots, join_step, join_ctas, processors, start, share,
                           warm_chunks};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(1, 1, 1);
  config.blockDim = dim3(kThreads, 1, 1);
  config.dynamicSmemBytes = 0;
  config.stream = stream;
  cudaError_t status = cudaLaunchKernelEx(&config, tables_kernel, given, cu_seqlens, chunk_offsets, chunk_first,
      chunk_rows, sequence_segments, segment_offsets, segment_chunks, segment_sequence, chains, wide, sequences,
      tokens, chunk, chunk_count, segments, chain_count, parts, length, weights);
  if (status != cudaSuccess) {
    snprintf(error_buf, sizeof(error_buf), "tables_kernel: %s", cudaGetErrorString(status));
    return -1;
  }
  return 0;
}
