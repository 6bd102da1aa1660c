// Bulk copies of the TMA unit (cp.async.bulk and cp.async.bulk.tensor).
#pragma once

#include "barriers.h"
#include "host_api.h"

namespace emu {
// cp.async.bulk.tensor, global to shared: box of `map` at `coordinates`; elements outside the tensor become zero.
void tensor_load(const CUtensorMap& map, Barrier& barrier, void* shared, const int* coordinates, int rank);
// cp.async.bulk.tensor, shared to global: elements outside the tensor are dropped. `add` is cp.reduce.async.bulk.add.
void tensor_store(const CUtensorMap& map, const void* shared, const int* coordinates, int rank, bool add);
// cp.async.bulk of contiguous bytes.
void bulk_load(void* shared, const void* global, Barrier& barrier, uint32_t bytes);
void bulk_store(void* global, const void* shared, uint32_t bytes, bool add_float);
// cp.async.bulk.commit_group and cp.async.bulk.wait_group[.read]: groups belong to the thread that issued them.
void store_commit();
void store_wait(unsigned groups_left);
}  // namespace emu

namespace tl {

enum class CacheHintSm90 : uint64_t { EVICT_NORMAL, EVICT_FIRST, EVICT_LAST };

template <CacheHintSm90 = CacheHintSm90::EVICT_NORMAL, class B, class... C>
inline void tma_load(const CUtensorMap& map, B& barrier, const void* shared, C... coordinates) {
  const int list[] = {int(coordinates)...};
  emu::tensor_load(map, reinterpret_cast<Barrier&>(barrier), const_cast<void*>(shared), list, sizeof...(C));
}
template <class B>
inline void tma_load(void* shared, const void* global, B& barrier, uint32_t bytes) {
  emu::bulk_load(shared, global, reinterpret_cast<Barrier&>(barrier), bytes);
}
template <CacheHintSm90 = CacheHintSm90::EVICT_NORMAL, class... C>
inline void tma_store(const CUtensorMap& map, const void* shared, C... coordinates) {
  const int list[] = {int(coordinates)...};
  emu::tensor_store(map, shared, list, sizeof...(C), false);
}
template <CacheHintSm90 = CacheHintSm90::EVICT_NORMAL>
inline void tma_store(void* global, void* shared, uint32_t bytes) {
  emu::bulk_store(global, shared, bytes, false);
}
template <class... C>
inline void tma_store_add(const CUtensorMap& map, const void* shared, C... coordinates) {
  const int list[] = {int(coordinates)...};
  emu::tensor_store(map, shared, list, sizeof...(C), true);
}
inline void tma_store_add(float* shared, float* global, int bytes) {
  emu::bulk_store(global, shared, uint32_t(bytes), true);
}

inline void tma_store_arrive() { emu::store_commit(); }
template <int Groups, bool Read = true>
inline void tma_store_wait() {
  emu::store_wait(Groups);
}
inline void prefetch_tma_descriptor(const CUtensorMap&) {}

}  // namespace tl
