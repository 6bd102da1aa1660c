// mbarrier objects, named barriers and fences.
#pragma once

#include "execution.h"

// mbarrier.b64 in shared memory. One phase completes when its pending arrivals and its pending transaction bytes are
// both zero; then the parity flips and the pending arrivals are reset to the expected count.
struct alignas(8) Barrier {
  uint32_t counts;  // expected (12 bits), pending (12 bits), parity (1 bit), mark of an initialised barrier (7 bits)
  int32_t transaction_bytes;

  // mbarrier.init: phase 0, `count` arrivals expected in every phase.
  void init(uint32_t count);
  // mbarrier.try_wait.parity in a loop: waits until the phase with this parity has completed. A thread that comes so
  // late that the phase has flipped twice keeps waiting, as on the GPU.
  void wait(uint32_t parity);
  bool try_wait(uint32_t parity);
  bool test_wait(uint32_t parity, uint32_t predicate = 1) { return predicate && try_wait(parity); }
  // mbarrier.arrive: one arrival; more than the expected count in one phase is an error.
  void arrive();
  // mbarrier.expect_tx: raises the pending bytes of the current phase.
  void expect_transaction(uint32_t bytes);
  void arrive_and_expect_tx(uint32_t bytes) {
    expect_transaction(bytes);
    arrive();
  }
  // mbarrier.complete_tx, carried out by the TMA unit when bytes have landed.
  void complete_transaction(uint32_t bytes);
};
static_assert(sizeof(Barrier) == 8);

namespace tl {

// bar.sync id, threads
void __sync_thread_partial(int id = 0, int threads = 0);
// bar.arrive id, threads: counts as an arrival, does not wait.
void __named_barrier_arrive(int id, int threads);

// fence.proxy.async: makes the thread's own generic writes to shared memory visible to wgmma and TMA.
void fence_proxy_async();
inline void fence_barrier_init() {}

inline void mbarrier_init(uint64_t& barrier, uint32_t count) { reinterpret_cast<Barrier&>(barrier).init(count); }
inline void mbarrier_wait(uint64_t& barrier, int parity) { reinterpret_cast<Barrier&>(barrier).wait(uint32_t(parity)); }
inline void mbarrier_arrive(uint64_t& barrier) { reinterpret_cast<Barrier&>(barrier).arrive(); }
inline void mbarrier_expect_tx(uint64_t& barrier, uint32_t bytes) {
  reinterpret_cast<Barrier&>(barrier).expect_transaction(bytes);
}
inline void mbarrier_arrive_expect_tx(uint64_t& barrier, uint32_t bytes) {
  reinterpret_cast<Barrier&>(barrier).arrive_and_expect_tx(bytes);
}

}  // namespace tl
