// Rotates queries into the workspace, for kernels whose tiles of queries come by TMA. A lane takes 16 bytes
// of a row, or two that turn into each other.
#pragma once

#include "device/attention/tensor_rows.h"
#include "device/kv_cache/new_chunks.h"

namespace tilewise::device {

/// What NewRows is to new keys: rows go where they stand, in a tensor of their own.
template <class Machine, auto C>
class QueryRows {
  using Bits = ElementBits<C.type>;

 public:
  struct Stream {
    const Tensor4 &from, &to;
  };
  TILEWISE_INLINE static Stream keys(const RotateQueriesParams& p) { return {p.q, p.rotated}; }
  TILEWISE_INLINE static Stream values(const RotateQueriesParams& p) { return keys(p); }
  TILEWISE_INLINE static int64_t value_dim(const RotateQueriesParams&) { return 0; }
  TILEWISE_INLINE static CachePlace place_of(const RotateQueriesParams&, const NewRow& row) {
    return {row.batch, row.row};
  }
  TILEWISE_INLINE static const Bits* address(const RotateQueriesParams&, const Stream& stream, const NewRow& row,
                                             int64_t head) {
    return elements_of<C.type>(stream.from) + row.batch * stream.from.batch_stride + row.row * stream.from.seq_stride +
           head * stream.from.head_stride;
  }
  TILEWISE_INLINE static Bits* address(const Stream& stream, const CachePlace& place, int64_t head) {
    return mutable_elements_of<C.type>(stream.to) + place.row * stream.to.batch_stride +
           place.place * stream.to.seq_stride + head * stream.to.head_stride;
  }
  TILEWISE_INLINE static float block_scale(const Stream&, int64_t, int64_t) { return 1.0f; }
};

/// C: of new keys like the queries, with vector_rows.
template <TileOps Ops, auto C>
class RotateQueries {
  using Machine = typename Ops::Machine;
  using Chunks = NewChunks<Machine, C, QueryRows<Machine, C>>;

 public:
  using Params = RotateQueriesParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    let_next_step_begin<Machine>();
    rotate(p);
    wait_for_step_before<Machine>();  // who waits for this step relies on those before it, too
  }

 private:
  TILEWISE_INLINE static void rotate(const Params& p) {
    const AttentionShape& s = p.shape;
    if (s.batch_size == 0) return;  // packed rows of no sequence
    const Chunks chunks(p);
    const int64_t unit = static_cast<int64_t>(Machine::block()) * C.waves * Machine::kLanes + Machine::thread();
    const int64_t row = unit / chunks.units();
    if (row >= p.rows * s.num_heads_q) return;
    NewRow query = new_row_at<Machine>(row / s.num_heads_q, s.seqlen_q, p.packed != 0, s.cu_seqlens_q, s.batch_size);
    if (p.rotary.queries_advance == 0) query.index = 0;
    chunks.store(chunks.load(p, query, row % s.num_heads_q, static_cast<int>(unit % chunks.units())));
  }
};

}  // namespace tilewise::device
