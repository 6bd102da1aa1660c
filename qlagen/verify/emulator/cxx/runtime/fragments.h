// Where the elements of mma and wgmma fragments lie, and how their bits become floats.
#pragma once

#include "../device/float16.h"
#include "../device/wgmma.h"

namespace emu {

inline float tfloat32(uint32_t bits) { return bit_cast<float>(bits & ~0x1fffu); }  // the unit ignores the low 13 bits

inline float half_element(tl::DataType type, uint32_t word, int index) {
  const uint16_t bits = uint16_t(index ? word >> 16 : word);
  return type == tl::DataType::kBFloat16 ? bfloat16_to_float(bits) : half_to_float(bits);
}

// A operand of 16 rows in registers: register i of lane l holds row l / 4 + 8 (i % 2); its columns are the pair
// 2 (l % 4) + 8 (i / 2) for 16-bit elements, the column l % 4 + 4 (i / 2) for tfloat32.
template <class Row>
inline void decode_a_registers(tl::DataType type, int k, const uint32_t* const registers[32], Row* a) {
  const bool wide = type == tl::DataType::kTensorFloat32;
  const int per_lane = wide ? (k == 4 ? 2 : 4) : k / 4;
  for (int l = 0; l < 32; ++l) {
    for (int i = 0; i < per_lane; ++i) {
      float* row = a[l / 4 + 8 * (i % 2)];
      const uint32_t word = registers[l][i];
      if (wide) {
        row[l % 4 + 4 * (i / 2)] = tfloat32(word);
        continue;
      }
      row[2 * (l % 4) + 8 * (i / 2)] = half_element(type, word, 0);
      row[2 * (l % 4) + 8 * (i / 2) + 1] = half_element(type, word, 1);
    }
  }
}

// Accumulator of 16 rows and n columns: lane l holds, for every 8 columns j, rows l / 4 and l / 4 + 8 at columns
// 8 j + 2 (l % 4) and the next; four floats, or two registers with a pair of halves each.
template <class Row>
inline void load_accumulator(tl::DataType type, int n, const uint32_t* const registers[32], Row* c) {
  for (int l = 0; l < 32; ++l) {
    for (int j = 0; j < n / 8; ++j) {
      for (int h = 0; h < 2; ++h) {
        float* to = c[l / 4 + 8 * h] + 8 * j + 2 * (l % 4);
        if (type == tl::DataType::kFloat32) {
          memcpy(to, registers[l] + 4 * j + 2 * h, 8);
        } else {
          to[0] = half_element(type, registers[l][2 * j + h], 0);
          to[1] = half_element(type, registers[l][2 * j + h], 1);
        }
      }
    }
  }
}

template <class Row>
inline void store_accumulator(tl::DataType type, int n, const Row* c, uint32_t* const registers[32]) {
  for (int l = 0; l < 32; ++l) {
    for (int j = 0; j < n / 8; ++j) {
      for (int h = 0; h < 2; ++h) {
        const float* from = c[l / 4 + 8 * h] + 8 * j + 2 * (l % 4);
        if (type == tl::DataType::kFloat32)
          memcpy(registers[l] + 4 * j + 2 * h, from, 8);
        else
          registers[l][2 * j + h] = float_to_half(from[0]) | uint32_t(float_to_half(from[1])) << 16;
      }
    }
  }
}

}  // namespace emu
