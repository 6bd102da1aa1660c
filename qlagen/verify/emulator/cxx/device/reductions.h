// Reductions over threads and scans along a line, with the interfaces TileLang generates for T.reduce and T.cumsum.
#pragma once

#include <limits>
#include <type_traits>

#include "barriers.h"
#include "math_functions.h"
#include "shuffles.h"

namespace tl {

struct SumOp {
  template <class T>
  T operator()(T a, T b) const {
    return a + b;
  }
};
struct MaxOp {
  template <class T>
  T operator()(T a, T b) const {
    return max(a, b);
  }
};
struct MinOp {
  template <class T>
  T operator()(T a, T b) const {
    return min(a, b);
  }
};
struct MaxOpNan : MaxOp {};
struct MinOpNan : MinOp {};
struct BitAndOp {
  template <class T>
  T operator()(T a, T b) const {
    return a & b;
  }
};
struct BitOrOp {
  template <class T>
  T operator()(T a, T b) const {
    return a | b;
  }
};
struct BitXorOp {
  template <class T>
  T operator()(T a, T b) const {
    return a ^ b;
  }
};
#define EMU_PAIR_REDUCER(NAME, PAIR, FUNCTION)                                                                        \
  struct NAME {                                                                                                       \
    uint1 operator()(uint1 a, uint1 b) const { return to_uint1(FUNCTION(from_uint1<PAIR>(a), from_uint1<PAIR>(b))); } \
  };
EMU_PAIR_REDUCER(SumOp_bf16x2, __nv_bfloat162, add2)
EMU_PAIR_REDUCER(MaxOp_bf16x2, __nv_bfloat162, max2)
EMU_PAIR_REDUCER(MinOp_bf16x2, __nv_bfloat162, min2)
EMU_PAIR_REDUCER(SumOp_fp16x2, __half2, add2)
EMU_PAIR_REDUCER(MaxOp_fp16x2, __half2, max2)
EMU_PAIR_REDUCER(MinOp_fp16x2, __half2, min2)
#undef EMU_PAIR_REDUCER
struct SumOp_f32x2 {
  float2 operator()(float2 a, float2 b) const { return add2(a, b); }
};
struct MaxOp_f32x2 {
  float2 operator()(float2 a, float2 b) const { return max2(a, b); }
};
struct MinOp_f32x2 {
  float2 operator()(float2 a, float2 b) const { return min2(a, b); }
};

struct SyncThreadsBarrier {
  template <int Phase = 0>
  static void sync() {
    __syncthreads();
  }
};
template <int Threads>
struct NamedBarrier {
  template <int Phase = 1>
  static void sync() {
    __sync_thread_partial(Phase, Threads);
  }
};

// Butterfly over thread distances Threads/2 .. Scale: through shared memory across warps, by shuffles within a warp.
template <class Reducer, int Threads, int Scale, int Offset = 0, class Barriers = SyncThreadsBarrier, int Batch = 1,
          int Stride = 0>
struct AllReduce {
  template <class T>
  static T run(T value, T* workspace = nullptr) {
    step(&value, workspace, 1);
    return value;
  }
  template <class T>
  static void run_batch(T* values, T* workspace = nullptr) {
    step(values, workspace, Batch);
  }

 private:
  template <class T>
  static void step(T* values, T* workspace, int count) {
    const int me = int(threadIdx.x) - Offset;
    for (int distance = Threads / 2; distance >= Scale; distance /= 2) {
      if (distance >= 32) {
        Barriers::template sync<1>();
        for (int i = 0; i < count; ++i) workspace[me + i * Stride] = values[i];
        Barriers::template sync<2>();
        for (int i = 0; i < count; ++i) values[i] = Reducer()(values[i], workspace[(me ^ distance) + i * Stride]);
      } else {
        for (int i = 0; i < count; ++i)
          values[i] = Reducer()(values[i], __shfl_xor_sync(emu::kFullMask, values[i], distance));
      }
    }
  }
};

template <class T, class Reducer>
inline T warp_reduce(T value, Reducer reduce) {
  for (int distance = 16; distance >= 1; distance /= 2)
    value = reduce(value, __shfl_xor_sync(emu::kFullMask, value, distance));
  return value;
}
template <class T>
inline T warp_reduce_sum(T value) {
  return warp_reduce(value, SumOp());
}
template <class T>
inline T warp_reduce_max(T value) {
  return warp_reduce(value, MaxOp());
}
template <class T>
inline T warp_reduce_min(T value) {
  return warp_reduce(value, MinOp());
}
template <class T>
inline T warp_reduce_bitand(T value) {
  return warp_reduce(value, BitAndOp());
}
template <class T>
inline T warp_reduce_bitor(T value) {
  return warp_reduce(value, BitOrOp());
}

// Inclusive scan of one line by one warp, 32 elements at a time with a carry; `Reverse` scans from the end.
template <class Reducer, bool Reverse, class T>
inline void scan_line(const T* source, T* target, int extent, int stride, T identity) {
  const int segments = (extent + 31) / 32, me = emu::lane();
  T carry = identity;
  for (int s = 0; s < segments; ++s) {
    const int index = (Reverse ? segments - 1 - s : s) * 32 + me;
    T value = index < extent ? source[index * stride] : identity;
    for (int distance = 1; distance < 32; distance *= 2) {
      T other =
          Reverse ? shfl_down_sync(emu::kFullMask, value, distance) : shfl_up_sync(emu::kFullMask, value, distance);
      if (Reverse ? me + distance < 32 : me >= distance) value = Reducer()(value, other);
    }
    value = Reducer()(value, carry);
    if (index < extent) target[index * stride] = value;
    carry = shfl_sync(emu::kFullMask, value, Reverse ? 0 : 31);
  }
}

template <class Reducer, int Threads, bool Reverse>
struct Scan1D {
  template <class T, int Segment = 32>
  static void run(const T* source, T* target, int extent) {
    if (threadIdx.x < 32) scan_line<Reducer, Reverse>(source, target, extent, 1, identity<T>());
  }
  template <class T>
  static T identity() {
    return std::is_same_v<Reducer, SumOp> ? T(0.0f) : T(-INFINITY);
  }
};
template <class Reducer, int Threads, int Axis, bool Reverse>
struct Scan2D {
  template <class T, int Segment = 32>
  static void run(const T* source, T* target, int rows, int columns, int source_stride, int target_stride) {
    static_assert(Axis == 0 || Axis == 1);
    const int lines = Axis == 1 ? rows : columns;
    for (int line = int(threadIdx.x) / 32; line < lines; line += Threads / 32) {
      const T* from = source + (Axis == 1 ? line * source_stride : line);
      T* to = target + (Axis == 1 ? line * target_stride : line);
      if (Axis == 0 && source_stride != target_stride)
        emu::fail("UNMODELLED", "column scan between different row strides");
      scan_line<Reducer, Reverse>(from, to, Axis == 1 ? columns : rows, Axis == 1 ? 1 : source_stride,
                                  Scan1D<Reducer, Threads, Reverse>::template identity<T>());
    }
  }
};
template <int Threads, bool Reverse = false>
struct CumSum1D : Scan1D<SumOp, Threads, Reverse> {};
template <int Threads, int Axis = 0, bool Reverse = false>
struct CumSum2D : Scan2D<SumOp, Threads, Axis, Reverse> {};
template <int Threads, bool Reverse = false>
struct CumMax1D : Scan1D<MaxOp, Threads, Reverse> {};
template <int Threads, int Axis = 0, bool Reverse = false>
struct CumMax2D : Scan2D<MaxOp, Threads, Axis, Reverse> {};

}  // namespace tl
