// mma, ldmatrix and stmatrix: the last lane to come does the work of the warp.
#include "../device/warp_matrix.h"

#include "fragments.h"
#include "scheduler.h"

namespace emu {
namespace {

struct MmaSlot {
  void* d;
  const void *a, *b, *c;
};

// B operand of 8 columns: register i of lane l holds column l / 4; its rows are the pair 2 (l % 4) + 8 i for 16-bit
// elements, the row l % 4 + 4 i for tfloat32.
void decode_b_registers(tl::DataType type, int k, const uint32_t* const registers[32], float (*b)[8]) {
  const bool wide = type == tl::DataType::kTensorFloat32;
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < (wide ? k / 4 : k / 8); ++i) {
      const uint32_t word = registers[l][i];
      if (wide) {
        b[l % 4 + 4 * i][l / 4] = tfloat32(word);
        continue;
      }
      b[2 * (l % 4) + 8 * i][l / 4] = half_element(type, word, 0);
      b[2 * (l % 4) + 8 * i + 1][l / 4] = half_element(type, word, 1);
    }
  }
}

void mma_action(void* const slots[32], unsigned, const void* context) {
  const MmaShape& shape = *static_cast<const MmaShape*>(context);
  const uint32_t *a_registers[32], *b_registers[32], *c_registers[32];
  uint32_t* d_registers[32];
  for (int l = 0; l < 32; ++l) {
    const auto& slot = *static_cast<MmaSlot*>(slots[l]);
    a_registers[l] = static_cast<const uint32_t*>(slot.a), b_registers[l] = static_cast<const uint32_t*>(slot.b);
    c_registers[l] = static_cast<const uint32_t*>(slot.c), d_registers[l] = static_cast<uint32_t*>(slot.d);
  }
  float a[16][16], b[16][8], c[16][8];
  decode_a_registers(shape.operand, shape.k, a_registers, a);
  decode_b_registers(shape.operand, shape.k, b_registers, b);
  load_accumulator(shape.accumulator, 8, c_registers, c);
  for (int r = 0; r < 16; ++r)
    for (int k = 0; k < shape.k; ++k)
      for (int n = 0; n < 8; ++n) c[r][n] += a[r][k] * b[k][n];
  store_accumulator(shape.accumulator, 8, c, d_registers);
}

struct MatrixSlot {
  unsigned char* row;
  uint32_t* registers;
  int count;
  bool transposed;
};

// Row and column, within its 8x8 matrix, of element `e` (0 or 1) in a register of lane `l`.
void place(int l, int e, bool transposed, int* row, int* column) {
  *row = transposed ? 2 * (l % 4) + e : l / 4;
  *column = transposed ? l / 4 : 2 * (l % 4) + e;
}

void load_matrix_action(void* const slots[32], unsigned, const void*) {
  const MatrixSlot& first = *static_cast<MatrixSlot*>(slots[0]);
  uint32_t loaded[32][4] = {};
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < first.count; ++i)
      for (int e = 0; e < 2; ++e) {
        int row, column;
        place(l, e, first.transposed, &row, &column);
        uint16_t value;
        memcpy(&value, static_cast<MatrixSlot*>(slots[8 * i + row])->row + 2 * column, 2);
        loaded[l][i] |= uint32_t(value) << 16 * e;
      }
  for (int l = 0; l < 32; ++l)
    memcpy(static_cast<MatrixSlot*>(slots[l])->registers, loaded[l], size_t(first.count) * 4);
}

void store_matrix_action(void* const slots[32], unsigned, const void*) {
  const MatrixSlot& first = *static_cast<MatrixSlot*>(slots[0]);
  for (int l = 0; l < 32; ++l)
    for (int i = 0; i < first.count; ++i)
      for (int e = 0; e < 2; ++e) {
        int row, column;
        place(l, e, first.transposed, &row, &column);
        const auto value = uint16_t(static_cast<MatrixSlot*>(slots[l])->registers[i] >> 16 * e);
        memcpy(static_cast<MatrixSlot*>(slots[8 * i + row])->row + 2 * column, &value, 2);
      }
}

MatrixSlot matrix_slot(const void* row, uint32_t* registers, int count, bool transposed, const char* what) {
  if (lane() < 8 * count) {  // the other lanes' addresses are not used
    const uint32_t offset = shared_offset(row);
    if (offset % 16) fail("MISALIGNED", "%s: shared byte %u is not a multiple of 16", what, offset);
    check_shared(offset, 16, what);
  }
  return {static_cast<unsigned char*>(const_cast<void*>(row)), registers, count, transposed};
}

}  // namespace

void mma(const MmaShape& shape, void* d, const void* a, const void* b, const void* c) {
  MmaSlot slot{d, a, b, c};
  warp_collective(Collective::kMma, kFullMask, &slot, mma_action, &shape);
}

void load_matrix(const void* row, uint32_t* registers, int count, bool transposed) {
  preemption_point();
  MatrixSlot slot = matrix_slot(row, registers, count, transposed, "ldmatrix");
  warp_collective(Collective::kLoadMatrix, kFullMask, &slot, load_matrix_action);
}

void store_matrix(const void* row, const uint32_t* registers, int count, bool transposed) {
  preemption_point();
  MatrixSlot slot = matrix_slot(row, const_cast<uint32_t*>(registers), count, transposed, "stmatrix");
  if (lane() < 8 * count) note_generic_write(row, 16);
  warp_collective(Collective::kStoreMatrix, kFullMask, &slot, store_matrix_action);
}

}  // namespace emu
