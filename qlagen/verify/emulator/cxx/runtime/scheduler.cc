// Which thread runs next. Without a seed: warps in turn, late operations (newest first) when no warp can run. With a
// seed: the runnable warp or late operation of highest random priority, priorities being redrawn now and then
// (the idea of probabilistic concurrency testing: few random choices expose most ordering faults).
#include "scheduler.h"

#include <cstdarg>
#include <sys/mman.h>
#include <vector>

#include "fiber.h"

dim3 threadIdx, blockIdx, blockDim, gridDim;

#ifndef EMU_UCONTEXT
asm(R"(
.text
.hidden emulator_switch_stack
.globl emulator_switch_stack
.type emulator_switch_stack, @function
emulator_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulator_switch_stack, .-emulator_switch_stack
)");
#endif

namespace emu {

Mode mode;
int current_thread;

namespace {

constexpr size_t kStackBytes = 256 * 1024, kPageBytes = 4096;
constexpr long kMaximumIdlePolls = 2000;  // for each thread of the block

struct Fiber {
  Context context;
  Describe describe;
  const void* object;
  int argument;
};
struct Warp {
  uint32_t runnable, exited;
  uint32_t priority;
};
struct Deferred {
  const char* what;
  std::function<void()> run;
  uint32_t priority;
};

Fiber fibers[kMaxThreads];
Warp warps[kMaxWarps];
std::vector<Deferred> deferred;
Context scheduler_context;
int thread_count, live;
bool in_scheduler = true, failure, polled;
long idle_polls;
std::string failure_message;
void (*block_body)(void*);
void* block_arguments;
uint64_t random_state;

uint32_t random_bits() {
  random_state += 0x9e3779b97f4a7c15ull;
  uint64_t z = random_state;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return uint32_t(z >> 32);
}

char* stacks;

char* stack_of(int thread) {
  if (!stacks) stacks = map_stacks();
  return stacks + thread * kStackBytes;
}

void to_scheduler() {
  in_scheduler = true;
  switch_context(fibers[current_thread].context, scheduler_context);
}

void fiber_entry() {
  block_body(block_arguments);
  warps[warp()].runnable &= ~(1u << lane());
  warps[warp()].exited |= 1u << lane();
  --live;
  on_thread_exit();
  to_scheduler();
  __builtin_unreachable();
}

void resume(int thread) {
  current_thread = thread;
  threadIdx = dim3(thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y));
  in_scheduler = false;
  switch_context(scheduler_context, fibers[thread].context);
  if (failure) throw LaunchFailed{};
}

// Runs each runnable lane once, up to its next wait or preemption point.
void step(int w) {
  for (uint32_t lanes = warps[w].runnable; lanes; lanes &= lanes - 1) {
    int lane = __builtin_ctz(lanes);
    if (warps[w].runnable >> lane & 1) resume(w * 32 + lane);
  }
}

void run_deferred(size_t index) {
  auto operation = std::move(deferred[index].run);
  deferred.erase(deferred.begin() + long(index));
  idle_polls = 0;
  operation();
}

// Whether some warp did more than poll.
bool run_in_turn() {
  bool progress = false;
  for (int w = 0; w * 32 < thread_count; ++w) {
    polled = false;
    while (warps[w].runnable && !polled) {
      step(w);
      progress = progress || !polled;
    }
  }
  return progress;
}

bool any_runnable() {
  uint32_t lanes = 0;
  for (int w = 0; w * 32 < thread_count; ++w) lanes |= warps[w].runnable;
  return lanes != 0;
}

bool run_by_priority() {
  int best_warp = -1;
  size_t best_deferred = deferred.size();
  uint64_t best = 0;
  for (int w = 0; w * 32 < thread_count; ++w)
    if (warps[w].runnable && warps[w].priority + 1ull > best) best = warps[w].priority + 1ull, best_warp = w;
  for (size_t i = 0; i < deferred.size(); ++i)
    if (deferred[i].priority + 1ull > best) best = deferred[i].priority + 1ull, best_deferred = i;
  if (best_deferred < deferred.size()) {
    run_deferred(best_deferred);
    return true;
  }
  if (best_warp < 0) return false;
  polled = false;
  step(best_warp);
  if (polled)
    warps[best_warp].priority = random_bits() % 1024;  // behind all that do not poll
  else if (random_bits() % 8 == 0)
    warps[best_warp].priority = random_bits();
  return true;
}

std::string stuck_threads() {
  std::string text;
  for (int first = 0; first < thread_count;) {
    auto same = [&](int t) {
      return !(warps[t / 32].exited >> (t % 32) & 1) && fibers[t].describe == fibers[first].describe &&
             fibers[t].object == fibers[first].object && fibers[t].argument == fibers[first].argument;
    };
    if (!same(first)) {
      ++first;
      continue;
    }
    int last = first;
    while (last + 1 < thread_count && same(last + 1)) ++last;
    const Fiber& f = fibers[first];
    text += format("\nthreads %d-%d wait for %s", first, last,
                   f.describe ? f.describe(f.object, f.argument).c_str() : "their turn");
    first = last + 1;
  }
  return text;
}

}  // namespace

char* map_stacks() {
  // One mapping for all stacks; the lowest page of each stays unmapped, so that an overflow faults at once.
  void* memory = mmap(nullptr, kStackBytes * kMaxThreads, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) fail("MEMORY", "no address space for %d fiber stacks", kMaxThreads);
  for (int i = 0; i < kMaxThreads; ++i) mprotect(static_cast<char*>(memory) + i * kStackBytes, kPageBytes, PROT_NONE);
  return static_cast<char*>(memory);
}
void use_stacks(char* memory) { stacks = memory; }

std::string format(const char* text, ...) {
  char buffer[1024];
  va_list arguments;
  va_start(arguments, text);
  vsnprintf(buffer, sizeof buffer, text, arguments);
  va_end(arguments);
  return buffer;
}

void fail(const char* kind, const char* text, ...) {
  char buffer[8192];
  va_list arguments;
  va_start(arguments, text);
  vsnprintf(buffer, sizeof buffer, text, arguments);
  va_end(arguments);
  std::string place = format("block (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z);
  if (!in_scheduler) place += format(", thread %d", current_thread);
  failure = true;
  failure_message = format("%s\n%s\n", kind, place.c_str()) + buffer;
  if (in_scheduler) throw LaunchFailed{};
  to_scheduler();
  __builtin_unreachable();
}

bool failed() { return failure; }
const char* failure_text() { return failure_message.c_str(); }
int live_threads() { return live; }

void wait_in(WaitQueue& queue, Describe describe, const void* object, int argument) {
  Fiber& fiber = fibers[current_thread];
  fiber.describe = describe, fiber.object = object, fiber.argument = argument;
  queue.lanes[warp()] |= 1u << lane();
  warps[warp()].runnable &= ~(1u << lane());
  to_scheduler();
  fiber.describe = nullptr;
}

void wake(WaitQueue& queue) {
  idle_polls = 0;
  for (int w = 0; w < kMaxWarps; ++w) {
    warps[w].runnable |= queue.lanes[w];
    queue.lanes[w] = 0;
  }
}

void preemption_point() {
  if (mode.seeded && !in_scheduler) to_scheduler();
}

void poll() {
  polled = true;
  if (++idle_polls > kMaximumIdlePolls * thread_count)
    fail("DEADLOCK", "threads poll memory that nothing changes%s", stuck_threads().c_str());
  to_scheduler();
}

void defer(const char* what, std::function<void()> operation) {
  if (!mode.late) return operation();
  deferred.push_back({what, std::move(operation), mode.seeded ? random_bits() : 0});
}

void InOrderQueue::push(const char* what, std::function<void()> operation) {
  if (!mode.late) return operation();
  what_ = what;
  operations_.push_back(std::move(operation));
  if (operations_.size() == 1) defer(what_, [this] { run_first(); });
}

void InOrderQueue::run_first() {
  auto operation = std::move(operations_.front());
  operation();
  operations_.pop_front();
  wake(waiters_);
  if (!operations_.empty()) defer(what_, [this] { run_first(); });
}

void InOrderQueue::wait_until_at_most(size_t left, Describe describe) {
  preemption_point();
  while (operations_.size() > left) wait_in(waiters_, describe, this, int(left));
}

namespace {
struct Meeting {
  uint32_t mask, arrived;
  Collective kind;
  void* slots[32];
  WaitQueue waiters;
};
constexpr int kMeetings = 4;  // masks in use at once within one warp
Meeting meetings[kMaxWarps][kMeetings];

const char* const kCollectiveNames[] = {"__syncwarp", "elect", "a shuffle",          "a vote",           "ldmatrix",
                                        "stmatrix",   "mma",   "wgmma.commit_group", "wgmma.wait_group", "setmaxnreg"};
std::string describe_meeting(const void* object, int) {
  const auto& meeting = *static_cast<const Meeting*>(object);
  return format("%s of the whole warp: lanes 0x%x have come of 0x%x", kCollectiveNames[int(meeting.kind)],
                meeting.arrived, meeting.mask);
}

Meeting& find_meeting(uint32_t mask) {
  for (Meeting& m : meetings[warp()])
    if (m.arrived && m.mask == mask) return m;
  for (Meeting& m : meetings[warp()])
    if (!m.arrived) return m.mask = mask, m;
  fail("DIVERGED", "more than %d lane masks meet in one warp", kMeetings);
}
}  // namespace

void warp_collective(Collective kind, unsigned mask, void* slot, CollectiveAction action, const void* context) {
  Meeting& meeting = find_meeting(mask);
  if (!(mask >> lane() & 1))
    fail("DIVERGED", "lane %d is not in the mask 0x%x of %s", lane(), mask, kCollectiveNames[int(kind)]);
  if (meeting.arrived && meeting.kind != kind)
    fail("DIVERGED", "%s while other lanes of the warp are in %s", kCollectiveNames[int(kind)],
         kCollectiveNames[int(meeting.kind)]);
  meeting.kind = kind;
  meeting.slots[lane()] = slot;
  meeting.arrived |= 1u << lane();
  if (meeting.arrived != mask) return wait_in(meeting.waiters, describe_meeting, &meeting, 0);
  if (action) action(meeting.slots, mask, context);
  meeting.arrived = 0;
  wake(meeting.waiters);
}

void run_block(int threads, void (*body)(void*), void* arguments) {
  thread_count = live = threads;
  block_body = body, block_arguments = arguments;
  idle_polls = 0;
  deferred.clear();
  for (auto& of_warp : meetings)
    for (Meeting& m : of_warp) m.arrived = 0, m.waiters = WaitQueue();
  for (int i = 0; i < threads; ++i) {
    prepare_context(fibers[i].context, stack_of(i), kStackBytes, fiber_entry);
    fibers[i].describe = nullptr;
  }
  for (int w = 0; w * 32 < threads; ++w) warps[w] = {kFullMask, 0, random_bits()};
  while (live > 0) {
    if (mode.seeded ? run_by_priority() : run_in_turn()) continue;
    if (!deferred.empty())
      run_deferred(deferred.size() - 1);
    else if (!any_runnable())
      fail("DEADLOCK", "no thread can go on%s", stuck_threads().c_str());
  }
  if (!deferred.empty()) fail("IN-FLIGHT", "the block ended while %s was in flight", deferred.back().what);
}

void begin_launch() {
  failure = false, in_scheduler = true;
  failure_message.clear();
  random_state = mode.seed * 0x2545f4914f6cdd1dull + 1;
}

}  // namespace emu
