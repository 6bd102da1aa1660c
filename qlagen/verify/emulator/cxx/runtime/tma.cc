// The TMA unit: tensor maps, tiled and contiguous bulk copies, groups of stores.
#include "../device/tma.h"

#include <vector>

#include "../device/float16.h"
#include "scheduler.h"

namespace emu {
namespace {

constexpr int kMaximumRank = 5;
constexpr uint32_t kChunkBytes = 16;  // the swizzle moves whole chunks

enum ElementKind { kInteger, kFloat, kHalf, kBfloat16 };
struct ElementType {
  uint32_t bytes;
  ElementKind kind;
};
// By CUtensorMapDataType; zero bytes marks types that are not modelled.
constexpr ElementType kElementTypes[] = {{1, kInteger}, {2, kInteger}, {4, kInteger}, {4, kInteger}, {8, kInteger},
                                         {8, kInteger}, {2, kHalf},    {4, kFloat},   {8, kInteger}, {2, kBfloat16},
                                         {4, kFloat},   {4, kFloat},   {4, kFloat}};

struct TensorMap {
  char* address;
  uint64_t dims[kMaximumRank];
  uint64_t strides[kMaximumRank - 1];  // bytes, of dimensions 1 and up
  uint16_t box[kMaximumRank];
  uint8_t type, rank, swizzle, fill_nan;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

std::string refused;
InOrderQueue store_queues[kMaxThreads];
std::vector<std::function<void()>> open_stores[kMaxThreads];

CUresult refuse(const std::string& why) {
  refused = "TENSOR-MAP\nhost\n" + why;
  return CUDA_ERROR_INVALID_VALUE;
}

TensorMap decode(const CUtensorMap& map) {
  TensorMap result;
  memcpy(&result, &map, sizeof result);
  return result;
}

// Shared-memory address after the swizzle: address bits 4..6 are mixed with bits 7..9 (128-byte mode; fewer otherwise).
uint32_t swizzled(uint32_t offset, int mode) {
  const uint32_t bits = mode == 3 ? 7 : mode == 2 ? 3 : mode == 1 ? 1 : 0;
  return offset ^ ((offset >> 7 & bits) << 4);
}

template <class T>
void add_elements(void* to, const void* from, uint32_t bytes) {
  for (uint32_t i = 0; i < bytes; i += sizeof(T)) {
    T a, b;
    memcpy(&a, static_cast<char*>(to) + i, sizeof a);
    memcpy(&b, static_cast<const char*>(from) + i, sizeof b);
    a = a + b;
    memcpy(static_cast<char*>(to) + i, &a, sizeof a);
  }
}

void write_global(char* to, const unsigned char* from, uint32_t bytes, bool add, ElementKind kind) {
  if (!add)
    memcpy(to, from, bytes);
  else if (kind == kFloat)
    add_elements<float>(to, from, bytes);
  else if (kind == kHalf)
    add_elements<half_t>(to, from, bytes);
  else if (kind == kBfloat16)
    add_elements<bfloat16_t>(to, from, bytes);
  else
    fail("UNMODELLED", "bulk add of integers");
}

struct Box {
  TensorMap map;
  int64_t coordinates[kMaximumRank];
  uint32_t shared;  // offset of the box in shared memory
  int thread;
  uint32_t element_bytes() const { return kElementTypes[map.type].bytes; }
  uint32_t row_bytes() const { return map.box[0] * element_bytes(); }
  uint32_t rows() const {
    uint32_t product = 1;
    for (int i = 1; i < map.rank; ++i) product *= map.box[i];
    return product;
  }
  uint32_t bytes() const { return rows() * row_bytes(); }

  // Calls visit(shared chunk, address of its first element, bytes inside the tensor); row order of the box.
  template <class Visit>
  void for_each_chunk(Visit visit) const {
    for (uint32_t row = 0; row < rows(); ++row) {
      int64_t offset = 0;
      bool inside = true;
      uint32_t rest = row;
      for (int i = 1; i < map.rank; ++i) {
        const int64_t index = coordinates[i] + rest % map.box[i];
        rest /= map.box[i];
        inside = inside && index >= 0 && index < int64_t(map.dims[i]);
        offset += index * int64_t(map.strides[i - 1]);
      }
      for (uint32_t column = 0; column < row_bytes(); column += kChunkBytes) {
        const int64_t first = coordinates[0] * element_bytes() + column, end = int64_t(map.dims[0]) * element_bytes();
        unsigned char* chunk = shared_memory + swizzled(shared + row * row_bytes() + column, map.swizzle);
        visit(chunk, map.address + offset + first, inside ? first : end, end);
      }
    }
  }
};

void load_box(const Box& box) {
  box.for_each_chunk([&](unsigned char* chunk, const char* from, int64_t first, int64_t end) {
    note_async_write(shared_offset(chunk), kChunkBytes);
    if (first >= 0 && first + kChunkBytes <= end) {
      memcpy(chunk, from, kChunkBytes);
      return;
    }
    memset(chunk, box.map.fill_nan ? 0xff : 0, kChunkBytes);
    for (int64_t i = 0; i < kChunkBytes; ++i)
      if (first + i >= 0 && first + i < end) chunk[i] = uint8_t(from[i]);
  });
}

void store_box(const Box& box, bool add) {
  box.for_each_chunk([&](unsigned char* chunk, char* to, int64_t first, int64_t end) {
    const int64_t skip = first < 0 ? -first : 0, stop = end - first < kChunkBytes ? end - first : kChunkBytes;
    if (stop > skip) check_async_read(shared_offset(chunk), kChunkBytes, box.thread, true, "TMA store");
    if (stop > skip)
      write_global(to + skip, chunk + skip, uint32_t(stop - skip), add, kElementTypes[box.map.type].kind);
  });
}

Box make_box(const CUtensorMap& map, const void* shared, const int* coordinates, int rank, const char* what) {
  Box box{decode(map), {}, shared_offset(shared), current_thread};
  if (box.map.rank != rank)
    fail("TENSOR-MAP", "%s with %d coordinates on a tensor map of rank %d", what, rank, box.map.rank);
  if (box.shared % 128) fail("MISALIGNED", "%s: shared byte %u is not a multiple of 128", what, box.shared);
  check_shared(box.shared, box.bytes(), what);
  for (int i = 0; i < rank; ++i) box.coordinates[i] = coordinates[i];
  return box;
}

void check_bulk(uint32_t shared, const void* global, uint32_t bytes, const char* what) {
  if (shared % 16 || uintptr_t(global) % 16 || bytes % 16)
    fail("MISALIGNED", "%s of %u bytes at shared byte %u and %p: multiples of 16 are needed", what, bytes, shared,
         global);
  check_shared(shared, bytes, what);
}

std::string describe_stores(const void*, int left) {
  return format("bulk stores, until at most %d groups are left", left);
}

}  // namespace

const char* refused_tensor_map() { return refused.c_str(); }

void reset_tma() {
  refused.clear();
  for (int i = 0; i < kMaxThreads; ++i) {
    store_queues[i].clear();
    open_stores[i].clear();
  }
}

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* dims, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  if (rank < 1 || rank > kMaximumRank) return refuse(format("rank %u: 1 to 5 are possible", rank));
  if (unsigned(type) >= sizeof kElementTypes / sizeof *kElementTypes || interleave != 0)
    return refuse("element type or interleave that is not modelled");
  TensorMap m{static_cast<char*>(address), {}, {}, {}, uint8_t(type), uint8_t(rank), uint8_t(swizzle), uint8_t(fill)};
  const uint32_t bytes = kElementTypes[type].bytes, inner = box[0] * bytes;
  const uint32_t widest = swizzle == 3 ? 128 : swizzle == 2 ? 64 : swizzle == 1 ? 32 : 1 << 20;
  if (uintptr_t(address) % 16) return refuse("the tensor's address is not a multiple of 16");
  if (inner % 16 || inner > widest)
    return refuse(format("a box row of %u bytes: a multiple of 16, at most the swizzle width", inner));
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (dims[i] == 0 || dims[i] > 1ull << 32)
      return refuse(format("dimension %u is %llu: 1 to 2^32 are possible", i, (unsigned long long)dims[i]));
    if (box[i] == 0 || box[i] > 256) return refuse(format("box dimension %u is %u: 1 to 256 are possible", i, box[i]));
    if (element_strides[i] != 1) return refuse("element strides other than 1 are not modelled");
    if (i && (strides[i - 1] % 16 || strides[i - 1] >= 1ull << 40))
      return refuse(
          format("stride %u is %llu bytes: a multiple of 16 below 2^40", i, (unsigned long long)strides[i - 1]));
    m.dims[i] = dims[i], m.box[i] = uint16_t(box[i]);
    if (i) m.strides[i - 1] = strides[i - 1];
  }
  memcpy(map, &m, sizeof m);
  return CUDA_SUCCESS;
}

void tensor_load(const CUtensorMap& map, Barrier& barrier, void* shared, const int* coordinates, int rank) {
  preemption_point();
  Box box = make_box(map, shared, coordinates, rank, "TMA load");
  defer("a TMA load", [box, &barrier] {
    load_box(box);
    barrier.complete_transaction(box.bytes());
  });
}

void tensor_store(const CUtensorMap& map, const void* shared, const int* coordinates, int rank, bool add) {
  preemption_point();
  Box box = make_box(map, shared, coordinates, rank, "TMA store");
  open_stores[current_thread].push_back([box, add] { store_box(box, add); });
}

void bulk_load(void* shared, const void* global, Barrier& barrier, uint32_t bytes) {
  preemption_point();
  check_bulk(shared_offset(shared), global, bytes, "bulk load");
  defer("a bulk load", [=, &barrier] {
    memcpy(shared, global, bytes);
    note_async_write(shared_offset(shared), bytes);
    barrier.complete_transaction(bytes);
  });
}

void bulk_store(void* global, const void* shared, uint32_t bytes, bool add_float) {
  preemption_point();
  check_bulk(shared_offset(shared), global, bytes, "bulk store");
  open_stores[current_thread].push_back([=, thread = current_thread] {
    check_async_read(shared_offset(shared), bytes, thread, true, "bulk store");
    write_global(static_cast<char*>(global), static_cast<const unsigned char*>(shared), bytes, add_float, kFloat);
  });
}

void store_commit() {
  auto stores = std::move(open_stores[current_thread]);
  open_stores[current_thread].clear();
  store_queues[current_thread].push("a TMA store", [stores = std::move(stores)] {
    for (const auto& store : stores) store();
  });
}

void store_wait(unsigned groups_left) { store_queues[current_thread].wait_until_at_most(groups_left, describe_stores); }

}  // namespace emu
