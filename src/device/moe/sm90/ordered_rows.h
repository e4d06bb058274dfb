// Rows of x beside quantised weights: copied as they lie, and put in the order in which lanes widen weights before
// anybody sees them. What follows a tile's last row in a stage is whatever was there: its columns are nobody's.
#pragma once

#include "device/moe/sm90/pairs.h"
#include "device/moe/sm90/quantised.h"
#include "device/sm90/row_copies.h"

namespace tilewise::device {

inline constexpr int kRowWarps = 2;  // that copy

/// Puts `count` rows of a stage in order, where they are.
template <class Machine, MoeDecodeConfig C>
TILEWISE_INLINE void order_rows(SwizzledTile<C.block_n, C.depth>& tile, int32_t count) {
  // Of 16 bytes; four of them each, kUnits apart; so many units of a lane at once.
  constexpr int kPieces = C.depth / 8, kUnits = kPieces / 4, kAtOnce = 2;
  for (int32_t begin = Machine::lane(); begin < count * kUnits; begin += 32 * kAtOnce) {
    Chunk from[kAtOnce][4];
    TILEWISE_UNROLL
    for (int i = 0; i < 4 * kAtOnce; ++i) {
      const int32_t unit = begin + 32 * (i / 4);
      if (unit >= count * kUnits) continue;
      from[i / 4][i % 4] =
          Machine::template load_shared<Chunk>(tile.piece(unit / kUnits, kUnits * (i % 4) + unit % kUnits));
    }
    TILEWISE_UNROLL
    for (int i = 0; i < 4 * kAtOnce; ++i) {
      const int32_t unit = begin + 32 * (i / 4);
      if (unit >= count * kUnits) continue;
      Chunk ordered;
      TILEWISE_UNROLL
      for (int t = 0; t < 4; ++t) ordered.word[t] = WeightCodes<Machine, C>::order(from[i / 4][t], i % 4);
      Machine::store_shared(reinterpret_cast<Chunk*>(tile.piece(unit / kUnits, kUnits * (i % 4) + unit % kUnits)),
                            ordered);
    }
  }
}

/// Copies a step of `count` rows. row: lane l has those of columns l, l + 32, ... What lies behind a row becomes zeros.
template <class Machine, MoeDecodeConfig C, int kHeld>
TILEWISE_INLINE void load_quantised_rows(SwizzledTile<C.block_n, C.depth>& to, const int32_t (&row)[kHeld],
                                         int32_t count, const RowTensor& from, int32_t k, int32_t depth) {
  constexpr int kPieces = C.depth / 8, kRowsAtOnce = 32 / kPieces, kCopies = 4;  // pieces of a row; copies at once
  const int32_t piece = Machine::lane() % kPieces, first = k + 8 * piece;
  const auto* const data = static_cast<const uint16_t*>(from.data) + first;
  for (int32_t begin = 0; begin < count; begin += kCopies * kRowsAtOnce) {
    TILEWISE_UNROLL
    for (int i = 0; i < kCopies; ++i) {
      const int32_t column = begin + i * kRowsAtOnce + Machine::lane() / kPieces;
      const int32_t own = pair_of_column<Machine>(row, column);
      const bool there = column < count && own != kNobody && first < depth;
      if (column >= count) continue;
      Machine::copy_async(to.piece(column, piece), there ? data + own * from.row_stride : from.data, there);
    }
  }
}

/// A warp's copies of rows, which it hands over in order. Each call is by all its lanes.
template <class Machine, MoeDecodeConfig C, class Pipe>
class OrderedRowCopies : public RowCopies<Pipe, kRowWarps> {
  using Base = RowCopies<Pipe, kRowWarps>;
  // Stages whose rows are on their way while those of one are put in order. Consumers keep one until they have the
  // next.
  static constexpr int kAhead = minimum(2, (C.stages - 2) / kRowWarps);

 public:
  TILEWISE_INLINE OrderedRowCopies(Pipe& pipe, int32_t turn) : Base(pipe, turn), landed_(this->next_) {}

  /// Leaves the copies of a stage's `count` rows to land, and hands those over that have by now. rows_of(stage): a
  /// tile.
  template <class RowsOf>
  TILEWISE_INLINE void leave(int32_t count, const RowsOf& rows_of) {
    Machine::commit_copies();
    this->next_ += kRowWarps;
    counts_ = counts_ << 8 | static_cast<uint32_t>(count);
    if (left() > kAhead) hand_over<kAhead>(rows_of);
  }
  template <class RowsOf>
  TILEWISE_INLINE void hand_over_all(const RowsOf& rows_of) {
    while (left() > 0) hand_over<0>(rows_of);
  }

 private:
  /// Stages that have been left and not handed over.
  TILEWISE_INLINE int32_t left() const { return static_cast<int32_t>(this->next_ - landed_) / kRowWarps; }
  /// The first of them, once so many others at most are under way.
  template <int kLeft, class RowsOf>
  TILEWISE_INLINE void hand_over(const RowsOf& rows_of) {
    const uint32_t stage = ring_place<C.stages>(landed_).stage;
    const auto count = static_cast<int32_t>(counts_ >> (8 * (left() - 1)) & 0xFFu);
    Machine::template wait_copies<kLeft>();
    Machine::wave_sync();
    order_rows<Machine, C>(rows_of(stage), count);
    Machine::fence_shared_writes();
    arrive_as_lanes(this->ring_.full[stage]);
    landed_ += kRowWarps;
  }

  uint32_t landed_;
  uint32_t counts_ = 0;  // rows of each, the last one's low; there are four at most
};

}  // namespace tilewise::device
