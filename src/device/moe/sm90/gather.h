// Rows of x in the order of sorted pairs, one copy of each for every expert that takes it.
#pragma once

#include "device/moe/sm90/config.h"
#include "device/moe/sm90/pairs.h"

namespace tilewise::device {

template <Sm90TileOps Ops, MoeGatherConfig C>
class Sm90MoeGather {
  using Machine = typename Ops::Machine;
  static constexpr int kAtOnce = 8;  // pieces of 16 bytes that a lane has on their way

 public:
  using Params = MoeGatherParams;
  using Shared = NoShared;

  /// A warp copies a row at a time.
  TILEWISE_INLINE static void run(const MoeGatherParams& p, Shared&) {
    let_next_step_begin<Machine>();
    wait_for_step_before<Machine>();
    const int32_t rows = Machine::load_global(p.sorted.offsets + p.shape.num_experts), pieces = p.shape.hidden / 8;
    for (int32_t row = Machine::block() * C.warps + Machine::wave(); row < rows; row += Machine::blocks() * C.warps) {
      const int32_t pair = Machine::load_global(p.sorted.pairs + row);
      const auto* const from = chunks(p.x, pair / p.shape.top_k);
      auto* const to = chunks(p.rows, row);
      TILEWISE_NO_UNROLL
      for (int32_t first = Machine::lane(); first < pieces; first += 32 * kAtOnce) {
        Chunk held[kAtOnce];
        TILEWISE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + 32 * i < pieces) held[i] = Machine::load_global(from + first + 32 * i);
        }
        TILEWISE_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          if (first + 32 * i < pieces) Machine::store_global(to + first + 32 * i, held[i]);
        }
      }
    }
  }

 private:
  TILEWISE_INLINE static Chunk* chunks(const RowTensor& of, int32_t row) {
    return reinterpret_cast<Chunk*>(static_cast<uint16_t*>(of.data) + row * of.row_stride);
  }
};

}  // namespace tilewise::device
