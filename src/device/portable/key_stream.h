// The streamed side of the kernels that own queries: tiles of a head's keys and values.
#pragma once

#include "device/portable/block_rows.h"
#include "device/portable/loader.h"

namespace tilewise::device {

/// One tile on its way or being computed on. The uses are TileUse bits.
template <class Ops, KernelConfig C, int kKeyUse, int kValueUse>
struct KeyStage {
  StreamTile<C.tile_cols, C.head_dim, kKeyUse, Ops::kTransposedCopies> keys;
  StreamTile<C.tile_cols, C.head_dim_v, kValueUse, Ops::kTransposedCopies> values;
};

template <class Ops, KernelConfig C, class Stage>
class KeyStream {
  using Machine = typename Ops::Machine;

 public:
  TILEWISE_INLINE void open(const AttentionParams& p, const Sequence& sequence, int64_t batch, int64_t head_k) {
    keys_ = key_source(p.k, sequence, batch, head_k, p.head_dim);
    values_ = key_source(p.v, sequence, batch, head_k, p.head_dim_v);
  }

  TILEWISE_INLINE void start(Stage& stage, int32_t tile) {
    key_loader_.start(stage.keys, keys_, tile * C.tile_cols);
    value_loader_.start(stage.values, values_, tile * C.tile_cols);
  }

  /// Once it returns, every lane may read the tile, and has done with the one before.
  TILEWISE_INLINE void finish(Stage& stage) {
    if constexpr (C.stages == 1) Machine::barrier();  // the last tile was read by all
    Ops::finish_copies();
    key_loader_.finish(stage.keys);
    value_loader_.finish(stage.values);
    Machine::barrier();
  }

 private:
  RowSource keys_, values_;
  TileLoader<Ops, C, decltype(Stage::keys)> key_loader_;
  TileLoader<Ops, C, decltype(Stage::values)> value_loader_;
};

}  // namespace tilewise::device
