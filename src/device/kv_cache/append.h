// Appends new keys, rotated, and values to a cache: a wave takes one row of one head, or a lane one unit of it.
#pragma once

#include "device/kv_cache/new_chunks.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class AppendKv {
  using Machine = typename Ops::Machine;
  using Rows = NewRows<Machine, C>;

 public:
  using Params = AppendKvParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    let_next_step_begin<Machine>();
    const AttentionShape& s = p.shape;
    if (s.batch_size == 0) return;  // packed rows of no sequence
    const int64_t rows = p.new_keys.packed ? p.cache.total_k_new : s.batch_size * p.cache.seqlen_k_new;
    const int64_t keys = rows * s.num_heads_k;
    if constexpr (C.vector_rows) {
      const NewChunks<Machine, C> chunks(p);
      const int64_t unit = static_cast<int64_t>(Machine::block()) * C.waves * Machine::kLanes + Machine::thread();
      const int64_t row = unit / chunks.units();
      if (row >= keys) return;
      chunks.store(
          chunks.load(p, row_at(p, row / s.num_heads_k), row % s.num_heads_k, static_cast<int>(unit % chunks.units())));
    } else {
      const int64_t values = p.new_keys.appends_values ? keys : 0;
      const int64_t unit = static_cast<int64_t>(Machine::block()) * C.waves + Machine::wave();
      if (unit < keys) {
        Rows::append_key(p, row_at(p, unit / s.num_heads_k), unit % s.num_heads_k);
      } else if (unit < keys + values) {
        Rows::append_value(p, row_at(p, (unit - keys) / s.num_heads_k), (unit - keys) % s.num_heads_k);
      }
    }
  }

 private:
  TILEWISE_INLINE static NewRow row_at(const Params& p, int64_t number) {
    return new_row_at<Machine>(number, p.cache.seqlen_k_new, p.new_keys.packed != 0, p.cache.cu_seqlens_k_new,
                               p.shape.batch_size);
  }
};

}  // namespace tilewise::device
