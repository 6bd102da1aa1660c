// The proxy fence rule: a write to shared memory by ordinary code (generic proxy) becomes visible to wgmma and TMA
// (async proxy) only through fence.proxy.async between the write and the read. The PTX memory model is content with a
// fence anywhere on the causality path, so also in the reader (FenceRule::kPath). The rule of practice wants it from the
// writer, before it signals the reader; but a store by TMA has one reading thread, which may fence for all writers.
//
// The kernel is compiled with -fsanitize=kernel-address, all its checks switched off except a call before each store.
// These hooks note who wrote every word of shared memory, and when, on a clock that ticks at every fence.
#include "scheduler.h"

namespace emu {
namespace {

constexpr uint32_t kWords = kSharedBytes / 4;
struct Write {
  uint32_t thread, when;  // when 0: not written by ordinary code
};
Write writes[kWords];
uint32_t fence_clock, last_fence[kMaxThreads];

}  // namespace

void reset_proxy() {
  memset(writes, 0, sizeof writes);
  memset(last_fence, 0, sizeof last_fence);
  fence_clock = 1;
}

void note_generic_write(const void* address, size_t bytes) {
  const uintptr_t offset = uintptr_t(address) - uintptr_t(shared_memory);
  if (offset >= kSharedBytes) return;
  const Write write{uint32_t(current_thread), fence_clock};
  for (uintptr_t word = offset / 4; word <= (offset + bytes - 1) / 4 && word < kWords; ++word) writes[word] = write;
}

void note_async_write(uint32_t offset, uint32_t bytes) {
  for (uint32_t word = offset / 4; word < (offset + bytes) / 4; ++word) writes[word].when = 0;
}

void note_proxy_fence() { last_fence[current_thread] = ++fence_clock; }

void check_async_read(uint32_t offset, uint32_t bytes, int reader, bool store, const char* what) {
  if (mode.fences == FenceRule::kNone) return;
  const bool by_reader = store || mode.fences == FenceRule::kPath;
  for (uint32_t word = offset / 4; word < (offset + bytes) / 4; ++word) {
    const Write& write = writes[word];
    if (write.when == 0 || last_fence[write.thread] > write.when) continue;
    if (by_reader && last_fence[reader] > write.when) continue;
    fail("PROXY-FENCE",
         "%s by thread %d reads shared byte %u, which thread %u wrote without fence.proxy.async after it", what, reader,
         4 * word, write.thread);
  }
}

}  // namespace emu

#define EMULATOR_STORE_HOOK(BYTES)                                    \
  extern "C" void __asan_store##BYTES##_noabort(uintptr_t address) {  \
    emu::note_generic_write(reinterpret_cast<void*>(address), BYTES); \
  }
EMULATOR_STORE_HOOK(1)
EMULATOR_STORE_HOOK(2)
EMULATOR_STORE_HOOK(4)
EMULATOR_STORE_HOOK(8)
EMULATOR_STORE_HOOK(16)
extern "C" void __asan_storeN_noabort(uintptr_t address, size_t bytes) {
  emu::note_generic_write(reinterpret_cast<void*>(address), bytes);
}
extern "C" void __asan_handle_no_return() {}
