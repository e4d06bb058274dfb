// The warps that load tiles: one thread hands out work and loads Q and K, a warp loads V, and where they lie in pages
// another one K. V in fp8 is that thread's, too, which leaves three warps to transpose it.
#pragma once

#include "device/attention/dropout.h"
#include "device/hopper/forward_work.h"
#include "device/hopper/key_boxes.h"
#include "device/sm90/tensor_map.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

template <class Machine, auto C>
class ForwardProducer {
  using Shared = HopperForwardShared<Machine, C>;
  using QueryTile = typename Shared::QueryTile;
  using Columns = ColumnBoxes<C.turned_columns>;
  static constexpr int kRowChunks = QueryTile::kChunks;
  static constexpr int kBiasRowBytes = C.bias_row_bytes(),
                       kBiasChunks = (C.block_n * bias_bytes(C) + kBiasRowBytes - 1) / kBiasRowBytes;

 public:
  TILEWISE_INLINE ForwardProducer(const ForwardParamsOf<C>& params, Shared& shared) : p_(params), shared_(shared) {
    heads_of_group_ = C.pack_gqa ? 1 : static_cast<int32_t>(p_.shape.num_heads_q / p_.shape.num_heads_k);
  }

  /// By one thread. K where it is contiguous, and V in fp8 to where others transpose it.
  TILEWISE_INLINE void load_queries_and_keys() {
    RingPlace<C.q_stages> rows;
    RingPlace<C.stages> keys;
    RingPlace<kRawStages> raws;
    RingPlace<kWorkStages> works;
    WorkSource<Machine, C> source(p_);
    for (;;) {
      const WorkTile work = source.next();
      works.wait_empty(shared_.work_ring);
      Machine::store_shared(&shared_.work[works.stage], work);
      shared_.work_ring.full[works.stage].arrive();
      works.advance();
      if (work.tile == WorkTile::kNoMore) break;
      if constexpr (C.page_size != 0) {
        load_rows(rows, work, Columns(p_.q_map, p_.q_first_map));
        rows.advance();
        source.ask();
        continue;
      }
      const int32_t head = work.head / heads_of_group_, biased = biased_warpgroups(work);
      const Columns columns(p_.k_map, p_.k_first_map, p_.k_starts, head);
      const auto load_keys = [&](int32_t row) {
        keys.wait_empty(shared_.key_ring);
        Barrier<Machine>& full = shared_.key_ring.full[keys.stage];
        load_tile(shared_.keys[keys.stage], columns, full, row, head, work.k_batch, bias_box_bytes(biased));
        if constexpr (C.bias_boxes) load_bias(keys.stage, full, work, row - work.k_row, biased);
        keys.advance();
      };
      const auto load_raw_values = [&](int32_t row) {
        if constexpr (C.fp8()) {
          raws.wait_empty(shared_.raw_ring);
          load_tile(shared_.raw_values[raws.stage], Columns(p_.v_map, p_.v_first_map),
                    shared_.raw_ring.full[raws.stage], row, head, work.k_batch);
          raws.advance();
        }
      };
      if constexpr (lists_tiles<C>()) {
        bool first = true;
        for_each_key_tile<Machine, C, false>(p_, work, [&](int32_t tile, int32_t) {
          const int32_t row = work.k_row + tile * C.block_n;
          load_keys(row);
          if (first) load_rows(rows, work, Columns(p_.q_map, p_.q_first_map, p_.k_starts, head));
          load_raw_values(row);
          if (first) source.ask();  // the answer takes as long as some tiles
          first = false;
        });
        rows.advance();
        continue;
      }
      const auto load_both = [&](int32_t row) { load_keys(row), load_raw_values(row); };
      int32_t row = work.k_row + work.begin * C.block_n;
      const int32_t last = work.k_row + (work.end - 1) * C.block_n;
      load_keys(row);  // which do not wait for the place of Q
      load_rows(rows, work, Columns(p_.q_map, p_.q_first_map, p_.k_starts, head));
      rows.advance();
      load_raw_values(row);
      // With a bias a third copy of this would pass the 32 registers here.
      if (!C.bias_boxes && row < last) load_both(row += C.block_n);
      source.ask();
      TILEWISE_NO_UNROLL
      while (row < last) load_both(row += C.block_n);
    }
  }

  /// By a warp, where they lie in pages.
  TILEWISE_INLINE void load_paged_keys() {
    RingPlace<C.stages> keys;
    RingPlace<kWorkStages> works;
    for (;;) {
      const WorkTile work = take_work<Machine>(shared_, works);
      if (work.tile == WorkTile::kNoMore) break;
      KeyBoxes<Machine, C> boxes(p_, Columns(p_.k_map, p_.k_first_map), work, work.head / heads_of_group_);
      for_each_key_tile<Machine, C, true>(p_, work, [&](int32_t tile, int32_t next) {
        keys.wait_empty(shared_.key_ring);
        boxes.load(shared_.keys[keys.stage], shared_.key_ring.full[keys.stage], tile, next);
        keys.advance();
      });
    }
  }

  /// By a warp: what draws for a tile of keys have in common, beside K.
  TILEWISE_INLINE void load_draws() {
    constexpr int kPairs = 4, kColumns = C.block_n / 8;
    static_assert(kColumns <= Machine::kLanes);
    const int32_t lane = Machine::lane();
    const DropoutSeed seed = dropout_seed(p_.score);
    RingPlace<C.stages> keys;
    RingPlace<kWorkStages> works;
    for (;;) {
      const WorkTile work = take_work<Machine>(shared_, works);
      if (work.tile == WorkTile::kNoMore) break;
      const auto batch_head = static_cast<uint32_t>(work.batch * p_.shape.num_heads_q + work.head);
      for_each_key_tile<Machine, C, true>(p_, work, [&](int32_t tile, int32_t) {
        const DropoutColumn column =
            dropout_column(seed.seed, seed.offset, batch_head, static_cast<uint32_t>((tile * kColumns + lane) / kPairs),
                           static_cast<uint32_t>(lane % kPairs));
        keys.wait_empty(shared_.key_ring);
        if (lane < kColumns) Machine::store_shared(&shared_.draws.columns[keys.stage][lane], column);
        arrive_as_lanes(shared_.key_ring.full[keys.stage]);
        keys.advance();
      });
    }
  }

  /// By a warp.
  TILEWISE_INLINE void load_values() {
    RingPlace<C.stages> values;
    RingPlace<kWorkStages> works;
    const bool leads = Machine::thread() % 32 == 0;
    for (uint32_t parity = 0;;) {
      const WorkTile work = take_work<Machine>(shared_, works);
      if (work.tile == WorkTile::kNoMore) break;
      const int32_t head = work.head / heads_of_group_;
      KeyBoxes<Machine, C> boxes(p_, Columns(p_.v_map, p_.v_first_map, p_.v_starts, head), work, head);
      for_each_key_tile<Machine, C, true>(p_, work, [&](int32_t tile, int32_t next) {
        auto& to = shared_.values[values.stage];
        Barrier<Machine>& full = shared_.value_ring.full[values.stage];
        const int32_t used = work.seqlen_k - tile * C.block_n, stray = boxes.stray_rows(tile);
        values.wait_empty(shared_.value_ring);
        values.advance();
        if ((!C.lengths || used >= C.block_n) && stray == 0) return boxes.load(to, full, tile, next);
        // Weights past the end are 0, but 0 times what lies there need not be.
        boxes.load(to, shared_.last_values, tile, next);
        shared_.last_values.wait(parity);
        parity ^= 1;
        clear_rows(to, 0, stray);
        clear_rows(to, maximum(used, 0), C.block_n);
        Machine::fence_shared_writes();
        Machine::wave_sync();
        if (leads) full.arrive();
      });
    }
  }

 private:
  TILEWISE_INLINE int32_t group() const {
    return C.pack_gqa ? static_cast<int32_t>(p_.shape.num_heads_q / p_.shape.num_heads_k) : 1;
  }

  /// Of all boxes of a bias that come with a tile of keys.
  TILEWISE_INLINE int32_t bias_box_bytes([[maybe_unused]] int32_t warpgroups) const {
    if constexpr (!C.bias_boxes) return 0;
    const BiasPlaces& places = p_.bias_places;
    const int32_t rows = (places.query ? queries_of_warpgroup() : 1) * (places.head ? group() : 1);
    return warpgroups * kBiasChunks * rows * kBiasRowBytes;
  }

  TILEWISE_INLINE int32_t queries_of_warpgroup() const { return C.pack_gqa ? p_.order.queries_per_warpgroup : C.kRows; }
  /// The warpgroups that have a bias, and do not just hand the tile on: the first ones.
  TILEWISE_INLINE int32_t biased_warpgroups([[maybe_unused]] const WorkTile& work) const {
    if constexpr (!C.bias_boxes) return 0;
    int32_t count = 0;
    TILEWISE_UNROLL
    for (int i = 0; i < C.consumers(); ++i) {
      count += (work.tile * C.consumers() + i) * queries_of_warpgroup() < work.all_q ? 1 : 0;
    }
    return count;
  }
  /// The bias of every warpgroup's rows, where it has some: boxes that lie behind the last query would double the time
  /// of 128 queries. Unrolled, since in a loop three warpgroups take 6% longer. `key`: its column.
  TILEWISE_INLINE void load_bias(uint32_t stage, Barrier<Machine>& landed, const WorkTile& work, int32_t key,
                                 int32_t warpgroups) {
    const BiasPlaces& places = p_.bias_places;
    TILEWISE_UNROLL
    for (int i = 0; i < C.consumers(); ++i) {
      if (i >= warpgroups) continue;
      const int32_t query = (work.tile * C.consumers() + i) * queries_of_warpgroup();
      TILEWISE_UNROLL
      for (int c = 0; c < kBiasChunks; ++c) {
        Machine::copy_box(shared_.bias[stage][i].chunk(c), p_.bias_map, landed.state(),
                          key + c * (kBiasRowBytes / bias_bytes(C)), 0, places.query * query, places.head * work.head,
                          places.batch * work.batch);
      }
    }
  }

  /// Q of each warpgroup once its place is free; its columns lie as K's do.
  TILEWISE_INLINE void load_rows(const RingPlace<C.q_stages>& place, const WorkTile& work, const Columns& columns) {
    const int32_t queries = p_.order.queries_per_warpgroup, batch = p_.shape.cu_seqlens_q ? 0 : work.batch;
    const auto load = [&](int warpgroup) {
      auto& ring = shared_.row_rings[warpgroup];
      place.wait_empty(ring);
      ring.full[place.stage].arrive_and_expect(kRowChunks * queries * group() * kChunkRowBytes);
      const int32_t first = work.q_row + (work.tile * C.consumers() + warpgroup) * queries;
      columns.template for_each<Machine, kRowChunks, QueryTile::kChunkColumns>(
          [&](int c, const TensorMap& map, int32_t column) {
            load_rows(shared_.rows[place.stage][warpgroup].chunk(c), map, ring.full[place.stage], column, first,
                      work.head, batch);
          });
    };
    if constexpr (C.turned_columns) {  // three copies of this would pass the 32 registers here
      TILEWISE_NO_UNROLL
      for (int i = 0; i < C.consumers(); ++i) load(i);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < C.consumers(); ++i) load(i);
    }
  }

  /// Blocks with other parts of the keys read a tile of queries again. Else L2 had better keep K and V, which at
  /// head_dim 256 is 1% of a causal call to 1k; elsewhere it tells nothing, and the policy would take registers.
  TILEWISE_INLINE void load_rows(uint8_t* to, const TensorMap& map, Barrier<Machine>& landed, int32_t column,
                                 int32_t row, int32_t head, int32_t batch) {
    constexpr bool kOnce = C.head_dim > 128 && !C.split;
    if constexpr (kOnce) {
      Machine::copy_box_once(to, map, landed.state(), column, 0, row, head, batch);
    } else {
      Machine::copy_box(to, map, landed.state(), column, 0, row, head, batch);
    }
  }

  /// more_bytes: of other copies that are to land by then.
  template <class Tile>
  TILEWISE_INLINE static void load_tile(Tile& to, const Columns& columns, Barrier<Machine>& landed, int32_t row,
                                        int32_t head, int32_t batch, int32_t more_bytes = 0) {
    landed.arrive_and_expect(Tile::kBytes + more_bytes);
    copy_keys<C>(to, columns, landed, row, head, batch);
  }

  template <class Tile>
  TILEWISE_INLINE static void clear_rows(Tile& tile, int32_t begin, int32_t end) {
    const int32_t lane = Machine::lane();
    for (int c = 0; c < Tile::kChunks; ++c) {
      for (int32_t at = begin * kChunkRowBytes + lane * 16; at < end * kChunkRowBytes; at += 32 * 16) {
        Machine::store_shared(tile.chunk(c) + at, Chunk{{0, 0, 0, 0}});
      }
    }
  }

  const ForwardParamsOf<C>& p_;
  Shared& shared_;
  int32_t heads_of_group_;
};

}  // namespace tilewise::device
