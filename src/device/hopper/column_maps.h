// The order in which a head's columns lie in shared memory, and the boxes that load and take them so.
#pragma once

#include "device/hopper/config.h"
#include "device/hopper/params.h"

namespace tilewise::device {

/// Columns lie in their order, or turned: the first piece, which is all that the last chunk has then, behind the
/// others. kMayTurn: of a config with turned_columns.
template <bool kMayTurn>
struct ColumnBoxes {
  const TensorMap &all, &first;
  uint32_t turned;

  TILEWISE_INLINE ColumnBoxes(const TensorMap& whole, const TensorMap& first_columns)
      : all(whole), first(first_columns), turned(0) {}
  TILEWISE_INLINE ColumnBoxes(const TensorMap& whole, const TensorMap& first_columns, const OddStarts& starts,
                              int32_t key_head)
      : all(whole), first(first_columns), turned(kMayTurn && is_turned(starts, key_head)) {}

  /// Calls copy(chunk, map, column) for the box of each chunk. What follows from the order is found anew each time:
  /// kept, it would take seven registers of warps that have 32.
  template <class Machine, int kChunks, int kChunkColumns, class Copy>
  TILEWISE_INLINE void for_each(const Copy& copy) const {
    uint32_t turn = turned;
    if constexpr (kMayTurn) Machine::pin(turn);
    TILEWISE_UNROLL
    for (int c = 0; c < kChunks; ++c) {
      const bool last = c == kChunks - 1;
      int32_t column = c * kChunkColumns;
      if constexpr (kMayTurn) column = last ? (turn ? 0 : column) : column + static_cast<int32_t>(turn) * kPieceColumns;
      copy(c, kMayTurn && last && turn ? first : all, column);
    }
  }
};

/// Which of a row's `pieces` lies at a place in shared memory, and where a piece lies.
TILEWISE_INLINE int32_t piece_of_place(int32_t place, int32_t pieces, bool turned) {
  return !turned ? place : place == pieces - 1 ? 0 : place + 1;
}
TILEWISE_INLINE int32_t place_of_piece(int32_t piece, int32_t pieces, bool turned) {
  return !turned ? piece : piece == 0 ? pieces - 1 : piece - 1;
}

}  // namespace tilewise::device
