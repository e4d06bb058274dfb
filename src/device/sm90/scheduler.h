// Which tile a block works on next. Producers and consumers ask a scheduler of their own each, and all get the same
// answers: numbers of tiles, or of clusters' tiles, that a TileMatrix or a GroupedTiles places.
#pragma once

#include "device/sm90/mbarrier.h"
#include "device/sm90/tile_counter.h"
#include "device/sm90/tile_matrix.h"
#include "device/sm90/warpgroup.h"

namespace tilewise::device {

/// Gives block b of n the tiles b, b + n, b + 2n, ... The kBlocks blocks of a cluster count as one.
template <class Machine, int kBlocks = 1>
class StaticScheduler {
 public:
  TILEWISE_INLINE explicit StaticScheduler(int32_t count)
      : number_(Machine::block() / kBlocks), step_(Machine::blocks() / kBlocks), count_(count) {}

  /// Returns false where there are no more.
  TILEWISE_INLINE bool has_tile() const { return number_ < count_; }
  TILEWISE_INLINE int32_t number() const { return number_; }
  TILEWISE_INLINE void advance() { number_ += step_; }

 private:
  int32_t number_;
  const int32_t step_, count_;
};

/// The number that a counting producer tells the consumers of its block.
template <class Machine, int kSlots = 4>
struct TileQueue {
  struct alignas(16) Slot {
    typename Machine::SharedNumber number;
  };
  Slot slot[kSlots];
  Ring<Machine, kSlots> ring;

  TILEWISE_INLINE void init(int32_t consumer_warps) { ring.init(1, consumer_warps); }
};

/// Gives each block the next tile when it asks, by a counter of kCounterWords words in global memory (tile_counter.h).
/// The one producer thread of a block asks and tells the others.
template <class Machine, int kSlots = 4>
class CountingScheduler {
 public:
  TILEWISE_INLINE CountingScheduler(TileQueue<Machine, kSlots>& queue, uint32_t* words, int32_t count)
      : queue_(queue), counter_(words), count_(count) {
    take();
  }

  TILEWISE_INLINE bool has_tile() const { return number_ < count_; }
  TILEWISE_INLINE int32_t number() const { return number_; }
  TILEWISE_INLINE void advance() { take(); }

 private:
  TILEWISE_INLINE void take() {
    number_ = counter_.next();
    if (number_ == count_ - 1 + Machine::blocks()) counter_.close();  // each block draws one number past the end
    place_.wait_empty(queue_.ring);
    store_number<Machine>(queue_.slot[place_.stage].number, number_);
    queue_.ring.full[place_.stage].arrive();
    place_.advance();
  }

  TileQueue<Machine, kSlots>& queue_;
  TileCounter<Machine> counter_;
  const int32_t count_;
  int32_t number_;
  RingPlace<kSlots> place_;
};

/// Reads what that producer has told, in consumer warps.
template <class Machine, int kSlots = 4>
class ToldScheduler {
 public:
  TILEWISE_INLINE ToldScheduler(TileQueue<Machine, kSlots>& queue, int32_t count) : queue_(queue), count_(count) {
    take();
  }

  TILEWISE_INLINE bool has_tile() const { return number_ < count_; }
  TILEWISE_INLINE int32_t number() const { return number_; }
  TILEWISE_INLINE void advance() { take(); }

 private:
  TILEWISE_INLINE void take() {
    place_.wait_full(queue_.ring);
    number_ = uniform<Machine>(queue_.slot[place_.stage].number);
    arrive_as_warp(queue_.ring.empty[place_.stage]);
    place_.advance();
  }

  TileQueue<Machine, kSlots>& queue_;
  const int32_t count_;
  int32_t number_ = 0;
  RingPlace<kSlots> place_;
};

/// Tiles of several matrices that lie one below another, with their first rows in global memory. No tile has rows of
/// two matrices. Numbers must come in rising order.
template <class Machine>
class GroupedTiles {
 public:
  struct Place {
    int32_t group, row, end;  // the tile's first row, and the end of its group's, over all groups
    int32_t col;              // in tiles; past the last group: group == groups
  };

  /// offsets: groups + 1 rows, not falling. cols: tiles.
  TILEWISE_INLINE GroupedTiles(const int32_t* offsets, int32_t groups, int32_t tile_rows, int32_t cols)
      : offsets_(offsets), groups_(groups), tile_rows_(tile_rows), cols_(cols) {
    begin_ = Machine::load_global(offsets_);
    end_ = groups_ > 0 ? Machine::load_global(offsets_ + 1) : begin_;
  }

  TILEWISE_INLINE Place place(int32_t number) {
    while (group_ < groups_ && number >= first_ + tiles()) {
      first_ += tiles();
      if (++group_ == groups_) break;
      begin_ = end_;
      end_ = Machine::load_global(offsets_ + group_ + 1);
    }
    if (group_ == groups_) return {groups_, end_, end_, 0};
    const int32_t rest = number - first_, high = ceil_div(end_ - begin_, tile_rows_), col = rest / high;
    return {group_, begin_ + (rest - col * high) * tile_rows_, end_, col};
  }

 private:
  TILEWISE_INLINE int32_t tiles() const { return ceil_div(maximum(end_ - begin_, 0), tile_rows_) * cols_; }

  const int32_t* offsets_;
  const int32_t groups_, tile_rows_, cols_;
  int32_t group_ = 0, first_ = 0, begin_, end_;  // first_: the group's first tile's number
};

}  // namespace tilewise::device
