// mbarriers, named barriers and fences: see the comments in device/barriers.h.
#include "../device/barriers.h"

#include <unordered_map>

#include "scheduler.h"

namespace {

using namespace emu;

constexpr uint32_t kMaximumCount = (1u << 12) - 1, kMark = 0x5b;
constexpr int32_t kMaximumTransaction = (1 << 20) - 1;
constexpr int kNamedBarriers = 16;

std::unordered_map<const Barrier*, WaitQueue> barrier_waiters;

struct NamedBarrier {
  int arrived = 0, expected = 0, votes = 0, result = 0;
  uint32_t generation = 0;
  WaitQueue waiters;
};
NamedBarrier named_barriers[kNamedBarriers];

uint32_t expected(const Barrier& b) { return b.counts & kMaximumCount; }
uint32_t pending(const Barrier& b) { return b.counts >> 12 & kMaximumCount; }
uint32_t parity_of(const Barrier& b) { return b.counts >> 24 & 1; }
void set(Barrier& b, uint32_t expected_, uint32_t pending_, uint32_t parity) {
  b.counts = expected_ | pending_ << 12 | parity << 24 | kMark << 25;
}

std::string name_of(const Barrier& b) { return "mbarrier " + shared_name(&b, sizeof(Barrier)); }

void check_initialised(const Barrier& b) {
  shared_offset(&b);
  if (b.counts >> 25 != kMark) fail("UNINITIALISED", "%s is used before it is initialised", name_of(b).c_str());
}

std::string describe_barrier(const void* object, int parity) {
  const auto& b = *static_cast<const Barrier*>(object);
  return format("%s, parity %d: %u of %u arrivals and %d bytes are missing", name_of(b).c_str(), parity, pending(b),
                expected(b), b.transaction_bytes);
}

void complete_phase_if_done(Barrier& b) {
  if (pending(b) || b.transaction_bytes) return;
  set(b, expected(b), expected(b), parity_of(b) ^ 1);
  wake(barrier_waiters[&b]);
}

std::string describe_named(const void* object, int) {
  const auto& b = *static_cast<const NamedBarrier*>(object);
  return format("named barrier %d: %d of %d threads have come", int(&b - named_barriers), b.arrived, b.expected);
}

void open_if_full(NamedBarrier& b) {
  if (b.arrived < b.expected) return;
  b.arrived = b.expected = 0;
  b.result = b.votes, b.votes = 0;
  ++b.generation;
  wake(b.waiters);
}

void arrive_at(int id, int threads, bool wait) {
  preemption_point();
  if (id < 0 || id >= kNamedBarriers)
    fail("BARRIER-COUNT", "named barrier %d: there are barriers 0 to %d", id, kNamedBarriers - 1);
  if (threads <= 0 || threads % 32)
    fail("BARRIER-COUNT", "named barrier %d for %d threads: a multiple of 32 is needed", id, threads);
  NamedBarrier& b = named_barriers[id];
  if (b.expected && b.expected != threads)
    fail("BARRIER-COUNT", "named barrier %d is used for %d and for %d threads at once", id, b.expected, threads);
  b.expected = threads;
  ++b.arrived;
  const uint32_t generation = b.generation;
  open_if_full(b);
  while (wait && b.generation == generation) wait_in(b.waiters, describe_named, &b, 0);
}

// Barrier 0 counts the threads that have not ended.
void block_barrier() {
  NamedBarrier& b = named_barriers[0];
  b.expected = live_threads();
  ++b.arrived;
  const uint32_t generation = b.generation;
  open_if_full(b);
  while (b.generation == generation) wait_in(b.waiters, describe_named, &b, 0);
}

}  // namespace

namespace emu {

void reset_barriers() {
  barrier_waiters.clear();
  for (NamedBarrier& b : named_barriers) b = NamedBarrier();
}

void on_thread_exit() {
  NamedBarrier& b = named_barriers[0];
  if (!b.arrived) return;
  b.expected = live_threads();
  open_if_full(b);
}

}  // namespace emu

void Barrier::init(uint32_t count) {
  shared_offset(this);
  if (count == 0 || count > kMaximumCount)
    fail("BARRIER-COUNT", "%s gets %u arrivals: 1 to %u are possible", name_of(*this).c_str(), count, kMaximumCount);
  set(*this, count, count, 0);
  transaction_bytes = 0;
}

void Barrier::wait(uint32_t parity) {
  preemption_point();
  check_initialised(*this);
  while (parity_of(*this) == (parity & 1)) wait_in(barrier_waiters[this], describe_barrier, this, int(parity & 1));
}

bool Barrier::try_wait(uint32_t parity) {
  check_initialised(*this);
  if (parity_of(*this) != (parity & 1)) return true;
  poll();
  return parity_of(*this) != (parity & 1);
}

void Barrier::arrive() {
  preemption_point();
  check_initialised(*this);
  if (!pending(*this))
    fail("OVER-ARRIVAL", "%s: an arrival too many; all %u of this phase have come and %d bytes are missing",
         name_of(*this).c_str(), expected(*this), transaction_bytes);
  set(*this, expected(*this), pending(*this) - 1, parity_of(*this));
  complete_phase_if_done(*this);
}

void Barrier::expect_transaction(uint32_t bytes) {
  check_initialised(*this);
  transaction_bytes += int32_t(bytes);
  if (transaction_bytes > kMaximumTransaction)
    fail("BARRIER-COUNT", "%s expects %d bytes; the limit is %d", name_of(*this).c_str(), transaction_bytes,
         kMaximumTransaction);
}

void Barrier::complete_transaction(uint32_t bytes) {
  check_initialised(*this);
  transaction_bytes -= int32_t(bytes);
  complete_phase_if_done(*this);
}

void __syncthreads() {
  preemption_point();
  block_barrier();
}

int __syncthreads_count(int predicate) {
  preemption_point();
  named_barriers[0].votes += predicate != 0;
  block_barrier();
  return named_barriers[0].result;
}

namespace tl {

void __sync_thread_partial(int id, int threads) { arrive_at(id, threads, true); }
void __named_barrier_arrive(int id, int threads) { arrive_at(id, threads, false); }
void fence_proxy_async() {
  preemption_point();
  note_proxy_fence();
}

}  // namespace tl
