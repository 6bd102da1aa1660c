// Atomic read-modify-write. Fibers never overlap, so a plain update is atomic; each is a place where warps may switch.
#pragma once

#include <type_traits>

#include "execution.h"
#include "math_functions.h"

namespace emu {
template <class T, class Update>
inline T atomic_update(T* address, Update update) {
  preemption_point();
  T old = *address;
  *address = update(old);
  return old;
}
}  // namespace emu

#define EMU_ATOMIC(NAME, EXPRESSION)                                          \
  template <class T, class V>                                                 \
  inline T NAME##Ret(T* address, V value, int = 0) {                          \
    T operand = T(value);                                                     \
    return emu::atomic_update(address, [&](T old) { return T(EXPRESSION); }); \
  }                                                                           \
  template <class T, class V>                                                 \
  inline void NAME(T* address, V value, int = 0) {                            \
    NAME##Ret(address, value);                                                \
  }
EMU_ATOMIC(AtomicAdd, old + operand)
EMU_ATOMIC(AtomicMax, max(old, operand))
EMU_ATOMIC(AtomicMin, min(old, operand))
EMU_ATOMIC(AtomicOr, old | operand)
#undef EMU_ATOMIC

template <class T, class V>
inline T atomicAdd(T* address, V value) {
  return AtomicAddRet(address, value);
}

// A load may sit in a polling loop: let the other threads run.
template <class T>
inline T AtomicLoad(T* address, int) {
  emu::poll();
  return *address;
}
template <class T, class V>
inline void AtomicStore(T* address, V value, int) {
  emu::preemption_point();
  *address = T(value);
}

namespace emu {
template <int Count, class T, class Vector>
inline void atomic_add_vector(T* address, const Vector& values, Vector* old) {
  T list[Count];
  std::memcpy(list, &values, sizeof list);
  for (int i = 0; i < Count; ++i) list[i] = AtomicAddRet(address + i, list[i]);
  if (old) std::memcpy(old, list, sizeof list);
}
template <class Vector, class V>
inline Vector vector_operand(const V& value) {
  Vector result;
  if constexpr (std::is_pointer_v<V>)
    std::memcpy(&result, value, sizeof result);
  else
    std::memcpy(&result, &value, sizeof result);
  return result;
}
}  // namespace emu

// TileLang passes the vector by value or by pointer.
#define EMU_ATOMIC_VECTOR(COUNT, T, VECTOR)                                           \
  template <class V>                                                                  \
  inline VECTOR AtomicAddx##COUNT##Ret(T* address, V value, int = 0) {                \
    VECTOR old;                                                                       \
    emu::atomic_add_vector<COUNT>(address, emu::vector_operand<VECTOR>(value), &old); \
    return old;                                                                       \
  }                                                                                   \
  template <class V>                                                                  \
  inline void AtomicAddx##COUNT(T* address, V value, int = 0) {                       \
    AtomicAddx##COUNT##Ret(address, value);                                           \
  }
EMU_ATOMIC_VECTOR(2, float, float2)
EMU_ATOMIC_VECTOR(4, float, float4)
EMU_ATOMIC_VECTOR(2, bfloat16_t, __nv_bfloat162)
EMU_ATOMIC_VECTOR(2, half_t, __half2)
EMU_ATOMIC_VECTOR(4, bfloat16_t, uint2)
EMU_ATOMIC_VECTOR(4, half_t, uint2)
#undef EMU_ATOMIC_VECTOR
