// Warp shuffles, votes and elect.
#pragma once

#include "execution.h"
#include "float16.h"

namespace emu {

struct ShuffleSlot {
  uint64_t value;
  int source;  // lane to read, after the width and bound rules of shfl.sync
};

inline void shuffle_action(void* const slots[32], unsigned mask, const void*) {
  uint64_t values[32];
  for (int i = 0; i < 32; ++i) values[i] = mask >> i & 1 ? static_cast<ShuffleSlot*>(slots[i])->value : 0;
  for (int i = 0; i < 32; ++i) {
    if (!(mask >> i & 1)) continue;
    auto* slot = static_cast<ShuffleSlot*>(slots[i]);
    if (!(mask >> slot->source & 1))
      fail("SHUFFLE", "lane %d reads lane %d, which is not in mask 0x%x", i, slot->source, mask);
    slot->value = values[slot->source];
  }
}

template <class T>
inline T shuffle(unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  ShuffleSlot slot{0, source};
  std::memcpy(&slot.value, &value, sizeof value);
  warp_collective(Collective::kShuffle, mask, &slot, shuffle_action);
  std::memcpy(&value, &slot.value, sizeof value);
  return value;
}

struct VoteSlot {
  int predicate;
  unsigned ballot;
};
inline void vote_action(void* const slots[32], unsigned mask, const void*) {
  unsigned ballot = 0;
  for (int i = 0; i < 32; ++i) ballot |= unsigned(mask >> i & 1 && static_cast<VoteSlot*>(slots[i])->predicate) << i;
  for (int i = 0; i < 32; ++i)
    if (mask >> i & 1) static_cast<VoteSlot*>(slots[i])->ballot = ballot;
}

}  // namespace emu

// shfl.sync: segments of `width` lanes; a source outside the segment leaves the lane its own value (up, down, xor),
// an index wraps within the segment.
template <class T>
inline T __shfl_sync(unsigned mask, T value, int index, int width = 32) {
  return emu::shuffle(mask, value, (emu::lane() & ~(width - 1)) | (index & (width - 1)));
}
template <class T>
inline T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int source = emu::lane() - int(delta), first = emu::lane() & ~(width - 1);
  return emu::shuffle(mask, value, source < first ? emu::lane() : source);
}
template <class T>
inline T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  int source = emu::lane() + int(delta), last = emu::lane() | (width - 1);
  return emu::shuffle(mask, value, source > last ? emu::lane() : source);
}
template <class T>
inline T __shfl_xor_sync(unsigned mask, T value, int bits, int width = 32) {
  int source = emu::lane() ^ bits, last = emu::lane() | (width - 1);
  return emu::shuffle(mask, value, source > last ? emu::lane() : source);
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  emu::VoteSlot slot{predicate, 0};
  emu::warp_collective(emu::Collective::kVote, mask, &slot, emu::vote_action);
  return slot.ballot;
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) == mask; }

namespace tl {

template <class T>
inline T shfl_sync(unsigned mask, T value, int index) {
  return __shfl_sync(mask, value, index);
}
template <class T>
inline T shfl_xor_sync(unsigned mask, T value, int bits) {
  return __shfl_xor_sync(mask, value, bits);
}
template <class T>
inline T shfl_up_sync(unsigned mask, T value, int delta) {
  return __shfl_up_sync(mask, value, unsigned(delta));
}
template <class T>
inline T shfl_down_sync(unsigned mask, T value, int delta) {
  return __shfl_down_sync(mask, value, unsigned(delta));
}

// One lane of one warp in every `Extent` threads (0: one thread of the block). elect.sync needs the whole warp: in
// divergent code it never returns, so the lanes meet here.
template <int Extent>
inline bool tl_shuffle_elect() {
  emu::warp_collective(emu::Collective::kElect, emu::kFullMask, nullptr, nullptr);
  if (emu::lane() != 0) return false;
  if constexpr (Extent == 0) return emu::warp() == 0;
  return emu::warp() % ((Extent + 31) / 32) == 0;
}

inline int get_lane_idx(int = 32) { return emu::lane(); }
inline int get_warp_idx(int = 32) { return emu::warp(); }
inline int get_warp_idx_sync(int = 32) { return emu::warp(); }
inline int get_warp_group_idx(int = 32, int warps = 4) { return emu::warp() / (warps > 0 ? warps : 4); }

}  // namespace tl
