// cp.async: the bytes move at commit (or later, in late mode), in the order of the thread's groups.
#include "../device/copies.h"

#include <vector>

#include "scheduler.h"

namespace emu {
namespace {

struct Copy {
  void* shared;
  const void* global;
  uint32_t bytes;
  bool valid;
};
InOrderQueue queues[kMaxThreads];
std::vector<Copy> open_copies[kMaxThreads];

std::string describe_copies(const void*, int left) {
  return format("cp.async, until at most %d groups are left", left);
}

std::function<void()> take_open_copies() {
  auto copies = std::move(open_copies[current_thread]);
  open_copies[current_thread].clear();
  return [copies = std::move(copies)] {
    for (const Copy& c : copies) {
      note_generic_write(c.shared, c.bytes);  // cp.async belongs to the generic proxy
      if (c.valid)
        memcpy(c.shared, c.global, c.bytes);
      else
        memset(c.shared, 0, c.bytes);
    }
  };
}

}  // namespace

void reset_async_copies() {
  for (int i = 0; i < kMaxThreads; ++i) {
    queues[i].clear();
    open_copies[i].clear();
  }
}

void async_copy(void* shared, const void* global, int bytes, bool valid) {
  const uint32_t offset = shared_offset(shared);
  if (offset % uint32_t(bytes) || (valid && uintptr_t(global) % uintptr_t(bytes)))
    fail("MISALIGNED", "cp.async of %d bytes at shared byte %u and %p", bytes, offset, global);
  check_shared(offset, uint32_t(bytes), "cp.async");
  open_copies[current_thread].push_back({shared, global, uint32_t(bytes), valid});
}

void async_copy_commit() {
  preemption_point();
  queues[current_thread].push("cp.async", take_open_copies());
}

void async_copy_wait(int groups_left) {
  if (groups_left == 0 && !open_copies[current_thread].empty())
    async_copy_commit();  // wait_all includes copies without a group
  queues[current_thread].wait_until_at_most(size_t(groups_left), describe_copies);
}

void async_copy_arrive(Barrier& barrier, bool raise_pending) {
  // Raising the pending count and arriving later cancel out: only the .noinc form is one of the expected arrivals.
  if (raise_pending) fail("UNMODELLED", "cp.async.mbarrier.arrive without .noinc");
  queues[current_thread].push("cp.async", [copies = take_open_copies(), &barrier] {
    copies();
    barrier.arrive();
  });
}

}  // namespace emu
