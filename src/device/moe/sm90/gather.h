// Rows of x in the order of sorted pairs, one copy of each for every expert that takes it, and the pairs' weights.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeGatherConfig C>
class Sm90MoeGather {
  using Machine = typename Ops::Machine;
  static constexpr int kAtOnce = 8;  // pieces of 16 bytes that a lane holds

 public:
  using Params = MoeGatherParams;
  using Shared = NoShared;

  /// A warp has a token at a time, whose row is read once.
  TILEWISE_INLINE static void run(const MoeGatherParams& p, Shared&) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    const int32_t warps = Machine::blocks() * C.warps;
    for (int32_t token = Machine::block() * C.warps + Machine::wave(); token < p.shape.tokens; token += warps) {
      const int32_t first_pair = token * p.shape.top_k;
      for (int32_t slot = Machine::lane(); slot < p.shape.top_k; slot += 32) {
        const int32_t row = Machine::load_global(p.sorted.rows + first_pair + slot);
        if (row == kNobody) continue;
        Machine::store_global(p.row_weights + row, load_weight<Machine>(p.shape, p.topk_weights, first_pair + slot));
      }
      copy_row(p, token, first_pair);
    }
    if constexpr (C.clears != 0) clear_rows(p, warps);
  }

 private:
  TILEWISE_INLINE static void copy_row(const MoeGatherParams& p, int32_t token, int32_t first_pair) {
    const int32_t pieces = p.shape.hidden / 8;
    TILEWISE_NO_UNROLL
    for (int32_t first = Machine::lane(); first < pieces; first += 32 * kAtOnce) {
      const Chunk* const from = chunks(p.x, token) + first;
      Chunk held[kAtOnce];
      TILEWISE_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + 32 * i < pieces) held[i] = Machine::load_global(from + 32 * i);
      }
      TILEWISE_NO_UNROLL
      for (int32_t slot = 0; slot < p.shape.top_k; ++slot) {
        const int32_t row = Machine::load_global(p.sorted.rows + first_pair + slot);
        if (row == kNobody) continue;
        Chunk* const to = chunks(p.rows, row) + first;
        TILEWISE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + 32 * i < pieces) Machine::store_global(to + 32 * i, held[i]);
        }
      }
    }
  }
  /// A warp has a row at a time.
  TILEWISE_INLINE static void clear_rows(const MoeGatherParams& p, int32_t warps) {
    const int32_t first = Machine::load_global(p.sorted.offsets + p.shape.num_experts);
    TILEWISE_NO_UNROLL
    for (int32_t row = first + Machine::block() * C.warps + Machine::wave(); row < p.shape.pairs(); row += warps) {
      for (int32_t piece = Machine::lane(); piece < p.cleared_columns / 8; piece += 32)
        Machine::store_global(chunks(p.cleared, row) + piece, Chunk{});
    }
  }
  TILEWISE_INLINE static Chunk* chunks(const RowTensor& of, int32_t row) {
    return reinterpret_cast<Chunk*>(static_cast<uint16_t*>(of.data) + row * of.row_stride);
  }
};

}  // namespace tilewise::device
