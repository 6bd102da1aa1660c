// cp.async and the vector loads and stores of plain copies.
#pragma once

#include "barriers.h"

namespace emu {
// cp.async: `bytes` from global to shared, zeros instead when `valid` is false. Groups belong to the issuing thread.
void async_copy(void* shared, const void* global, int bytes, bool valid);
void async_copy_commit();
void async_copy_wait(int groups_left);
// cp.async.mbarrier.arrive: an arrival that happens once the thread's earlier cp.async are complete. Without .noinc the
// pending count is raised first, so that the phase does not count it among the expected arrivals.
void async_copy_arrive(Barrier& barrier, bool raise_pending);
}  // namespace emu

namespace tl {

template <int Bytes>
inline void cp_async_gs(const void* shared, const void* global) {
  emu::async_copy(const_cast<void*>(shared), global, Bytes, true);
}
template <int Bytes>
inline void cp_async_gs_conditional(const void* shared, const void* global, bool valid) {
  emu::async_copy(const_cast<void*>(shared), global, Bytes, valid);
}
inline void cp_async_commit() { emu::async_copy_commit(); }
template <int Groups>
inline void cp_async_wait() {
  emu::async_copy_wait(Groups);
}
template <class B>
inline void mbarrier_cp_async_arrive(B& barrier) {
  emu::async_copy_arrive(reinterpret_cast<Barrier&>(barrier), true);
}
template <class B>
inline void mbarrier_cp_async_arrive_noinc(B& barrier) {
  emu::async_copy_arrive(reinterpret_cast<Barrier&>(barrier), false);
}

// Predicated accesses: a false predicate loads zeros and stores nothing.
#define EMU_VECTOR_ACCESS(BITS, T)                                                              \
  inline T load_shared_##BITS(const void* from) {                                               \
    T value;                                                                                    \
    std::memcpy(&value, from, sizeof value);                                                    \
    return value;                                                                               \
  }                                                                                             \
  inline void store_shared_##BITS(void* to, T value) { std::memcpy(to, &value, sizeof value); } \
  inline T load_global_##BITS(const void* from) { return load_shared_##BITS(from); }            \
  inline void store_global_##BITS(void* to, T value) { store_shared_##BITS(to, value); }        \
  inline T load_global_##BITS##_conditional(const void* from, bool valid) {                     \
    return valid ? load_global_##BITS(from) : T{};                                              \
  }                                                                                             \
  inline void store_global_##BITS##_conditional(void* to, T value, bool valid) {                \
    if (valid) store_global_##BITS(to, value);                                                  \
  }
EMU_VECTOR_ACCESS(32, uint32_t)
EMU_VECTOR_ACCESS(64, uint2)
EMU_VECTOR_ACCESS(128, uint4)
#undef EMU_VECTOR_ACCESS

}  // namespace tl
