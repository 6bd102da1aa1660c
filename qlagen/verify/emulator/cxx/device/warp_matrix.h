// mma.sync, ldmatrix and stmatrix: matrix work of one warp.
#pragma once

#include "wgmma.h"

namespace emu {

struct MmaShape {
  tl::DataType operand, accumulator;
  int k;
};
// mma.sync.m16n8: all four fragments lie in registers; D = A B + C.
void mma(const MmaShape& shape, void* d, const void* a, const void* b, const void* c);

// ldmatrix / stmatrix of `count` 8x8 matrices of 16-bit elements. Lane 8 i + r gives the address of row r of matrix i;
// register i of lane l holds elements (l / 4, 2 (l % 4) ..+1) of matrix i, or the transposed place.
void load_matrix(const void* row, uint32_t* registers, int count, bool transposed);
void store_matrix(const void* row, const uint32_t* registers, int count, bool transposed);

}  // namespace emu

namespace tl {

template <DataType A, DataType B, DataType C, int M, int N, int K, bool TransposeA, bool TransposeB,
          bool Saturate = false>
inline void mma_sync(void* d, const void* a, const void* b, const void* c) {
  constexpr bool half = A == DataType::kFloat16 || A == DataType::kBFloat16, tf32 = A == DataType::kTensorFloat32;
  static_assert(A == B && (half || tf32),
                "the emulator's mma takes float16, bfloat16 and tfloat32 operands of one type");
  static_assert(C == DataType::kFloat32 || (A == DataType::kFloat16 && C == DataType::kFloat16));
  static_assert(M == 16 && N == 8 && (K == 16 || K == 8 || (tf32 && K == 4)) && !(tf32 && K == 16), "not an mma shape");
  static_assert(!TransposeA && TransposeB && !Saturate, "mma.sync has A row-major and B column-major");
  static constexpr emu::MmaShape shape{A, C, K};
  emu::mma(shape, d, a, b, c);
}
template <DataType A, DataType B, DataType C, int M, int N, int K, bool TransposeA, bool TransposeB,
          bool Saturate = false>
inline void mma_sync(void* c, const void* a, const void* b) {
  mma_sync<A, B, C, M, N, K, TransposeA, TransposeB, Saturate>(c, a, b, c);
}

#define EMU_LOAD_MATRIX(COUNT)                                            \
  inline void ptx_ldmatrix_x##COUNT(const void* row, void* out) {         \
    emu::load_matrix(row, static_cast<uint32_t*>(out), COUNT, false);     \
  }                                                                       \
  inline void ptx_ldmatrix_x##COUNT##_trans(const void* row, void* out) { \
    emu::load_matrix(row, static_cast<uint32_t*>(out), COUNT, true);      \
  }
EMU_LOAD_MATRIX(1)
EMU_LOAD_MATRIX(2)
EMU_LOAD_MATRIX(4)
#undef EMU_LOAD_MATRIX

#define EMU_STORE_MATRIX(NAME, COUNT, TRANSPOSED)     \
  template <class... R>                               \
  inline void NAME(const void* row, R... registers) { \
    static_assert(sizeof...(R) == COUNT);             \
    const uint32_t list[] = {uint32_t(registers)...}; \
    emu::store_matrix(row, list, COUNT, TRANSPOSED);  \
  }
EMU_STORE_MATRIX(ptx_stmatrix_m8n8_x1, 1, false)
EMU_STORE_MATRIX(ptx_stmatrix_m8n8_x2, 2, false)
EMU_STORE_MATRIX(ptx_stmatrix_m8n8_x4, 4, false)
EMU_STORE_MATRIX(ptx_stmatrix_m8n8_x1_trans, 1, true)
EMU_STORE_MATRIX(ptx_stmatrix_m8n8_x2_trans, 2, true)
EMU_STORE_MATRIX(ptx_stmatrix_m8n8_x4_trans, 4, true)
EMU_STORE_MATRIX(ptx_stmatrix_x1, 1, false)
EMU_STORE_MATRIX(ptx_stmatrix_x2, 2, false)
EMU_STORE_MATRIX(ptx_stmatrix_x4, 4, false)
EMU_STORE_MATRIX(ptx_stmatrix_x1_trans, 1, true)
EMU_STORE_MATRIX(ptx_stmatrix_x2_trans, 2, true)
EMU_STORE_MATRIX(ptx_stmatrix_x4_trans, 4, true)
#undef EMU_STORE_MATRIX

}  // namespace tl
