// bfloat16 and IEEE half with round-to-nearest-even, and the CUDA and CUTLASS names kernels use for them.
#pragma once

#include <cmath>

#include "vector_types.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace emu {

template <class To, class From>
inline To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

inline float bfloat16_to_float(uint16_t bits) { return bit_cast<float>(uint32_t(bits) << 16); }

inline uint16_t float_to_bfloat16(float value) {
  if (value != value) return 0x7fff;
  uint32_t bits = bit_cast<uint32_t>(value);
  return uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

#if defined(__F16C__)
inline float half_to_float(uint16_t bits) { return _cvtsh_ss(bits); }
inline uint16_t float_to_half(float value) { return uint16_t(_cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT)); }
#else
inline float half_to_float(uint16_t bits) {
  uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = (bits >> 10) & 31, mantissa = bits & 0x3ff;
  if (exponent == 0) return bit_cast<float>(sign | bit_cast<uint32_t>(float(mantissa) * 0x1p-24f));
  if (exponent == 31) return bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  return bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}
inline uint16_t float_to_half(float value) {
  uint32_t bits = bit_cast<uint32_t>(value), sign = (bits >> 16) & 0x8000, magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return 0x7fff;
  if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // 65520 and above round to infinity
  if (magnitude < 0x38800000) {                                 // subnormal: steps of 2^-24, rounded by the addition
    float shifted = bit_cast<float>(magnitude) + 0.5f;
    return uint16_t(sign | (bit_cast<uint32_t>(shifted) - bit_cast<uint32_t>(0.5f)));
  }
  return uint16_t(sign | ((magnitude - 0x38000000 + 0xfff + ((magnitude >> 13) & 1)) >> 13));
}
#endif

}  // namespace emu

#define EMU_FLOAT16_TYPE(NAME, TO_FLOAT, FROM_FLOAT)                                   \
  struct NAME {                                                                        \
    uint16_t bits;                                                                     \
    NAME() = default;                                                                  \
    explicit NAME(float value) : bits(FROM_FLOAT(value)) {}                            \
    explicit NAME(double value) : bits(FROM_FLOAT(float(value))) {}                    \
    explicit NAME(int value) : bits(FROM_FLOAT(float(value))) {}                       \
    explicit NAME(unsigned value) : bits(FROM_FLOAT(float(value))) {}                  \
    operator float() const { return TO_FLOAT(bits); }                                  \
    NAME& operator+=(NAME other) { return *this = NAME(float(*this) + float(other)); } \
    NAME& operator-=(NAME other) { return *this = NAME(float(*this) - float(other)); } \
    NAME& operator*=(NAME other) { return *this = NAME(float(*this) * float(other)); } \
    NAME& operator/=(NAME other) { return *this = NAME(float(*this) / float(other)); } \
    NAME to_half() const { return *this; }                                             \
    NAME to_nv_bfloat16() const { return *this; }                                      \
  };                                                                                   \
  inline NAME operator+(NAME a, NAME b) { return a += b; }                             \
  inline NAME operator-(NAME a, NAME b) { return a -= b; }                             \
  inline NAME operator*(NAME a, NAME b) { return a *= b; }                             \
  inline NAME operator/(NAME a, NAME b) { return a /= b; }                             \
  inline NAME operator-(NAME a) { return NAME(-float(a)); }                            \
  inline NAME __hadd(NAME a, NAME b) { return a + b; }                                 \
  inline NAME __hsub(NAME a, NAME b) { return a - b; }                                 \
  inline NAME __hmul(NAME a, NAME b) { return a * b; }                                 \
  inline NAME __hdiv(NAME a, NAME b) { return a / b; }                                 \
  inline NAME __hadd_rn(NAME a, NAME b) { return a + b; }                              \
  inline NAME __hsub_rn(NAME a, NAME b) { return a - b; }                              \
  inline NAME __hmul_rn(NAME a, NAME b) { return a * b; }                              \
  inline NAME __hfma(NAME a, NAME b, NAME c) { return NAME(fmaf(a, b, c)); }           \
  inline NAME __habs(NAME a) { return NAME(fabsf(a)); }                                \
  inline NAME __hmax(NAME a, NAME b) { return NAME(fmaxf(a, b)); }                     \
  inline NAME __hmin(NAME a, NAME b) { return NAME(fminf(a, b)); }                     \
  inline NAME __hmax_nan(NAME a, NAME b) {                                             \
    return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmax(a, b);         \
  }                                                                                    \
  inline NAME __hmin_nan(NAME a, NAME b) {                                             \
    return float(a) != float(a) ? a : float(b) != float(b) ? b : __hmin(a, b);         \
  }                                                                                    \
  inline NAME max(NAME a, NAME b) { return __hmax(a, b); }                             \
  inline NAME min(NAME a, NAME b) { return __hmin(a, b); }                             \
  inline NAME hexp(NAME a) { return NAME(expf(a)); }                                   \
  inline NAME hexp2(NAME a) { return NAME(exp2f(a)); }                                 \
  inline NAME hlog(NAME a) { return NAME(logf(a)); }                                   \
  inline NAME hlog2(NAME a) { return NAME(log2f(a)); }                                 \
  inline NAME hsqrt(NAME a) { return NAME(sqrtf(a)); }                                 \
  inline NAME hrsqrt(NAME a) { return NAME(1.0f / sqrtf(a)); }                         \
  inline NAME hrcp(NAME a) { return NAME(1.0f / float(a)); }                           \
  inline NAME htanh(NAME a) { return NAME(tanhf(a)); }                                 \
  inline NAME hfloor(NAME a) { return NAME(floorf(a)); }                               \
  inline NAME hceil(NAME a) { return NAME(ceilf(a)); }                                 \
  inline NAME htrunc(NAME a) { return NAME(truncf(a)); }                               \
  inline NAME hrint(NAME a) { return NAME(rintf(a)); }

EMU_FLOAT16_TYPE(bfloat16_t, emu::bfloat16_to_float, emu::float_to_bfloat16)
EMU_FLOAT16_TYPE(half_t, emu::half_to_float, emu::float_to_half)
#undef EMU_FLOAT16_TYPE

using __nv_bfloat16 = bfloat16_t;
using nv_bfloat16 = bfloat16_t;
using __half = half_t;
using half = half_t;
namespace cutlass {
using ::bfloat16_t;
using ::half_t;
}  // namespace cutlass

struct __nv_bfloat162 {
  bfloat16_t x, y;
};
struct __half2 {
  half_t x, y;
};
using nv_bfloat162 = __nv_bfloat162;
using half2 = __half2;

inline float __bfloat162float(bfloat16_t a) { return a; }
inline bfloat16_t __float2bfloat16(float a) { return bfloat16_t(a); }
inline bfloat16_t __float2bfloat16_rn(float a) { return bfloat16_t(a); }
inline float2 __bfloat1622float2(__nv_bfloat162 a) { return {a.x, a.y}; }
inline __nv_bfloat162 __float22bfloat162_rn(float2 a) { return {bfloat16_t(a.x), bfloat16_t(a.y)}; }
inline __nv_bfloat162 __floats2bfloat162_rn(float a, float b) { return {bfloat16_t(a), bfloat16_t(b)}; }
inline __nv_bfloat162 __bfloat162bfloat162(bfloat16_t a) { return {a, a}; }
inline float __half2float(half_t a) { return a; }
inline half_t __float2half(float a) { return half_t(a); }
inline half_t __float2half_rn(float a) { return half_t(a); }
inline float2 __half22float2(__half2 a) { return {a.x, a.y}; }
inline __half2 __float22half2_rn(float2 a) { return {half_t(a.x), half_t(a.y)}; }
inline __half2 __floats2half2_rn(float a, float b) { return {half_t(a), half_t(b)}; }

inline unsigned __pack_half2(half_t a, half_t b) { return a.bits | unsigned(b.bits) << 16; }
inline unsigned __pack_half2(bfloat16_t a, bfloat16_t b) { return a.bits | unsigned(b.bits) << 16; }
inline unsigned __pack_nv_bfloat162(bfloat16_t a, bfloat16_t b) { return a.bits | unsigned(b.bits) << 16; }

// Element-wise operations on pairs; tl:: spells them op2.
#define EMU_PAIR_OPERATION(NAME, EXPRESSION)                         \
  template <class P>                                                 \
  inline P NAME(P a, P b) {                                          \
    using E = decltype(a.x);                                         \
    auto operation = [](float u, float v) { return E(EXPRESSION); }; \
    return {operation(a.x, b.x), operation(a.y, b.y)};               \
  }
namespace tl {
EMU_PAIR_OPERATION(add2, u + v)
EMU_PAIR_OPERATION(sub2, u - v)
EMU_PAIR_OPERATION(mul2, u* v)
EMU_PAIR_OPERATION(max2, fmaxf(u, v))
EMU_PAIR_OPERATION(min2, fminf(u, v))
EMU_PAIR_OPERATION(max2_nan, u != u || v != v ? NAN : fmaxf(u, v))
EMU_PAIR_OPERATION(min2_nan, u != u || v != v ? NAN : fminf(u, v))
#undef EMU_PAIR_OPERATION
template <class P>
inline P fma2(P a, P b, P c) {
  using E = decltype(a.x);
  return {E(fmaf(a.x, b.x, c.x)), E(fmaf(a.y, b.y, c.y))};
}
template <class P>
inline P abs2(P a) {
  using E = decltype(a.x);
  return {E(fabsf(a.x)), E(fabsf(a.y))};
}

// TileLang stores a pair of 16-bit floats as uint1.
template <class T>
inline T from_uint1(uint1 value) {
  return emu::bit_cast<T>(value);
}
template <class T>
inline uint1 to_uint1(T value) {
  return emu::bit_cast<uint1>(value);
}
inline uint1 pack_half2(half_t a, half_t b) { return {__pack_half2(a, b)}; }
}  // namespace tl
