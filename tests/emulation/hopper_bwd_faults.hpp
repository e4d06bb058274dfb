// Configs of Hopper's backward kernel, and its emulated machine with one fault planted in it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/hopper/bwd_shared.h"
#include "device/sm90/machine_host.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::test {

using namespace device;

/// The one fault of the run under way.
enum class BwdFault {
  none,
  sums_sent_unfenced,
  scores_unfenced,
  refilled_early,
  lost_arrival,
  no_product_wait,
  sums_left_alone,
  other_statistics,
  weights_taken_early,
  draws_overwritten,
  handed_on_early,
  taken_before_staged,
  staged_before_read,
  handed_back_unread,
  fetched_early,
  taken_before_fetched,
  turns_come_late,
  blocks_backwards,
  bias_not_expected,
  values_overwritten,
  keys_overwritten,
  gradients_overwritten,
  numbers_overwritten,
  first_block_idle,
  rounded_early,
  share_not_handed_on,
  share_handed_on_early,
  scores_overwritten,
  gradients_staged_early,
};
inline BwdFault g_bwd_fault = BwdFault::none;

/// Two warpgroups of 64 keys each, of the fewest columns; one block works on all tiles of keys.
inline constexpr HopperBwdConfig kNarrow = [] {
  HopperBwdConfig c;
  c.persistent = 1;
  c.head_dim = c.head_dim_v = 64;
  c.waves = 12;
  c.block_m = 128;
  c.stages = 2;
  c.ranged = 1;
  return c;
}();
/// The same of more columns, and so of tiles of 64 queries.
constexpr HopperBwdConfig with_middle_dims(HopperBwdConfig c) {
  c.head_dim = c.head_dim_v = 96;
  c.block_m = 64;
  c.stages = 3;
  return c;
}
/// The same of key heads with several query heads.
constexpr HopperBwdConfig with_groups(HopperBwdConfig c) {
  c.grouped = 1;
  return c;
}
/// Before such tiles dk of the tile of keys before has left.
inline constexpr HopperBwdConfig kMiddle = with_middle_dims(kNarrow);
inline constexpr HopperBwdConfig kDropout = [] {
  HopperBwdConfig c = kNarrow;
  c.persistent = 0;
  c.dropout = 1;
  c.waves = 4 * c.warpgroups();
  return c;
}();
inline constexpr HopperBwdConfig kSoftcap = [] {
  HopperBwdConfig c = kNarrow;
  c.softcap = 1;
  return c;
}();
inline constexpr HopperBwdConfig kBiased = [] {
  HopperBwdConfig c = kNarrow;
  c.persistent = 0;
  c.block_m = 64;
  c.stages = 3;
  c.bias_type = kBiasBf16;
  c.bias_boxes = 1;
  return c;
}();
inline constexpr HopperBwdConfig kOrdered = [] {
  HopperBwdConfig c = kNarrow;
  c.persistent = 0;
  c.ordered = 1;
  c.waves = 4 * c.warpgroups();
  return c;
}();
/// Blocks work on one tile of keys after the other, and wait for each other's sums.
inline constexpr HopperBwdConfig kOrderedPersistent = [] {
  HopperBwdConfig c = kOrdered;
  c.persistent = 1;
  return c;
}();
/// The same where there is room for one tile of K alone.
inline constexpr HopperBwdConfig kOrderedMiddle = with_middle_dims(kOrderedPersistent);
/// Blocks that have no tile of keys left round dq.
inline constexpr HopperBwdConfig kRounding = [] {
  HopperBwdConfig c = kOrderedPersistent;
  c.rounds = 1;
  return c;
}();
/// The last tile of keys that adds to a tile of queries rounds it.
inline constexpr HopperBwdConfig kFinishing = [] {
  HopperBwdConfig c = kOrderedPersistent;
  c.last_rounds = 1;
  return c;
}();
/// The same of parts of 64 and 32 columns, beside a window, where each tile of keys is the last one of some queries.
inline constexpr HopperBwdConfig kFinishingWindow = [] {
  HopperBwdConfig c = with_middle_dims(kFinishing);
  c.windowed = 1;
  return c;
}();
/// And of the last heads the first keys' tiles come first.
constexpr HopperBwdConfig both_ways(HopperBwdConfig c) {
  c.both_ways = 1;
  return c;
}
inline constexpr HopperBwdConfig kBothWays = both_ways(kFinishing), kBothWaysWindow = both_ways(kFinishingWindow);
/// Without an order: warps that add count tiles of keys, all of which each query sees.
inline constexpr HopperBwdConfig kCounting = [] {
  HopperBwdConfig c = kMiddle;
  c.ranged = 0;
  c.rounds = c.partial_rows = 1;
  return c;
}();
inline constexpr HopperBwdConfig kWideCounting = [] {
  HopperBwdConfig c = kCounting;
  c.head_dim = c.head_dim_v = 192;
  c.shares_keys = 1;
  c.waves = 4 * c.warpgroups();
  return c;
}();
/// Later heads are preprocessed while this launch runs.
constexpr HopperBwdConfig beside_preprocess(HopperBwdConfig c) {
  c.late_preprocess = 1;
  return c;
}
inline constexpr HopperBwdConfig kLate = beside_preprocess(kBothWays);
/// Draws take the warps that would be couriers: those that multiply dQ take turns themselves.
inline constexpr HopperBwdConfig kOrderedDropout = [] {
  HopperBwdConfig c = kDropout;
  c.ordered = 1;
  return c;
}();
/// A block has a tile of keys for each query head, to whose dk and dv those of the others are added.
inline constexpr HopperBwdConfig kGrouped = with_groups(with_middle_dims(kRounding));
/// The same of all of them, by warps that count.
inline constexpr HopperBwdConfig kGroupedCounting = with_groups(kCounting);
/// Two warpgroups with the same 64 keys; one block works on all tiles of keys.
inline constexpr HopperBwdConfig kWide = [] {
  HopperBwdConfig c;
  c.persistent = 1;
  c.head_dim = c.head_dim_v = 192;
  c.shares_keys = 1;
  c.waves = 4 * c.warpgroups();
  c.ranged = 1;
  return c;
}();

/// Warpgroups with 64 keys each that multiply dQ, too.
inline constexpr HopperBwdConfig kOwnDq = [] {
  HopperBwdConfig c;
  c.persistent = c.own_dq = 1;
  c.head_dim = 192;
  c.head_dim_v = 128;
  c.stages = 2;
  c.ranged = c.partial_rows = 1;
  c.waves = 4 * c.warpgroups();
  return c;
}();
/// The same where each query sees all keys: warps count tiles of keys, and blocks that have none left round dq.
inline constexpr HopperBwdConfig kOwnDqCounting = [] {
  HopperBwdConfig c = kOwnDq;
  c.ranged = 0;
  c.rounds = 1;
  return c;
}();

/// And in a fixed order, by couriers.
inline constexpr HopperBwdConfig kOwnDqOrdered = [] {
  HopperBwdConfig c = kOwnDq;
  c.ordered = c.rounds = 1;
  return c;
}();

/// Whose last sums are rounded by those that multiply them.
inline constexpr HopperBwdConfig kOwnDqFinishing = [] {
  HopperBwdConfig c = kOwnDqOrdered;
  c.rounds = 0;
  c.last_rounds = 1;
  return c;
}();

inline constexpr HopperBwdConfig kOwnDqBothWays = both_ways(kOwnDqFinishing);

inline constexpr HopperBwdConfig kWideOrdered = [] {
  HopperBwdConfig c = kWide;
  c.persistent = 0;
  c.ordered = 1;
  return c;
}();
/// The same of blocks that work on one tile of keys after the other, and round dq.
inline constexpr HopperBwdConfig kWideRounding = [] {
  HopperBwdConfig c = kWideOrdered;
  c.persistent = c.rounds = 1;
  return c;
}();
inline constexpr HopperBwdConfig kWideGrouped = with_groups(kWideRounding);
inline constexpr HopperBwdConfig kWideLate = beside_preprocess(kWideGrouped);
inline constexpr HopperBwdConfig kWideDropout = [] {
  HopperBwdConfig c = kWide;
  c.persistent = 0;
  c.dropout = 1;
  return c;
}();

template <HopperBwdConfig C>
struct FaultyBwdSm90 : HostSm90Machine {
  using Block = HopperBwdShared<FaultyBwdSm90, C>;
  /// Whether it is of the warpgroup that adds up dq.
  static bool sums() { return thread() / kWarpgroupThreads == (C.shares_keys ? 1 : 0); }
  /// Whether it is of the one that loads tiles.
  static bool loads() { return thread() / kWarpgroupThreads == (C.couriers() ? 3 : 0); }
  /// Whether it is of the one that makes draws.
  static bool draws() { return thread() / kWarpgroupThreads == (C.shares_keys ? 0 : 3); }
  static bool hands_weights(uint64_t* barrier) {
    if constexpr (C.shares_keys) {
      const uint32_t at = shared_address(barrier) - static_cast<uint32_t>(offsetof(Block, handover));
      return at < sizeof(Block::handover.weights_full);
    }
    return false;
  }

  /// Whether it is of the warpgroup that has couriers; none of its other warps waits for stores.
  static bool carries() {
    return (C.couriers() || C.own_couriers()) && thread() / kWarpgroupThreads == (C.own_couriers() ? 0 : 3);
  }
  /// Whether it is of the warp that tells of a group's turns.
  static bool tells() { return C.tells_groups() && thread() / kLanes == C.waves - 1; }
  /// Whether it is of those that round dq in the end.
  static bool rounds() { return C.rounds && !sums() && !carries(); }
  /// What a barrier between the warps that multiply dQ and couriers says of sums; none: it is not one of these.
  enum class SumsAre : uint8_t { none, staged, read, fetched };
  static SumsAre sums_are(uint64_t* barrier) {
    using Handover = BwdHandover<FaultyBwdSm90, C>;
    if constexpr (C.own_couriers()) {
      const size_t at = shared_address(barrier) - offsetof(Block, handover);
      if (at >= sizeof(Handover) || at < offsetof(Handover, staged)) return SumsAre::none;
      if (at < offsetof(Handover, read)) return SumsAre::staged;
      return at < offsetof(Handover, fetched) ? SumsAre::read : SumsAre::fetched;
    }
    if constexpr (C.couriers()) {
      const size_t at = shared_address(barrier) - offsetof(Block, handover);
      if (at >= sizeof(Handover) || at < offsetof(Handover, staged)) return SumsAre::none;
      if (at < offsetof(Handover, read)) return SumsAre::staged;
      return at < offsetof(Handover, fetched) ? SumsAre::read : SumsAre::fetched;
    }
    return SumsAre::none;
  }

  /// Whether it is what the draws of the next tile wait for.
  static bool frees_draws(uint64_t* barrier) {
    if constexpr (C.dropout) {
      using Shared = HopperBwdShared<FaultyBwdSm90, C>;
      constexpr auto kEmpty = offsetof(Shared, draw_ring) + offsetof(decltype(Shared::draw_ring), empty);
      return shared_address(barrier) == static_cast<uint32_t>(kEmpty);
    }
    return false;
  }

  static bool is_at(uint64_t* barrier, size_t offset) {
    return shared_address(barrier) == static_cast<uint32_t>(offset);
  }
  /// Whether it is what the next keys wait for in the place of earlier ones.
  static bool keeps_keys(uint64_t* barrier) {
    constexpr auto kDone = offsetof(Block, keys_done);
    return is_at(barrier, kDone) || (C.key_stages() > 1 && is_at(barrier, kDone + sizeof(*barrier)));
  }
  static bool reads_number(uint64_t* barrier) {
    constexpr auto kRead = offsetof(Block, item_read);
    return is_at(barrier, kRead) || is_at(barrier, kRead + sizeof(*barrier));
  }
  /// Whether it says that products have read a tile of dS.
  static bool frees_scores([[maybe_unused]] uint64_t* barrier) {
    if constexpr (C.own_dq) {
      return is_at(barrier, offsetof(Block, score_ring) + offsetof(decltype(Block::score_ring), empty));
    }
    return false;
  }
  /// Of a block that works on one tile of keys after the other.
  static bool waits_in_vain([[maybe_unused]] uint64_t* barrier) {
    if constexpr (C.persistent) {
      if (g_bwd_fault == BwdFault::values_overwritten) return is_at(barrier, offsetof(Block, values_free));
      if (g_bwd_fault == BwdFault::keys_overwritten) return loads() && keeps_keys(barrier);
      if (g_bwd_fault == BwdFault::numbers_overwritten) return reads_number(barrier);
      if (g_bwd_fault == BwdFault::scores_overwritten) return frees_scores(barrier);
      if (g_bwd_fault == BwdFault::share_handed_on_early) return is_at(barrier, offsetof(Block, group_joined));
    }
    return false;
  }

  static void fence_shared_writes() {
    if (g_bwd_fault == (sums() ? BwdFault::sums_sent_unfenced : BwdFault::scores_unfenced)) return;
    HostSm90Machine::fence_shared_writes();
  }
  static void wait(uint64_t* barrier, uint32_t parity) {
    if (g_bwd_fault == BwdFault::refilled_early && thread() < kLanes && parity == 0) return;
    if (waits_in_vain(barrier)) return;
    if (g_bwd_fault == BwdFault::draws_overwritten && draws() && frees_draws(barrier)) return;
    if (g_bwd_fault == BwdFault::weights_taken_early && hands_weights(barrier)) return;
    if (g_bwd_fault == BwdFault::taken_before_staged && sums_are(barrier) == SumsAre::staged) return;
    const bool restages = C.own_couriers() && g_bwd_fault == BwdFault::staged_before_read;
    if (restages && sums_are(barrier) == SumsAre::read) return;
    if (g_bwd_fault == BwdFault::fetched_early && carries() && sums_are(barrier) == SumsAre::read) return;
    if (g_bwd_fault == BwdFault::taken_before_fetched && sums_are(barrier) == SumsAre::fetched) return;
    HostSm90Machine::wait(barrier, parity);
  }
  static bool test(uint64_t* barrier, uint32_t parity) {
    if (g_bwd_fault == BwdFault::scores_overwritten && frees_scores(barrier)) return true;
    if (g_bwd_fault == BwdFault::staged_before_read && sums_are(barrier) == SumsAre::read) return true;
    return HostSm90Machine::test(barrier, parity);
  }
  static void named_barrier_sync(int number, int threads) {
    if (g_bwd_fault == BwdFault::gradients_staged_early && number == kKeysRead) return;
    HostSm90Machine::named_barrier_sync(number, threads);
  }
  static void arrive(uint64_t* barrier) {
    if (g_bwd_fault == BwdFault::lost_arrival && thread() == 2 * kWarpgroupThreads) return;
    HostSm90Machine::arrive(barrier);
  }
  static void arrive_and_expect(uint64_t* barrier, int32_t bytes) {
    using Tile = BwdBiasTile<C>;
    const bool misses = g_bwd_fault == BwdFault::bias_not_expected && bytes > Tile::kBytes;
    HostSm90Machine::arrive_and_expect(barrier, misses ? bytes - Tile::kBytes : bytes);
  }
  template <int kPending>
  static void wgmma_wait() {
    if (g_bwd_fault != BwdFault::no_product_wait || sums()) HostSm90Machine::wgmma_wait<kPending>();
  }
  template <int kPending = 0>
  static void wait_stores_read() {
    if (g_bwd_fault == BwdFault::handed_back_unread && carries()) return;
    if (g_bwd_fault == (sums() ? BwdFault::sums_left_alone : BwdFault::gradients_overwritten)) return;
    HostSm90Machine::wait_stores_read<kPending>();
  }
  static void wait_stores() {
    if (g_bwd_fault != BwdFault::handed_on_early) HostSm90Machine::wait_stores();
  }
  static uint32_t peek_global(const uint32_t* word) {
    return g_bwd_fault == BwdFault::turns_come_late ? 0 : HostSm90Machine::peek_global(word);
  }
  /// Of the tiles of keys, which the warp that loads them draws, an idle block gets none.
  static uint32_t count_later(uint32_t* counter) {
    const bool idle = g_bwd_fault == BwdFault::first_block_idle || g_bwd_fault == BwdFault::rounded_early;
    if (idle && block() == 0 && carries()) return 1000;
    constexpr uint32_t kTiles = C.grouped ? 20 : 8;  // of all heads of a BwdCall
    const uint32_t number = HostSm90Machine::count_later(counter);
    return g_bwd_fault == BwdFault::blocks_backwards && number < kTiles ? kTiles - 1 - number : number;
  }
  static void await_global(const uint32_t* word, uint32_t value) {
    if (g_bwd_fault != BwdFault::rounded_early || !rounds()) HostSm90Machine::await_global(word, value);
  }
  static void release_global(uint32_t* word, uint32_t value) {
    const bool of_share = C.tells_groups() ? tells() : !carries();
    if (g_bwd_fault != BwdFault::share_not_handed_on || !of_share) HostSm90Machine::release_global(word, value);
  }
  static int block() {
    const int block = HostSm90Machine::block();
    return g_bwd_fault == BwdFault::blocks_backwards ? blocks() - 1 - block : block;
  }
  static void copy_run(void* to, const void* from, int32_t bytes, uint64_t* landed) {
    const int more = g_bwd_fault == BwdFault::other_statistics ? 16 : 0;
    HostSm90Machine::copy_run(to, static_cast<const float*>(from) + more, bytes, landed);
  }
};

}  // namespace tilewise::test
