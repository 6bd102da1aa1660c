// Inside the emulator: fibers, wait queues and operations that other units carry out later.
#pragma once

#include <deque>
#include <functional>
#include <string>

#include "../device/execution.h"
#include "../device/host_api.h"

namespace emu {

constexpr int kMaxThreads = 1024, kMaxWarps = 32;

enum class FenceRule { kNone, kPath, kWriter };

struct Mode {
  bool lazy;    // a wgmma reads its operands only when a thread waits for its group
  bool late;    // TMA, cp.async and (lazy) wgmma finish later than issued: last of all, or at a random moment if seeded
  bool seeded;  // warps and late operations run by random priorities
  uint64_t seed;
  FenceRule fences;
};
extern Mode mode;
extern uint32_t dynamic_shared_bytes;

// Lanes that wait for one event, by warp.
struct WaitQueue {
  uint32_t lanes[kMaxWarps] = {};
};

// Writes what the object is and what it still lacks; used for a thread that is stuck.
using Describe = std::string (*)(const void* object, int argument);

// Puts the running thread to sleep until `wake`; the caller checks its condition again afterwards.
void wait_in(WaitQueue& queue, Describe describe, const void* object, int argument);
void wake(WaitQueue& queue);

// Hands an operation to a unit outside the warps. `what` names it in error texts.
void defer(const char* what, std::function<void()> operation);

// Operations of one owner that complete in the order of issue.
class InOrderQueue {
 public:
  void push(const char* what, std::function<void()> operation);
  // Blocks the running thread until at most `left` operations are incomplete.
  void wait_until_at_most(size_t left, Describe describe);
  void clear() { *this = InOrderQueue(); }

 private:
  void run_first();
  std::deque<std::function<void()>> operations_;
  const char* what_ = "";
  WaitQueue waiters_;
};

// Fails unless the bytes lie in the dynamic shared memory of the launch or in `__shared__` variables.
void check_static_shared(uint32_t offset, uint32_t bytes, const char* what);
inline void check_shared(uint32_t offset, uint32_t bytes, const char* what) {
  if (offset + bytes > dynamic_shared_bytes) check_static_shared(offset, bytes, what);
}
// The proxy fence rule (proxy.cc): ordinary writes, writes by TMA, fences, reads by wgmma and TMA.
void note_generic_write(const void* address, size_t bytes);
void note_async_write(uint32_t offset, uint32_t bytes);
void note_proxy_fence();
void check_async_read(uint32_t offset, uint32_t bytes, int reader, bool store, const char* what);

// Name and index of the `__shared__` variable at an address, or its offset in shared memory.
std::string shared_name(const void* address, uint32_t element_bytes);

std::string format(const char* text, ...) __attribute__((format(printf, 1, 2)));

// Runs every thread of the current block to its end.
char* map_stacks();
void use_stacks(char* memory);
void run_block(int threads, void (*body)(void*), void* arguments);
int live_threads();

// Per-launch and per-block state of the units.
void reset_barriers();
void reset_proxy();
void reset_tma();
void reset_async_copies();
void reset_wgmma(int threads);
void on_thread_exit();

struct LaunchFailed {};

}  // namespace emu
