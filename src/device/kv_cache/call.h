// What attention over a cache is to the kernels of attention: its parameters and sequences, queries that are rotated,
// new keys that are appended, and values shared by columns.
#pragma once

#include "device/kv_cache/cache_pipeline.h"
#include "device/kv_cache/key_scheduler.h"
#include "device/kv_cache/new_chunks.h"
#include "device/kv_cache/rotated_tile.h"

namespace tilewise::device {

/// A part of the columns of v and out where rows are too wide for a wave's accumulators: as many blocks compute the
/// same weights. A grid's heads are parts of heads then.
template <auto C>
class ColumnShare {
 public:
  TILEWISE_INLINE explicit ColumnShare(GridPlace& place) : first_(place.head % C.v_parts * C.head_dim_v) {
    place.head /= C.v_parts;
  }
  TILEWISE_INLINE int32_t first() const { return first_; }
  TILEWISE_INLINE int64_t count(const AttentionShape& shape) const {
    return minimum<int64_t>(C.head_dim_v, shape.head_dim_v - first_);
  }

 private:
  int32_t first_;
};

template <bool kShared, auto C>
struct ChooseColumns {
  using Type = WholeRows;
};
template <auto C>
struct ChooseColumns<true, C> {
  using Type = ColumnShare<C>;
};

/// See AttentionCall.
struct KvCacheCall {
  static constexpr bool kFollows = true;
  template <auto C>
  static constexpr bool appends() {
    return C.appends != 0;
  }
  using Forward = KvCacheForwardParams;
  using Combine = KvCacheCombineParams;
  using AttendedSequence = CachedSequence;
  template <auto C>
  static constexpr bool adds_keys() {
    return learns_length_late(C);
  }
  template <auto C>
  static constexpr bool schedules() {
    return schedules_keys<C>();
  }
  template <auto C>
  static constexpr bool takes_turns() {
    return C.takes_turns != 0;
  }
  template <class Machine, auto C>
  TILEWISE_INLINE static KeyPart part_at(const Forward& p, GridPlace& place) {
    if constexpr (schedules<C>()) {
      // The grid's batch entries are parts of all sequences.
      return scheduled_part<Machine, C>(p, place.batch, place.head == 0, place.batch);
    } else {
      return {place.split, p.grid.num_splits, 0};
    }
  }
  /// Of blocks that take turns.
  template <class Machine>
  using Rows = ScheduledRows<Machine, Combine>;
  /// A sequence's first part, but with the count of all: of few sequences found while the step before is under way, of
  /// many as that step has left it.
  template <class Machine, auto C>
  TILEWISE_INLINE static KeyPart parts_of(const Combine& p, int32_t batch) {
    KeyPart parts{};
    if (!p.key_schedule.parts) parts = KeyScheduler<Machine, C, Combine>(p).parts_of(batch);
    wait_for_step_before<Machine>();
    if (p.key_schedule.parts) parts = parts_left<Machine>(p, batch);
    return parts;
  }
  template <auto C>
  TILEWISE_INLINE static CachedSequence sequence_at(const Forward& p, int64_t batch) {
    if constexpr (adds_keys<C>()) return {all_of_entry(p.shape), {}};
    return attended_sequence<C>(p.shape, p.cache, batch);
  }
  template <auto C>
  TILEWISE_INLINE static void add_keys(CachedSequence& s, const Forward& p, int64_t batch) {
    s = attended_sequence<C>(p.shape, p.cache, batch);
  }
  template <auto C>
  TILEWISE_INLINE static Sequence sequence_at(const Combine& p, int64_t batch) {
    if constexpr (uses_all_queries<C>()) return all_of_entry(p.shape);
    return attended_sequence<C>(p.shape, p.cache, batch);
  }
  template <auto C>
  using Columns = typename ChooseColumns<(C.v_parts > 1), C>::Type;
  template <auto C>
  static constexpr bool changes_queries() {
    return C.rotary != 0;
  }
  template <class Ops, auto C, class Rows, class Params, class Queries, class Meanwhile>
  TILEWISE_INLINE static void load_queries(Rows& rows, typename Rows::Tile& tile, int wave_row, const Params& p,
                                           const Sequence& s, const Queries& queries, const Meanwhile& meanwhile) {
    if constexpr (!changes_queries<C>()) {
      AttentionCall::load_queries<Ops, C>(rows, tile, wave_row, p, s, queries, meanwhile);
    } else {
      using Machine = typename Ops::Machine;
      using Turn = Rotation<Machine, C.q_type, true, C.interleaved != 0, C.float_tables != 0>;
      const int64_t first = first_position<Machine>(p.rotary, p.cache, queries.batch);
      const auto position_of = [&](int row) {
        return first + (p.rotary.queries_advance ? queries.query(queries.first_row + row) : 0);
      };
      rows.load_changed(
          tile, wave_row, p.shape.head_dim,
          [&](int row) { return queries.template address_to_read<C.q_type>(p.q, s, row); },
          queries.rows_of_block(C.block_m()),
          [&] {
            RotatedTile<Ops, C, Turn, typename Rows::Tile>(tile, p.rotary, queries.used_rows - queries.first_row)
                .rotate(position_of, meanwhile);
          });
    }
  }
  /// The new keys, by their numbers, among a block's part of the keys: [0, seqlen_new) of all parts together. `part`
  /// counts keys as the attention does.
  TILEWISE_INLINE static KeyRange new_keys(const CachedSequence& s, const KeyRange& part) {
    const int64_t first = s.cache.cached - s.k_row;
    return {clamp_to(part.begin - first, 0, s.cache.seqlen_new), clamp_to(part.end - first, 0, s.cache.seqlen_new)};
  }
  /// Appends them, and shows them to the whole block.
  template <class Ops, auto C, class Params, class Queries>
  TILEWISE_INLINE static void append(const Params& p, const CachedSequence& s, const Queries& queries,
                                     const KeyRange& new_keys) {
    if (new_keys.begin >= new_keys.end) return;
    using Machine = typename Ops::Machine;
    constexpr AppendKvConfig kAppend = append_config(C);
    const int64_t batch = queries.batch, head = queries.head_k();
    const auto keys = static_cast<int>(new_keys.end - new_keys.begin);
    const auto row_at = [&](int i) { return NewRow{batch, s.cache.new_row + new_keys.begin + i, new_keys.begin + i}; };
    if constexpr (kAppend.vector_rows) {
      append_chunks<Machine, C.waves * Machine::kLanes>(NewChunks<Machine, kAppend>(p), p, keys, row_at, head);
    } else {
      using Rows = NewRows<Machine, kAppend>;
      for (int i = Machine::wave(); i < keys; i += C.waves) Rows::append_key(p, row_at(i), head);
      if (p.new_keys.appends_values) {
        // From the last wave on, so that one new key and its value come at once.
        for (int i = C.waves - 1 - Machine::wave(); i < keys; i += C.waves) Rows::append_value(p, row_at(i), head);
      }
    }
    Machine::memory_barrier();
  }

  template <class Ops, auto C>
  using Out = Fragment<Ops, C.rows_per_wave, C.head_dim_v, C.multiplies_bytes != 0>;
  template <class Ops, auto C>
  using Stage = CacheStage<Ops, C>;
  template <class Ops, auto C, class Stage>
  using Pipeline = CachePipeline<Ops, C, Stage>;

 private:
  template <class Machine, int kThreads, class Chunks, class Params, class RowAt>
  TILEWISE_INLINE static void append_chunks(const Chunks& chunks, const Params& p, int keys, const RowAt& row_at,
                                            int64_t head) {
    constexpr int kAtOnce = kThreads == Machine::kLanes ? 1 : 2;  // see RotatedTile::kUnits
    const int units = keys * chunks.units();
    for (int first = Machine::thread(); first < units; first += kAtOnce * kThreads) {
      typename Chunks::Unit unit[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int number = first + i * kThreads;
        unit[i].to = nullptr;
        if (number < units) unit[i] = chunks.load(p, row_at(number / chunks.units()), head, number % chunks.units());
      }
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) chunks.store(unit[i]);
    }
  }
};

}  // namespace tilewise::device
