// Shared memory of the forward kernel.
#pragma once

#include "device/attention/config.h"
#include "device/attention/kv_stage.h"
#include "device/tile/own_rows.h"
#include "device/tile/store_rows.h"

namespace tilewise::device {

template <class Ops, auto C, class Call>
struct ForwardShared {
  using Stage = typename Call::template Stage<Ops, C>;
  using QRows = OwnRows<Ops, C, C.q_type, C.head_dim, is_crowded(C), Call::template changes_queries<C>(),
                        Call::template Out<Ops, C>::kJoinsColumns>;
  using QTile = typename QRows::Tile;
  using Stages = Choose<C.staggered != 0, StagesBySide<Stage, C.stages>, Stage[C.stages]>;
  /// Q that stays here has its own place; Q that moves to registers passes through the stages'.
  struct Streams : RowsPart<!C.rows_in_registers, QTile> {
    Stages stage;
  };
  union {
    Streams streams;
    QTile q;
    OutTile<Ops, C.out_type, C.block_m(), C.head_dim_v> out;
  };

  TILEWISE_INLINE QTile& q_tile() {
    if constexpr (C.rows_in_registers) {
      return q;
    } else {
      return streams.rows;
    }
  }
};

}  // namespace tilewise::device
