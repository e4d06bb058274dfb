// Shared memory of the backward kernel, and what its warps tell each other through it.
#pragma once

#include "device/hopper/config.h"
#include "device/sm90/mbarrier.h"
#include "device/sm90/swizzled_tile.h"

namespace tilewise::device {

/// Hardware barriers by number; 0 is the block's.
enum BwdNamedBarrier : int {
  kKeyRows = 1,             // of the block's warpgroup i: kKeyRows + i
  kKeysRead = kKeyRows + 4  // of all that compute: dq's last product has read K
};

/// dq's products of a tile of queries, cut into parts of 64 rows and up to kMostCols columns, which a warpgroup's
/// registers hold one after the other.
template <auto C>
struct DqParts {
  static constexpr int kMostCols = C.dq_cols(), kAcross = (C.head_dim + kMostCols - 1) / kMostCols,
                       kCount = kAcross * C.block_m / 64;
  static constexpr int row_chunk(int part) { return part / kAcross; }
  static constexpr int first_col(int part) { return part % kAcross * kMostCols; }
  static constexpr int cols(int part) { return minimum(kMostCols, C.head_dim - first_col(part)); }
  /// Where a warp's sums of a part stand behind those of the tile's first one.
  static constexpr int place(int part) { return row_chunk(part) * (64 * C.head_dim) + first_col(part) * 16; }
  /// Parts staged at once: the one before leaves while the next one is multiplied.
  static constexpr int kStaged = 2;
  static_assert(kCount <= kStaged || C.shares_keys || C.own_dq);
  TILEWISE_INLINE static constexpr int staged(int part, int32_t step) { return kCount == 1 ? step % kStaged : part; }
  static constexpr int kWarpFloats = 16 * 64;  // of a part, at most
};

/// Bits of scores that dropout keeps, in words of the computing lanes: two keys and two columns of each of 8 tiles of 8
/// queries. A piece of 16 bytes has a word of each of the four lanes that share Philox calls: keys 2t and 2t + 1 of 8
/// in both halves of a group of 32, for t and the pair of columns that its owner number says.
template <auto C>
struct KeptWords {
  static constexpr int kColTiles = 8, kCount = C.block_m / (8 * kColTiles);  // of a lane
  static constexpr int kOwners = C.block_n() / 32 * 4 * 4;                   // groups of keys, pairs, pairs of columns
  /// A score's bit is in byte 2 * slot + i: that of the last column tile the lowest one, that of the first the top one.
  static constexpr uint32_t last_bit(int slot, int i) { return 1u << (8 * (2 * slot + i)); }
  TILEWISE_INLINE static int owner(int row, int lane) { return row / 32 * 16 + lane / 8 * 4 + lane % 4; }
  TILEWISE_INLINE static int word(int row, int lane) { return row / 16 % 2 * 2 + lane / 4 % 2; }

  uint32_t kept[kCount][kOwners][4];
};

/// What warps leave for others beside tiles: sums of dq of each warp, for TMA.
template <class Machine, auto C>
struct BwdHandover {
  float dq[4][DqParts<C>::kStaged][DqParts<C>::kWarpFloats];
  TILEWISE_INLINE void init() {}
};
/// Where couriers take them to memory: a tile's parts once they are staged, for the courier whose turn the tile is, and
/// places that have been read.
template <class Machine, auto C>
  requires(C.couriers())
struct BwdHandover<Machine, C> {
  using Parts = DqParts<C>;
  float dq[C.kDqWarps][Parts::kStaged][Parts::kWarpFloats];
  Barrier<Machine> staged[C.kCouriers][Parts::kStaged], read[Parts::kStaged];
  Barrier<Machine> fetched[Parts::kStaged];  // sums so far of a tile that is to be rounded
  /// A warp's rounded sums of a part, in the place of the sums: 16 rows of 128 bytes. Tiles in front of this struct
  /// have it begin where their swizzle does, which alignas here would say at the cost of 900 bytes.
  using RoundedTile = SwizzledTile<16, Parts::kMostCols>;
  static_assert(sizeof(RoundedTile) <= sizeof(dq[0][0]) && sizeof(dq[0][0]) % alignof(RoundedTile) == 0);
  TILEWISE_INLINE RoundedTile& rounded(int warp, int place) { return reinterpret_cast<RoundedTile&>(dq[warp][place]); }
  TILEWISE_INLINE void init() {
    TILEWISE_UNROLL
    for (auto& parts : staged) {
      TILEWISE_UNROLL
      for (Barrier<Machine>& part : parts) part.init(C.kDqWarps * (C.last_rounds ? kWarpArrivals : 1));
    }
    TILEWISE_UNROLL
    for (Barrier<Machine>& place : read) place.init(1);
    TILEWISE_UNROLL
    for (Barrier<Machine>& place : fetched) place.init(1);
  }
};
/// Where those that compute multiply dQ: half of its columns, a warp's rows of a tile.
template <class Machine, auto C>
  requires(C.own_dq != 0 && C.ordered == 0)
struct BwdHandover<Machine, C> {
  float dq[C.dq_warps()][16 * C.head_dim / C.kConsumers];
  TILEWISE_INLINE void init() {}
};
/// And where couriers take that to memory.
template <class Machine, auto C>
  requires(C.own_couriers())
struct alignas(16) BwdHandover<Machine, C> {
  float dq[C.dq_warps()][16 * C.head_dim / C.kConsumers];
  Barrier<Machine> staged[C.kCouriers], read;
  Barrier<Machine> fetched;  // sums so far of a tile that is to be rounded
  TILEWISE_INLINE void init() {
    TILEWISE_UNROLL
    for (Barrier<Machine>& tile : staged) tile.init(C.dq_warps() * (C.last_rounds ? kWarpArrivals : 1));
    read.init(1), fetched.init(1);
  }
};
/// Where two warpgroups share keys, a warp's weights, which lie where dS will; and that the last queries and their dO
/// have been read, through whose places dk and dv leave.
template <class Machine, auto C>
  requires(C.shares_keys != 0)
struct alignas(16) BwdHandover<Machine, C> {
  Barrier<Machine> weights_full[C.score_stages()][4];
  Barrier<Machine> last_read;
  TILEWISE_INLINE void init() {
    last_read.init(4 * C.kConsumers);
    TILEWISE_UNROLL
    for (auto& stage : weights_full) {
      TILEWISE_UNROLL
      for (Barrier<Machine>& warp : stage) warp.init(kWarpArrivals);
    }
  }
};

/// A bias that comes in boxes, a tile beside each stage of Q: rows are queries.
template <auto C>
using BwdBiasTile = SwizzledTile<C.block_m, C.block_n(), bias_bytes(C)>;
template <auto C, bool kBoxes>
struct BwdBiasStages {
  BwdBiasTile<C> bias[C.stages];
};
template <auto C>
struct BwdBiasStages<C, false> {};

template <class Machine, auto C>
struct HopperBwdShared : BwdBiasStages<C, C.bias_boxes != 0> {
  using KeyTile = SwizzledTile<C.block_n(), C.head_dim>;
  using ValueTile = SwizzledTile<C.block_n(), C.head_dim_v>;
  using QueryTile = SwizzledTile<C.block_m, C.head_dim>;
  using DoutTile = SwizzledTile<C.block_m, C.head_dim_v>;
  using ScoreTile = SwizzledTile<C.block_n(), C.block_m>;  // rows are keys

  KeyTile keys[C.key_stages()];
  ValueTile values;
  QueryTile queries[C.stages];
  DoutTile douts[C.stages];
  ScoreTile dS[C.score_stages()];
  BwdHandover<Machine, C> handover;
  float lse2[C.stages][C.block_m];
  float delta[C.stages][C.block_m];
  Choose<(C.dropout != 0), KeptWords<C>, NoShared> draws;  // of a tile
  Ring<Machine, C.stages> tile_ring;                       // of Q, dO and their statistics
  Ring<Machine, C.score_stages()> score_ring;              // of dS
  Ring<Machine, 1> draw_ring;                              // of dropout's bits
  Barrier<Machine> item_full[2];                           // of the numbers of tiles of keys
  // A block is done with a tile of keys, whose place it read (see bwd_scheduler.h); or warps that draw have read a
  // number.
  Barrier<Machine> item_read[2];
  Barrier<Machine> keys_full[C.key_stages()], values_full;
  Barrier<Machine> values_free;  // dv has left the place of V; of wide heads dP's last product has read it
  Barrier<Machine> keys_done[C.key_stages()];  // dq's last product has read K; or dk has left from there
  Barrier<Machine> keys_landed, landed;        // keys, and queries, to be cleared beyond a sequence's end
  Barrier<Machine> group_come, group_joined;   // a tile's turn to add to its group's dk and dv; they have been added
  /// The next tile of keys, as far as what comes first of it is asked for; queries see it where steps is above 0.
  struct alignas(16) Item {
    typename Machine::SharedNumber number, steps, k_row, head, batch, first_query, query_head;
    typename Machine::SharedNumber tile;    // of wide heads, of which tile, head and batch are told; -1: none
    typename Machine::SharedNumber member;  // of the query heads for which the block has this tile
  } items[2];
  /// Where a consumer warpgroup's dk and dv go, left there by the thread that will ask.
  struct alignas(16) StorePlace {
    typename Machine::SharedNumber k_row, head, batch;
  } store_places[2];

  /// Where dk lies on its way out: in the place of dS, each warpgroup's rows in that of its own; wide ones in that of
  /// K.
  TILEWISE_INLINE KeyTile& staged_dk() {
    if constexpr (C.own_dq) {
      return keys[0];
    } else {
      static_assert(sizeof(KeyTile) <= sizeof(dS));
      return reinterpret_cast<KeyTile&>(dS);
    }
  }

  /// The bias of a stage; of a config without boxes nothing that anyone looks at.
  TILEWISE_INLINE auto& bias_tile([[maybe_unused]] uint32_t stage) {
    if constexpr (C.bias_boxes) {
      return this->bias[stage];
    } else {
      return keys[0];
    }
  }

  /// By one thread, before any other looks at them.
  TILEWISE_INLINE void init_barriers() {
    constexpr int32_t kMainWarps = 4 * C.kConsumers, kDqWarps = C.dq_warps();
    constexpr int32_t kCopies = C.lengths ? kWarpArrivals : 1;  // of a warp whose lanes copy or clear rows themselves
    tile_ring.init(1, kMainWarps);
    score_ring.init(C.shares_keys ? kMainWarps / 2 * kWarpArrivals : kMainWarps, kDqWarps);
    draw_ring.init(C.kDrawWarps * kWarpArrivals, kMainWarps * kWarpArrivals);
    handover.init();
    values_full.init(kCopies);
    TILEWISE_UNROLL
    for (int i = 0; i < C.key_stages(); ++i)
      keys_full[i].init(kCopies), keys_done[i].init(C.own_dq ? kMainWarps * kCopies : kDqWarps);
    if constexpr (C.persistent) item_full[0].init(1), item_full[1].init(1);
    if constexpr (C.item_readers() > 0) {
      for (Barrier<Machine>& item : item_read) item.init(C.item_readers() * kWarpArrivals);
    }
    if constexpr (C.persistent) {
      values_free.init(C.shares_keys ? kMainWarps / 2 : kMainWarps * kCopies);
    }
    keys_landed.init(C.shares_keys ? 2 : 1), landed.init(1);
    group_come.init(1), group_joined.init(kMainWarps);
    Machine::publish_barriers();
  }
};

}  // namespace tilewise::device
