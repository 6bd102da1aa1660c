// Launching a grid: one block after the other, every block from a clean state.
#include <vector>

#include "scheduler.h"

namespace emu {

alignas(1024) unsigned char shared_memory[kSharedBytes];
uint32_t dynamic_shared_bytes;
void begin_launch();

namespace {

struct StaticVariable {
  const char* name;
  uint32_t offset, bytes;
};
std::vector<StaticVariable> static_variables;
uint32_t static_end = kDynamicSharedBytes;
std::vector<dim3> chosen_blocks;

// What the kernel before makes. In each block, which might be the first one to run, it is there when a thread has waited
// for that kernel's end.
struct HandedOver {
  void* to;
  const void* from;
  size_t bytes;
};
std::vector<HandedOver> handed_over;
WaitQueue awaiting;
bool awaited, ended;

void begin_kernel_before() {
  for (const HandedOver& buffer : handed_over) memset(buffer.to, 0xff, buffer.bytes);
  awaiting = {};
  awaited = ended = false;
}

void end_kernel_before() {
  for (const HandedOver& buffer : handed_over) memcpy(buffer.to, buffer.from, buffer.bytes);
  ended = true;
  wake(awaiting);
}

std::string describe_kernel_before(const void*, int) { return "the end of the kernel before"; }

void check_launch(const cudaLaunchConfig_t& config) {
  const unsigned threads = config.blockDim.x * config.blockDim.y * config.blockDim.z;
  const dim3 grid = config.gridDim;
  if (threads == 0 || threads > unsigned(kMaxThreads) || threads % 32)
    fail("LAUNCH", "%u threads in a block: a multiple of 32 up to %d is possible", threads, kMaxThreads);
  if (!grid.x || !grid.y || !grid.z) fail("LAUNCH", "empty grid (%u, %u, %u)", grid.x, grid.y, grid.z);
  if (config.dynamicSmemBytes > kDynamicSharedBytes)
    fail("LAUNCH", "%zu bytes of dynamic shared memory, %u are possible", config.dynamicSmemBytes, kDynamicSharedBytes);
  for (unsigned i = 0; i < config.numAttrs; ++i)
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) fail("UNMODELLED", "thread block clusters");
}

void run_one_block(dim3 block, int threads, void (*body)(void*), void* arguments) {
  blockIdx = block;
  // All ones is a NaN in every floating-point format: a value read before it is written shows in the result.
  memset(shared_memory, 0xff, dynamic_shared_bytes);
  memset(shared_memory + kDynamicSharedBytes, 0xff, static_end - kDynamicSharedBytes);
  reset_barriers();
  reset_proxy();
  reset_tma();
  reset_async_copies();
  reset_wgmma(threads);
  begin_kernel_before();
  run_block(threads, body, arguments);
}

void run_all_blocks(int threads, void (*body)(void*), void* arguments) {
  for (unsigned z = 0; z < gridDim.z; ++z)
    for (unsigned y = 0; y < gridDim.y; ++y)
      for (unsigned x = 0; x < gridDim.x; ++x) run_one_block(dim3(x, y, z), threads, body, arguments);
}

}  // namespace

uint32_t shared_offset(const void* address) {
  auto offset = uintptr_t(address) - uintptr_t(shared_memory);
  if (offset >= kSharedBytes) fail("SHARED-BOUNDS", "address %p is not in shared memory", address);
  return uint32_t(offset);
}

uint32_t reserve_static_shared(const char* name, uint32_t bytes, uint32_t alignment) {
  const uint32_t offset = (static_end + alignment - 1) / alignment * alignment;
  if (offset + bytes > kSharedBytes)
    fail("SHARED-BOUNDS", "no room for the __shared__ variable %s of %u bytes", name, bytes);
  static_variables.push_back({name, offset, bytes});
  memset(shared_memory + offset, 0xff, bytes);  // reserved by the first thread that comes by, in the middle of a block
  static_end = offset + bytes;
  return offset;
}

void check_static_shared(uint32_t offset, uint32_t bytes, const char* what) {
  const bool inside = offset >= kDynamicSharedBytes && offset + bytes <= static_end;
  if (!inside)
    fail("SHARED-BOUNDS", "%s touches shared bytes %u to %u; the block has %u", what, offset, offset + bytes,
         dynamic_shared_bytes);
}

std::string shared_name(const void* address, uint32_t element_bytes) {
  const auto offset = uint32_t(uintptr_t(address) - uintptr_t(shared_memory));
  for (const StaticVariable& variable : static_variables)
    if (offset >= variable.offset && offset < variable.offset + variable.bytes)
      return format("%s[%u]", variable.name, (offset - variable.offset) / element_bytes);
  return format("at shared byte %u", offset);
}

void await_kernel() {
  if (handed_over.empty() || ended) return;
  if (!awaited) {
    awaited = true;
    defer("the kernel before", end_kernel_before);
  }
  while (!ended) wait_in(awaiting, describe_kernel_before, nullptr, 0);
}

cudaError_t launch(const cudaLaunchConfig_t& config, const char*, void (*body)(void*), void* arguments) {
  begin_launch();
  gridDim = config.gridDim, blockDim = config.blockDim;
  dynamic_shared_bytes = uint32_t(config.dynamicSmemBytes);
  const int threads = int(blockDim.x * blockDim.y * blockDim.z);
  try {
    check_launch(config);
    for (dim3 block : chosen_blocks) run_one_block(block, threads, body, arguments);
    if (chosen_blocks.empty()) run_all_blocks(threads, body, arguments);
    end_kernel_before();
  } catch (const LaunchFailed&) {
    return cudaErrorLaunchFailure;
  }
  return cudaSuccess;
}

}  // namespace emu

// Entry points for the host program, besides the generated `call`.
#define EMULATOR_EXPORT extern "C" __attribute__((visibility("default")))

EMULATOR_EXPORT void emulator_configure(int lazy, int late, int seeded, uint64_t seed, int fences,
                                        const unsigned* blocks, int block_count) {
  emu::mode = {lazy != 0, late != 0, seeded != 0, seed, emu::FenceRule(fences)};
  emu::chosen_blocks.clear();
  emu::handed_over.clear();
  emu::begin_launch();
  emu::reset_tma();
  for (int i = 0; i < block_count; ++i)
    emu::chosen_blocks.push_back(dim3(blocks[3 * i], blocks[3 * i + 1], blocks[3 * i + 2]));
}
// Before a launch: `to` is full of ones, until it is filled with `from` when the kernel waits for the one before it.
EMULATOR_EXPORT void emulator_hand_over(void* to, const void* from, uint64_t bytes) {
  emu::handed_over.push_back({to, from, size_t(bytes)});
}
// Libraries in one process share the fibers' stacks: a few thousand mappings each would exhaust the process.
EMULATOR_EXPORT void* emulator_map_stacks() { return emu::map_stacks(); }
EMULATOR_EXPORT void emulator_use_stacks(void* memory) { emu::use_stacks(static_cast<char*>(memory)); }
EMULATOR_EXPORT const char* emulator_failure() {
  return emu::failed() ? emu::failure_text() : emu::refused_tensor_map();
}
