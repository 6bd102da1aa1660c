// CUDA's built-in vector types and launch coordinates, as far as generated kernels use them.
#pragma once

#include <cstdint>
#include <cstring>

using uint = unsigned int;
using uchar = unsigned char;
using ushort = unsigned short;

#define EMU_VECTOR_TYPE(T, NAME)                                     \
  struct NAME##1 { T x; };                                           \
  struct NAME##2 { T x, y; };                                        \
  struct NAME##3 { T x, y, z; };                                     \
  struct NAME##4 { T x, y, z, w; };                                  \
  inline NAME##1 make_##NAME##1(T x) { return {x}; }                 \
  inline NAME##2 make_##NAME##2(T x, T y) { return {x, y}; }         \
  inline NAME##3 make_##NAME##3(T x, T y, T z) { return {x, y, z}; } \
  inline NAME##4 make_##NAME##4(T x, T y, T z, T w) { return {x, y, z, w}; }

EMU_VECTOR_TYPE(signed char, char)
EMU_VECTOR_TYPE(unsigned char, uchar)
EMU_VECTOR_TYPE(short, short)
EMU_VECTOR_TYPE(unsigned short, ushort)
EMU_VECTOR_TYPE(int, int)
EMU_VECTOR_TYPE(unsigned int, uint)
EMU_VECTOR_TYPE(long long, longlong)
EMU_VECTOR_TYPE(unsigned long long, ulonglong)
EMU_VECTOR_TYPE(float, float)
EMU_VECTOR_TYPE(double, double)
#undef EMU_VECTOR_TYPE

using int4_t = int4;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

// Set by the scheduler whenever it switches to another thread or block.
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
constexpr int warpSize = 32;

// Four 16-bit values in two registers each; TileLang builds wide 16-bit vectors this way.
inline uint2 make_uint2_from_halves(ushort a, ushort b, ushort c, ushort d) {
  return {uint(a) | uint(b) << 16, uint(c) | uint(d) << 16};
}
inline uint4 make_uint4(ushort a, ushort b, ushort c, ushort d, ushort e, ushort f, ushort g, ushort h) {
  uint2 low = make_uint2_from_halves(a, b, c, d), high = make_uint2_from_halves(e, f, g, h);
  return {low.x, low.y, high.x, high.y};
}
inline int make_int(signed char a, signed char b, signed char c, signed char d) {
  return int(uint(uchar(a)) | uint(uchar(b)) << 8 | uint(uchar(c)) << 16 | uint(uchar(d)) << 24);
}
inline uint make_uint(uchar a, uchar b, uchar c, uchar d) {
  return uint(a) | uint(b) << 8 | uint(c) << 16 | uint(d) << 24;
}
