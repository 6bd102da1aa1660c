// The proxy fence rule: a write to shared memory by ordinary code (generic proxy) becomes visible to wgmma and TMA
// (async proxy) only through fence.proxy.async by the writer between the write and the read.
//
// The kernel is compiled with -fsanitize=kernel-address, all its checks switched off except a call before each store.
// These hooks note the writer of every word of shared memory and how many fences it had executed.
#include "scheduler.h"

namespace emu {
namespace {

constexpr uint32_t kWords = kSharedBytes / 4;
struct Write {
  uint32_t thread, fences;
};
Write writes[kWords];  // fences 0: clean
uint32_t fences_of_thread[kMaxThreads];

}  // namespace

void reset_proxy() {
  memset(writes, 0, sizeof writes);
  for (uint32_t& count : fences_of_thread) count = 1;
}

void note_generic_write(const void* address, size_t bytes) {
  const uintptr_t offset = uintptr_t(address) - uintptr_t(shared_memory);
  if (offset >= kSharedBytes) return;
  const Write write{uint32_t(current_thread), fences_of_thread[current_thread]};
  for (uintptr_t word = offset / 4; word <= (offset + bytes - 1) / 4 && word < kWords; ++word) writes[word] = write;
}

void note_async_write(uint32_t offset, uint32_t bytes) {
  for (uint32_t word = offset / 4; word < (offset + bytes) / 4; ++word) writes[word].fences = 0;
}

void note_proxy_fence() { ++fences_of_thread[current_thread]; }

void check_async_read(uint32_t offset, uint32_t bytes, const char* what) {
  if (!mode.fences) return;
  for (uint32_t word = offset / 4; word < (offset + bytes) / 4; ++word) {
    const Write& write = writes[word];
    if (write.fences != 0 && write.fences == fences_of_thread[write.thread])
      fail("PROXY-FENCE", "%s reads shared byte %u, which thread %u wrote without fence.proxy.async after it", what, 4 * word, write.thread);
  }
}

}  // namespace emu

#define EMULATOR_STORE_HOOK(BYTES)                                                    \
  extern "C" void __asan_store##BYTES##_noabort(uintptr_t address) { emu::note_generic_write(reinterpret_cast<void*>(address), BYTES); }
EMULATOR_STORE_HOOK(1)
EMULATOR_STORE_HOOK(2)
EMULATOR_STORE_HOOK(4)
EMULATOR_STORE_HOOK(8)
EMULATOR_STORE_HOOK(16)
extern "C" void __asan_storeN_noabort(uintptr_t address, size_t bytes) { emu::note_generic_write(reinterpret_cast<void*>(address), bytes); }
extern "C" void __asan_handle_no_return() {}
