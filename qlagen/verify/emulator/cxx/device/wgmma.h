// Warpgroup matrix multiply (wgmma.mma_async) with A in registers or shared memory and B in shared memory.
#pragma once

#include "execution.h"

namespace tl {

// The subset of TileLang's type tags that wgmma and mma take here; the numbers are the emulator's own.
enum class DataType {
  kFloat16,
  kBFloat16,
  kFloat32,
  kTensorFloat32,
  kInt8,
  kUInt8,
  kInt32,
  kFloat8_e4m3,
  kFloat8_e5m2,
  kFloat64
};

// 64-bit shared-memory matrix descriptor: start address (14 bits, units of 16 bytes), leading and stride byte offsets
// (14 bits each at 16 and 32, same units), layout type at 62 (0 none, 1 128-byte, 2 64-byte, 3 32-byte swizzle).
struct GmmaDescriptor {
  uint64_t bits = 0;
  operator uint64_t() const { return bits; }
  template <class T>
  GmmaDescriptor operator+(T offset) const {
    uint32_t low = uint32_t(bits) + uint32_t(offset);  // as on the GPU, only the low word moves
    return {(bits & 0xffffffff00000000ull) | low};
  }
};

template <int Layout, int LeadingOffset, int StrideOffset, class T>
inline void initialize_wgmma_descriptor(GmmaDescriptor& descriptor, T* start) {
  descriptor.bits = uint64_t(emu::shared_offset(start) >> 4) | uint64_t(LeadingOffset) << 16 |
                    uint64_t(StrideOffset) << 32 | uint64_t(Layout) << 62;
}
template <class T>
inline void increase_descriptor_offset(GmmaDescriptor& descriptor, T offset) {
  descriptor = descriptor + (offset >> 4);
}

}  // namespace tl

namespace emu {

struct WgmmaShape {
  tl::DataType operand, accumulator;
  int n, k;
  bool a_mn_major, b_mn_major, negative_a, negative_b;
};

// One wgmma of one thread: `a_registers` is null when A comes from shared memory (descriptor `a`). The thread's share
// of the accumulator is `accumulator`. Nothing is read before commit (eager) or wait (lazy).
void wgmma_issue(const WgmmaShape& shape, const uint32_t* a_registers, uint64_t a, uint64_t b, uint32_t* accumulator,
                 bool accumulate);
void wgmma_commit();
void wgmma_wait(int groups_left);
void set_max_registers(int count, bool increase);
// Blocks per multiprocessor that the launch bounds of a library's kernel ask for: they share the registers. The source
// of the kernel defines it.
extern const int blocks_at_once;

template <tl::DataType A, tl::DataType B, tl::DataType C, int M, int N, int K>
constexpr void check_wgmma() {
  using D = tl::DataType;
  constexpr bool half = A == D::kFloat16 || A == D::kBFloat16, tf32 = A == D::kTensorFloat32;
  static_assert(A == B, "the emulator's wgmma wants both operands of one type");
  static_assert(half || tf32, "the emulator's wgmma takes float16, bfloat16 and tfloat32 operands");
  static_assert(C == D::kFloat32 || (A == D::kFloat16 && C == D::kFloat16),
                "wgmma accumulates in float32 (or float16 from float16)");
  static_assert(M == 64 && N % 8 == 0 && N >= 8 && N <= 256 && K == (tf32 ? 8 : 16), "not a wgmma shape");
}

}  // namespace emu

namespace tl {

template <DataType A, DataType B, DataType C, int M, int N, int K, bool TransposeA, bool TransposeB, int ScaleA = 1,
          int ScaleB = 1>
inline void wgmma_ss(uint64_t a, uint64_t b, uint32_t* accumulator, bool accumulate) {
  emu::check_wgmma<A, B, C, M, N, K>();
  static constexpr emu::WgmmaShape shape{A, C, N, K, TransposeA, TransposeB, ScaleA < 0, ScaleB < 0};
  emu::wgmma_issue(shape, nullptr, a, b, accumulator, accumulate);
}
template <DataType A, DataType B, DataType C, int M, int N, int K, bool TransposeA, bool TransposeB, int ScaleA = 1,
          int ScaleB = 1>
inline void wgmma_rs(const uint32_t* a, uint64_t b, uint32_t* accumulator, bool accumulate) {
  emu::check_wgmma<A, B, C, M, N, K>();
  static_assert(!TransposeA, "A in registers is K-major");
  static constexpr emu::WgmmaShape shape{A, C, N, K, false, TransposeB, ScaleA < 0, ScaleB < 0};
  emu::wgmma_issue(shape, a, 0, b, accumulator, accumulate);
}

// wgmma.fence orders register use of the issuing thread only.
inline void warpgroup_arrive() { emu::preemption_point(); }
inline void warpgroup_commit_batch() { emu::wgmma_commit(); }
template <int Groups>
inline void warpgroup_wait() {
  emu::wgmma_wait(Groups);
}
template <int Groups>
inline void wait_wgmma() {
  emu::wgmma_wait(Groups);
}
template <class T>
inline void warpgroup_fence_operand(T* registers, int) {
  asm volatile("" : : "r"(registers) : "memory");
}

// setmaxnreg: takes registers from, or gives them back to, the block's pool; an increase waits until the pool has
// enough.
template <uint32_t Count>
inline void warpgroup_reg_alloc() {
  emu::set_max_registers(Count, true);
}
template <uint32_t Count>
inline void warpgroup_reg_dealloc() {
  emu::set_max_registers(Count, false);
}

}  // namespace tl
