// The tensor core as seen by one warp of a warpgroup: it owns 16 of the 64 rows. Warps of a warpgroup proceed
// independently, which is the weakest order a kernel may count on.
#include "../device/wgmma.h"

#include <vector>

#include "fragments.h"
#include "scheduler.h"

namespace emu {
namespace {

constexpr int kRows = 16, kMaximumN = 256, kMaximumK = 16, kBlock = 16;

struct Issue {  // one instruction as one lane gave it
  const WgmmaShape* shape;
  const uint32_t* a_registers;
  uint64_t a, b;
  uint32_t* accumulator;
  bool accumulate;
};
struct WarpOperation {  // the same instruction for the whole warp
  const WgmmaShape* shape;
  uint64_t a, b;
  bool accumulate, a_in_registers;
  const uint32_t* a_registers[32];
  uint32_t* accumulator[32];
};
using Group = std::vector<WarpOperation>;

std::vector<Issue> open_issues[kMaxThreads];
std::deque<Group> pending_groups[kMaxWarps];
InOrderQueue late_groups[kMaxWarps];
int registers_of_warp[kMaxWarps], registers_free;
WaitQueue register_waiters;

// Shared-memory operand by its descriptor; address units are bytes.
struct Operand {
  uint32_t start, leading, stride, width, swizzle;  // width: bytes of a swizzle row, 16 without swizzle
  bool mn_major;
  int reader;  // first thread of the warp

  Operand(uint64_t bits, bool mn_major_, int reader_) : mn_major(mn_major_), reader(reader_) {
    constexpr uint32_t kWidths[] = {16, 128, 64, 32};
    const uint32_t layout = uint32_t(bits >> 62);
    start = uint32_t(bits & 0x3fff) << 4, leading = uint32_t(bits >> 16 & 0x3fff) << 4,
    stride = uint32_t(bits >> 32 & 0x3fff) << 4;
    width = kWidths[layout], swizzle = width / 16 - 1;
  }

  // 16 contiguous bytes that hold element (mn, k) and its neighbours along the major direction.
  const unsigned char* chunk(uint32_t mn, uint32_t k_bytes, uint32_t mn_bytes, uint32_t k) const {
    uint32_t offset = start;
    if (!mn_major)
      offset += mn / 8 * stride + (swizzle ? mn % 8 * width + k_bytes : mn % 8 * 16 + k_bytes / 16 * leading);
    else if (swizzle)
      offset += mn_bytes / width * leading + k / 8 * stride + k % 8 * width + mn_bytes % width;
    else
      offset += mn_bytes / 16 * stride + k / 8 * leading + k % 8 * 16;
    offset ^= (offset >> 7 & swizzle) << 4;
    check_shared(offset, 16, "wgmma operand");
    check_async_read(offset, 16, reader, false, "wgmma");
    return shared_memory + offset;
  }
};

void decode_chunk(tl::DataType type, const unsigned char* chunk, float* out) {
  if (type == tl::DataType::kTensorFloat32) {
    for (int i = 0; i < 4; ++i) {
      uint32_t word;
      memcpy(&word, chunk + 4 * i, 4);
      out[i] = tfloat32(word);
    }
    return;
  }
  uint16_t bits[8];
  memcpy(bits, chunk, 16);
  if (type == tl::DataType::kBFloat16)
    for (int i = 0; i < 8; ++i) out[i] = bfloat16_to_float(bits[i]);
  else
    for (int i = 0; i < 8; ++i) out[i] = half_to_float(bits[i]);
}

// put(mn, k, value) for the rows first..first+count of the operand.
template <class Put>
void decode_operand(const Operand& operand, tl::DataType type, int first, int count, int k_size, Put put) {
  const int bytes = type == tl::DataType::kTensorFloat32 ? 4 : 2, per_chunk = 16 / bytes;
  float values[8];
  if (!operand.mn_major) {
    for (int mn = 0; mn < count; ++mn)
      for (int k = 0; k < k_size; k += per_chunk) {
        decode_chunk(type, operand.chunk(uint32_t(first + mn), uint32_t(k * bytes), 0, 0), values);
        for (int i = 0; i < per_chunk; ++i) put(mn, k + i, values[i]);
      }
    return;
  }
  for (int k = 0; k < k_size; ++k)
    for (int mn = 0; mn < count; mn += per_chunk) {
      decode_chunk(type, operand.chunk(0, 0, uint32_t((first + mn) * bytes), uint32_t(k)), values);
      for (int i = 0; i < per_chunk; ++i) put(mn + i, k, values[i]);
    }
}

struct Tile {
  alignas(64) float a[kRows][kMaximumK], b[kMaximumK][kMaximumN], c[kRows][kMaximumN];
};
Tile tile;

void multiply(int n, int k_size) {
  for (int r = 0; r < kRows; r += 4) {
    int j = 0;
    for (; j + kBlock <= n; j += kBlock) {
      float sum[4][kBlock];
      for (int i = 0; i < 4; ++i) memcpy(sum[i], tile.c[r + i] + j, sizeof sum[i]);
      for (int k = 0; k < k_size; ++k)
        for (int i = 0; i < 4; ++i)
          for (int x = 0; x < kBlock; ++x) sum[i][x] += tile.a[r + i][k] * tile.b[k][j + x];
      for (int i = 0; i < 4; ++i) memcpy(tile.c[r + i] + j, sum[i], sizeof sum[i]);
    }
    for (int i = 0; i < 4; ++i)
      for (int x = j; x < n; ++x)
        for (int k = 0; k < k_size; ++k) tile.c[r + i][x] += tile.a[r + i][k] * tile.b[k][x];
  }
}

void decode_operands(const WarpOperation& op, int warp) {
  const WgmmaShape& shape = *op.shape;
  if (op.a_in_registers)
    decode_a_registers(shape.operand, shape.k, op.a_registers, tile.a);
  else
    decode_operand(Operand(op.a, shape.a_mn_major, warp * 32), shape.operand, warp % 4 * kRows, kRows, shape.k,
                   [](int mn, int k, float v) { tile.a[mn][k] = v; });
  decode_operand(Operand(op.b, shape.b_mn_major, warp * 32), shape.operand, 0, shape.n, shape.k,
                 [](int mn, int k, float v) { tile.b[k][mn] = v; });
  if (shape.negative_a == shape.negative_b) return;
  for (auto& row : tile.a)
    for (float& value : row) value = -value;
}

void execute(const Group& group, int warp) {
  uint32_t* const* loaded = nullptr;  // whose accumulator lies in the tile: a chain of k steps keeps it there
  const WgmmaShape* shape = nullptr;
  auto flush = [&] {
    if (loaded) store_accumulator(shape->accumulator, shape->n, tile.c, loaded);
  };
  for (const WarpOperation& op : group) {
    const bool same = loaded && loaded[0] == op.accumulator[0] && shape == op.shape;
    if (!same) {
      flush();
      if (op.accumulate) load_accumulator(op.shape->accumulator, op.shape->n, op.accumulator, tile.c);
    }
    if (!op.accumulate)
      for (auto& row : tile.c) memset(row, 0, size_t(op.shape->n) * sizeof(float));
    loaded = op.accumulator, shape = op.shape;
    decode_operands(op, warp);
    multiply(shape->n, shape->k);
  }
  flush();
}

Group gather(void* const slots[32]) {
  const auto& first = *static_cast<std::vector<Issue>*>(slots[0]);
  Group group(first.size());
  for (int l = 0; l < 32; ++l) {
    const auto& mine = *static_cast<std::vector<Issue>*>(slots[l]);
    if (mine.size() != first.size())
      fail("DIVERGED", "lanes 0 and %d issued %zu and %zu wgmma before the commit", l, first.size(), mine.size());
    for (size_t i = 0; i < mine.size(); ++i) {
      const Issue &m = mine[i], &f = first[i];
      if (m.shape != f.shape || m.a != f.a || m.b != f.b || m.accumulate != f.accumulate ||
          !m.a_registers != !f.a_registers)
        fail("DIVERGED", "lanes 0 and %d disagree about the operands of wgmma %zu of a group", l, i);
      WarpOperation& op = group[i];
      op.shape = m.shape, op.a = m.a, op.b = m.b, op.accumulate = m.accumulate,
      op.a_in_registers = m.a_registers != nullptr;
      op.a_registers[l] = m.a_registers, op.accumulator[l] = m.accumulator;
    }
  }
  return group;
}

void commit_action(void* const slots[32], unsigned, const void*) {
  Group group = gather(slots);
  const int w = warp();
  if (!mode.lazy)
    execute(group, w);
  else if (!mode.late)
    pending_groups[w].push_back(std::move(group));
  else
    late_groups[w].push("a wgmma group", [group = std::move(group), w] { execute(group, w); });
}

void wait_action(void* const[32], unsigned, const void* groups_left) {
  auto& groups = pending_groups[warp()];
  while (groups.size() > size_t(*static_cast<const int*>(groups_left))) {
    execute(groups.front(), warp());
    groups.pop_front();
  }
}

std::string describe_groups(const void*, int left) { return format("wgmma, until at most %d groups are left", left); }
// At launch every thread has an equal share of the registers, 65536 for all blocks at once, in steps of 8, at most 255.
int registers_at_launch(int threads) { return std::min(65536 / (threads * blocks_at_once) / 8 * 8, 256); }
std::string describe_registers(const void*, int count) {
  return format("setmaxnreg.inc %d: %d registers are free in the block's pool of %u x %u threads", count,
                registers_free, registers_at_launch(int(blockDim.x)), blockDim.x);
}

struct RegisterRequest {
  int count;
  bool increase;
};

}  // namespace

void reset_wgmma(int threads) {
  for (int& count : registers_of_warp) count = registers_at_launch(threads);
  registers_free = 0;
  register_waiters = WaitQueue();
  for (auto& issues : open_issues) issues.clear();
  for (auto& groups : pending_groups) groups.clear();
  for (auto& groups : late_groups) groups.clear();
}

void wgmma_issue(const WgmmaShape& shape, const uint32_t* a_registers, uint64_t a, uint64_t b, uint32_t* accumulator,
                 bool accumulate) {
  open_issues[current_thread].push_back({&shape, a_registers, a, b, accumulator, accumulate});
}

void wgmma_commit() {
  preemption_point();
  warp_collective(Collective::kWgmmaCommit, kFullMask, &open_issues[current_thread], commit_action);
  open_issues[current_thread].clear();
}

void wgmma_wait(int groups_left) {
  preemption_point();
  warp_collective(Collective::kWgmmaWait, kFullMask, nullptr, wait_action, &groups_left);
  late_groups[warp()].wait_until_at_most(size_t(groups_left), describe_groups);
}

void set_max_registers(int count, bool increase) {
  warp_collective(Collective::kSetMaxRegisters, kFullMask, nullptr, nullptr);
  int& mine = registers_of_warp[warp()];
  if (count % 8 || count < 24 || count > 256) fail("REGISTERS", "setmaxnreg %d: a multiple of 8 from 24 to 256", count);
  if (increase != (count >= mine) && count != mine)
    fail("REGISTERS", "setmaxnreg.%s %d by a warp that has %d registers", increase ? "inc" : "dec", count, mine);
  if (lane() == 0) {
    while (registers_free < (count - mine) * 32) wait_in(register_waiters, describe_registers, nullptr, count);
    registers_free -= (count - mine) * 32;
    mine = count;
    wake(register_waiters);
  }
  warp_collective(Collective::kSetMaxRegisters, kFullMask, nullptr, nullptr);
}

}  // namespace emu
