// How emulated device code meets the scheduler: which thread runs, where it may be preempted, how a warp acts together.
//
// A CUDA thread is a fiber. A fiber runs until it waits (barrier, group wait, warp collective), reaches a preemption
// point, or ends; nothing else interrupts it. All fibers share one arena that stands for the block's shared memory.
#pragma once

#include "vector_types.h"

namespace emu {

constexpr unsigned kFullMask = 0xffffffffu;
constexpr uint32_t kSharedBytes = 256 * 1024;         // a wgmma descriptor addresses 2^14 units of 16 bytes
constexpr uint32_t kDynamicSharedBytes = 227 * 1024;  // below it dynamic, above it `__shared__` variables
extern unsigned char shared_memory[kSharedBytes];

extern int current_thread;
inline int lane() { return current_thread & 31; }
inline int warp() { return current_thread >> 5; }

// Ends the launch: `kind` is a stable word (DEADLOCK, OVER-ARRIVAL, ...), the rest is a printf text.
[[noreturn]] void fail(const char* kind, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Lets a seeded schedule switch to another warp here; no effect otherwise.
void preemption_point();
// The thread polls a condition that another thread must make true: run the others first.
void poll();

// Offset in the arena of a shared address; fails for an address outside it.
uint32_t shared_offset(const void* address);
// Reserves a `__shared__` variable; `name` is used in error texts.
uint32_t reserve_static_shared(const char* name, uint32_t bytes, uint32_t alignment);
template <class T>
inline T& static_shared(uint32_t offset) {
  return *reinterpret_cast<T*>(shared_memory + offset);
}

// What the lanes of a warp do together; lanes that meet in different operations are a diverged warp, an error.
enum class Collective {
  kSyncWarp,
  kElect,
  kShuffle,
  kVote,
  kLoadMatrix,
  kStoreMatrix,
  kMma,
  kWgmmaCommit,
  kWgmmaWait,
  kSetMaxRegisters
};

// Blocks until every lane of `mask` has come with a `slot`; the last lane runs `action(slots, mask)` for all of them.
using CollectiveAction = void (*)(void* const slots[32], unsigned mask, const void* context);
void warp_collective(Collective kind, unsigned mask, void* slot, CollectiveAction action,
                     const void* context = nullptr);

// Blocks until the kernel before has ended: then what it handed over is there.
void await_kernel();

}  // namespace emu

// A warp-wide barrier; memory effects need no model, since fibers never run at the same time.
inline void __syncwarp(unsigned mask = emu::kFullMask) {
  emu::warp_collective(emu::Collective::kSyncWarp, mask, nullptr, nullptr);
}

// Barrier 0 with all threads of the block that have not ended.
void __syncthreads();
int __syncthreads_count(int predicate);
inline int __syncthreads_and(int predicate) { return __syncthreads_count(!predicate) == 0; }
inline int __syncthreads_or(int predicate) { return __syncthreads_count(predicate) != 0; }

inline void cudaGridDependencySynchronize() { emu::await_kernel(); }
inline void cudaTriggerProgrammaticLaunchCompletion() {}
inline void __threadfence() { emu::preemption_point(); }
inline void __threadfence_block() { emu::preemption_point(); }
