// Shared memory of MLA's decoding, and what a block works on.
#pragma once

#include "device/common/mask.h"
#include "device/hopper/forward_shared.h"
#include "device/hopper/params.h"
#include "device/kv_cache/key_scheduler.h"
#include "device/kv_cache/sequence.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// What one lane tells others of a row: whole pieces of 16 bytes, so that no two lanes write into one.
struct alignas(16) RowRecord {
  float base, limit, sum, unused;
};

/// Which of a tile's keys the block's query sees, a bit each; where keys are selected. A piece of 16 bytes as well.
struct alignas(16) SeenKeys {
  uint32_t word[2], unused[2];
};

/// Keys of one stage come in three parts with rings of their own, so that each is refilled as soon as its last reader
/// is done: the columns of values that each consumer warpgroup multiplies, and the last chunk, which no value has.
/// There a tile's weights stand once its scores are computed.
///
/// In a cluster of two, both blocks' stages are refilled together, by one of them: the columns of warpgroup i by the
/// block of rank i, the last chunk of stage i likewise. There the stages' readers in both blocks hand them back.
template <class Machine, HopperLatentConfig C>
struct HopperLatentShared {
  using RowTile = SwizzledTile<C.kRows, C.head_dim>;
  using KeyTile = SwizzledTile<C.kKeys, C.head_dim>;
  using WeightTile = SwizzledTile<C.kRows, C.kKeys>;
  static constexpr int kHalfChunks = C.head_dim_v / RowTile::kChunkColumns / C.kConsumers;
  static constexpr int kLastChunk = KeyTile::kChunks - 1;
  static_assert(C.kConsumers * kHalfChunks == kLastChunk, "values are all chunks of a key but the last");
  static_assert(WeightTile::kBytes == KeyTile::kChunkBytes);
  using KeyRing = Ring<Machine, C.kStages>;

  RowTile rows;
  KeyTile keys[C.kStages];
  // Of each warpgroup, by rows: where the weights that it made last are counted from, and the sum of all of them.
  RowRecord reference[C.kConsumers][C.kRows], row_sum[C.kConsumers][C.kRows];
  Barrier<Machine> rows_landed;
  KeyRing half[C.kConsumers], last;
  Barrier<Machine> weights[C.kConsumers];  // of its tile stand in shared memory
  SeenKeys seen[2 * C.kStages];

  TILEWISE_INLINE WeightTile& weight_tile(uint32_t stage) {
    return *reinterpret_cast<WeightTile*>(keys[stage].chunk(kLastChunk));
  }

  /// By one thread, before any other looks at them.
  TILEWISE_INLINE void init_barriers() {
    constexpr int kBlocks = C.blocks_of_cluster();
    rows_landed.init(1);
    for (KeyRing& ring : half) ring.init(1, 4 * kBlocks);
    last.init(4, 4 * kBlocks);  // each warp that loads keys; the warps of the warpgroup that did not make the weights
    for (auto& made : weights) made.init(4 * kWarpArrivals);
    Machine::publish_barriers();
  }
};

/// Hardware barriers by number, after those of NamedBarrier.
/// The last two: of a pair of tiles, the first one's scores are issued, and the second one's.
enum LatentBarrier : int { kConsumersMeet = 1, kFirstIssued, kSecondIssued };

/// A block's rows and keys.
struct LatentWork {
  int32_t batch, first_query, first_head;
  KeyPart part;             // count 0: a block without work, of which nothing else is known
  int32_t begin, end;       // tiles of keys, at least one
  int32_t seqlen_q, all_q;  // used queries, and those in memory
  int32_t q_row;            // of the first one
  int32_t seqlen_k, k_row;  // used keys, none in a part without any; place of the first
  int32_t cache_row;        // of a contiguous cache
  int32_t diagonal;         // query i sees no key past i + diagonal
  int32_t seen_end;         // of keys that are selected, those before it are seen

  /// A sequence's only part leaves what an unsplit one does.
  TILEWISE_INLINE bool is_whole() const { return part.count == 1; }
};

/// Which part of which sequence's keys a block has: row tiles of a part are neighbours.
template <class Machine, HopperLatentConfig C>
TILEWISE_INLINE KeyPart latent_part(const HopperLatentParams& p, int32_t& batch) {
  const LatentOrder& order = p.order;
  const int32_t place = Machine::block() / order.row_tiles;
  if constexpr (schedules_keys<C>()) {
    return scheduled_part<Machine, C>(p, place, Machine::block() % order.row_tiles == 0, batch);
  } else {
    batch = place / order.num_splits;
    return {place % order.num_splits, order.num_splits, 0};
  }
}

template <class Machine, HopperLatentConfig C>
TILEWISE_INLINE LatentWork latent_work(const HopperLatentParams& p) {
  const LatentOrder& order = p.order;
  const int32_t tile = Machine::block() % order.row_tiles;
  LatentWork w{};
  w.part = latent_part<Machine, C>(p, w.batch);
  if (schedules_keys<C>() && w.part.count == 0) return w;
  w.first_query = tile / order.head_tiles * order.queries_of_tile;
  w.first_head = tile % order.head_tiles * order.heads_of_tile;
  const CachedSequence s = attended_sequence<C>(p.shape, p.cache, w.batch);
  w.seqlen_q = static_cast<int32_t>(s.seqlen_q);
  w.all_q = static_cast<int32_t>(s.all_q);
  w.q_row = static_cast<int32_t>(s.q_row);
  w.seqlen_k = static_cast<int32_t>(s.seqlen_k);
  w.k_row = static_cast<int32_t>(s.k_row);
  w.cache_row = static_cast<int32_t>(s.cache.cache_row);
  constexpr int64_t kFar = 0x3FFFFFFF;
  const int64_t right = p.score.window_right < 0 ? kFar : minimum<int64_t>(p.score.window_right, kFar);
  w.diagonal = static_cast<int32_t>(minimum<int64_t>(diagonal_offset(p.score, s) + right, kFar));
  const int32_t last_query = minimum(w.first_query + order.queries_of_tile, w.seqlen_q) - 1;
  const int32_t seen = C.ranged ? minimum(w.seqlen_k, last_query + w.diagonal + 1) : w.seqlen_k;
  const int32_t keys = C.selects && seen > 0 ? static_cast<int32_t>(p.key_indices.count) : maximum(seen, 0);
  const int32_t count = last_query < w.first_query ? 0 : ceil_div(keys, C.kKeys);
  w.seen_end = seen;
  w.begin = count * w.part.number / w.part.count;
  w.end = count * (w.part.number + 1) / w.part.count;
  // A part without keys takes a tile all the same and hides it: what it stores is read.
  if (w.begin == w.end) w.begin = 0, w.end = 1, w.seqlen_k = 0, w.seen_end = 0;
  return w;
}

}  // namespace tilewise::device
