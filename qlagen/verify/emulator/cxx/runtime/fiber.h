// Switching between stacks: a few instructions on x86-64 Linux, the C library's contexts elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>

#if !defined(__x86_64__) || !defined(__linux__) || defined(EMULATOR_PORTABLE_FIBERS)
#define EMU_UCONTEXT 1
#include <ucontext.h>
#endif

namespace emu {

#ifdef EMU_UCONTEXT

struct Context {
  ucontext_t state;
};
inline void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
  getcontext(&context.state);
  context.state.uc_stack.ss_sp = stack;
  context.state.uc_stack.ss_size = bytes;
  context.state.uc_link = nullptr;
  makecontext(&context.state, entry, 0);
}
inline void switch_context(Context& from, Context& to) { swapcontext(&from.state, &to.state); }

#else

struct Context {
  void* stack_pointer;
};
// Saves the callee-saved registers on the old stack and takes them from the new one.
extern "C" __attribute__((visibility("hidden"))) void emulator_switch_stack(void** save, void* load);
inline void prepare_context(Context& context, char* stack, size_t bytes, void (*entry)()) {
  auto* top = reinterpret_cast<uint64_t*>(stack + bytes - 64);
  *--top = 0;  // keeps the stack aligned as after a call
  *--top = reinterpret_cast<uint64_t>(entry);
  for (int i = 0; i < 6; ++i) *--top = 0;
  context.stack_pointer = top;
}
inline void switch_context(Context& from, Context& to) { emulator_switch_stack(&from.stack_pointer, to.stack_pointer); }

#endif

}  // namespace emu
