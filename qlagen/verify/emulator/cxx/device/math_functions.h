// Device mathematics. Fast-math spellings map to the accurate host functions: the emulator checks what a kernel
// computes, not the last bits of an approximation.
#pragma once

#include <cmath>

#include "float16.h"

#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF HUGE_VAL
#define CUDART_NAN double(NAN)

// Macros, because glibc declares some of these names for itself.
#define __expf(x) expf(x)
#define __exp2f(x) exp2f(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __powf(x, y) powf(x, y)
#define __fdividef(x, y) ((x) / (y))
#define __frcp_rn(x) (1.0f / (x))
#define __fsqrt_rn(x) sqrtf(x)
#define __frsqrt_rn(x) (1.0f / sqrtf(x))
#define __fmaf_rn(x, y, z) fmaf(x, y, z)
#define __fadd_rn(x, y) ((x) + (y))
#define __fsub_rn(x, y) ((x) - (y))
#define __fmul_rn(x, y) ((x) * (y))
#define __fdiv_rn(x, y) ((x) / (y))

inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }

inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
#define EMU_INTEGER_MIN_MAX(T)                     \
  inline T max(T a, T b) { return a < b ? b : a; } \
  inline T min(T a, T b) { return b < a ? b : a; }
EMU_INTEGER_MIN_MAX(int)
EMU_INTEGER_MIN_MAX(unsigned)
EMU_INTEGER_MIN_MAX(long)
EMU_INTEGER_MIN_MAX(unsigned long)
EMU_INTEGER_MIN_MAX(long long)
EMU_INTEGER_MIN_MAX(unsigned long long)
#undef EMU_INTEGER_MIN_MAX

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __ffsll(long long x) { return __builtin_ffsll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __float_as_int(float x) { return emu::bit_cast<int>(x); }
inline float __int_as_float(int x) { return emu::bit_cast<float>(x); }
inline unsigned __float_as_uint(float x) { return emu::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return emu::bit_cast<float>(x); }
template <class T>
inline T __ldg(const T* pointer) {
  return *pointer;
}

namespace tl {
inline float fast_rcp(float x) { return 1.0f / x; }
template <class T>
inline T fast_max(T a, T b) {
  return a < b ? b : a;
}
template <>
inline float fast_max(float a, float b) {
  return fmaxf(a, b);
}
template <class T>
inline T fast_min(T a, T b) {
  return b < a ? b : a;
}
template <>
inline float fast_min(float a, float b) {
  return fminf(a, b);
}
template <class T>
inline T clamp(T x, T low, T high) {
  if (float(x) != float(x)) return x;
  return T(fminf(fmaxf(float(x), float(low)), float(high)));
}
template <int Power = 1, class T>
inline T pow_of_int(T x) {
  T result = x;
  for (int i = 1; i < Power; ++i) result *= x;
  return result;
}
template <class V, class U>
inline V broadcast(const U unit) {
  static_assert(sizeof(V) % sizeof(U) == 0);
  V result;
  for (size_t i = 0; i < sizeof(V) / sizeof(U); ++i)
    std::memcpy(reinterpret_cast<char*>(&result) + i * sizeof(U), &unit, sizeof(U));
  return result;
}
template <class V, class E, class... Rest>
inline V make_vec(const E first, const Rest... rest) {
  const E values[] = {first, static_cast<E>(rest)...};
  return emu::bit_cast<V>(values);
}
}  // namespace tl
