// Rounds the sums of selected keys into dk and dv.
#pragma once

#include "device/attention/block_keys.h"
#include "device/attention/config.h"
#include "device/attention/dkdv_accum.h"
#include "device/attention/selected_sums.h"
#include "device/tile/contract.h"

namespace tilewise::device {

/// A block has rows of one head's keys, in chunks of 8 columns that lanes share; the grid's splits are dk and dv.
template <TileOps Ops, auto C>
class BwdConvertSelected {
  using Machine = typename Ops::Machine;
  static constexpr int kThreads = C.waves * Machine::kLanes;

 public:
  using Params = BwdConvertSelectedParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    const GridPlace place = grid_place<Machine>(p.grid);
    const Sequence sequence = sequence_at<C>(p.shape, place.batch);
    const KeyRows keys(sequence, place, p.rows);
    if (place.split == kDk) {
      if (p.dk.data) convert<C.k_type>(p, keys, p.dk, p.dk_accum, p.dk_accum_a_row, p.softmax_scale, p.shape.head_dim);
    } else {
      if (p.dv.data) convert<C.v_type>(p, keys, p.dv, p.dv_accum, p.dv_accum_a_row, 1.0f, p.shape.head_dim_v);
    }
  }

 private:
  template <int kElement>
  TILEWISE_INLINE static void convert(const Params& p, const KeyRows& keys, const Tensor4& to, const float* sums,
                                      int64_t a_row, float scale, int64_t cols) {
    const auto chunks = static_cast<int32_t>(ceil_div<int64_t>(cols, kChunk));
    for (int32_t unit = Machine::thread(); unit < p.rows * chunks; unit += kThreads) {
      const int32_t row = unit / chunks, col = (unit - row * chunks) * kChunk;
      ElementBits<kElement>* const of_row = keys.template address_to_write<kElement>(to, row);
      if (!of_row) return;
      const int64_t at = keys.place.batch * p.accum_rows_a_batch + keys.sequence.k_row + keys.first_key + row;
      const float* const from = sums + (at * p.grid.num_heads + keys.place.head) * a_row;
      Chunk chunk;
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; i += 2) {
        const auto load = [&](int n) {
          return keys.used(row) ? scale * Machine::load_global(from + SelectedSums<Ops>::place(col + n)) : 0.0f;
        };
        chunk.word[i / 2] = Machine::template pack<kElement>(load(i), load(i + 1));
      }
      store<kElement>(of_row + col, chunk, static_cast<int>(cols) - col);
    }
  }

  template <int kElement>
  TILEWISE_INLINE static void store(ElementBits<kElement>* to, const Chunk& chunk, int left) {
    if constexpr (C.vector_rows) {
      Machine::store_global(reinterpret_cast<Chunk*>(to), chunk);
    } else {
      TILEWISE_UNROLL
      for (int i = 0; i < kChunk; ++i) {
        if (i < left) Machine::store_global(to + i, chunk.element(i));
      }
    }
  }
};

}  // namespace tilewise::device
