// An operand of products as a block sees it: its own rows, each of them anywhere, and how they get to shared tiles.
// Rows past the block's last repeat it, and whoever gets their sums leaves them out; depth past the end is zeros.
#pragma once

#include "device/product/float_tile.h"
#include "device/product/params.h"
#include "device/product/runs.h"
#include "device/tile/byte_tile.h"
#include "device/tile/loader.h"

namespace tilewise::device {

/// The rows of one expert from first_row on. rows: at least 1 where anything is loaded.
struct OperandRows {
  const uint8_t* data;
  int64_t line_stride;  // bytes
  const void* scales;
  int64_t scale_row_stride, scale_depth_stride;  // in scales
  const int32_t* index;                          // where gathered: line i of the operand is line index[i] in memory
  int64_t first_row;
  int32_t rows;             // of halves: of each of them
  int64_t half_stride = 0;  // of halves: rows from the left one to the right one
};

template <OperandConfig O>
TILEWISE_INLINE OperandRows operand_rows(const ProductOperand& p, int64_t expert, int64_t first_row, int32_t rows,
                                         const int32_t* index = nullptr) {
  OperandRows operand{static_cast<const uint8_t*>(p.data) + expert * p.expert_stride,
                      p.line_stride,
                      p.scales.data,
                      p.scales.row_stride,
                      p.scales.depth_stride,
                      index,
                      first_row,
                      rows};
  if constexpr (O.scale_use != kScaleNever) {
    constexpr int64_t kBytes = O.scale_type == kScaleF32 ? 4 : 1;
    operand.scales = static_cast<const uint8_t*>(p.scales.data) + expert * p.scales.expert_stride * kBytes;
  }
  return operand;
}

/// Bytes of so many elements.
template <OperandConfig O>
TILEWISE_INLINE constexpr int64_t bytes_of_elements(int64_t elements) {
  return elements * bits_of_product_type(O.type) / 8;
}

/// Whether elements can be copied beside the lanes.
template <class Ops, ProductConfig C, OperandConfig O>
inline constexpr bool kCopiesElements =
    Ops::kAsyncCopies && O.type == C.element && !C.in_f32() && O.vectors != 0 && O.scale_use != kScaleElements;
/// Whether columns of memory stay columns of their tile.
template <class Ops, ProductConfig C, OperandConfig O>
inline constexpr bool kKeepsColumns = kCopiesElements<Ops, C, O> && O.transposed != 0 && !Ops::kTransposedCopies;

/// The tile of one side of a product. Writers that transpose walk down its columns.
template <class Ops, ProductConfig C, OperandConfig O, int kRows>
struct OperandTile
    : Choose<C.in_f32(), FloatTile<kRows, C.block_k>,
             Choose<C.in_bytes(), ByteRows<kRows, bytes_of_elements<O>(C.block_k)>,
                    Choose<kKeepsColumns<Ops, C, O>, SharedTile<C.in_f32() ? kBf16 : C.element, C.block_k, kRows>,
                           SharedTile<C.in_f32() ? kBf16 : C.element, kRows, C.block_k, O.transposed != 0>>>> {
  static constexpr bool kColumns = kKeepsColumns<Ops, C, O>;
};

/// Rows of an operand from the wave's first on, as products take them.
template <class Tile>
TILEWISE_INLINE auto rows_of(const Tile& tile, int first_row) {
  if constexpr (Tile::kColumns) {
    return TransposedPart<Tile>{tile, first_row};
  } else {
    return part_of(tile, first_row);
  }
}

/// Where a block's row stands among the operand's rows, and how many there are from it on: none behind the last.
struct RowPlace {
  int64_t first;
  int32_t left;
};
/// kRun: rows that are taken at once, of which the last ones are taken again rather than fewer. 0: fewer are.
template <OperandConfig O, int kRun>
TILEWISE_INLINE RowPlace row_place(const OperandRows& operand, int row) {
  int64_t first = operand.first_row;
  if constexpr (O.halves != 0) {
    constexpr int kHalf = O.halves / 2;
    const int within = row % O.halves;
    if (within >= kHalf) first += operand.half_stride;
    row = row / O.halves * kHalf + within % kHalf;
  }
  if constexpr (kRun != 0) row = minimum(row, operand.rows - kRun);
  return {first + row, operand.rows - row};
}

/// Which row of an operand, or place in the lines of a transposed one, a block's row is in memory.
template <class Machine, OperandConfig O>
TILEWISE_INLINE int64_t memory_row(const OperandRows& operand, int row) {
  const int64_t at = row_place<O, 1>(operand, row).first;
  if constexpr (O.gathered && !O.transposed) return Machine::load_global(operand.index + at);
  return at;
}

/// Offset of the scale of a row.
template <OperandConfig O>
TILEWISE_INLINE int64_t scale_row(const OperandRows& operand, int64_t row) {
  constexpr auto kRows = static_cast<uint64_t>(O.scale_rows);
  return kRows == 0 ? 0
                    : static_cast<int64_t>(static_cast<uint64_t>(row) / maximum(kRows, uint64_t{1})) *
                          operand.scale_row_stride;
}
template <OperandConfig O>
TILEWISE_INLINE int64_t scale_depth(const OperandRows& operand, int64_t depth) {
  constexpr auto kDepth = static_cast<uint64_t>(O.scale_depth);
  return kDepth == 0 ? 0
                     : static_cast<int64_t>(static_cast<uint64_t>(depth) / maximum(kDepth, uint64_t{1})) *
                           operand.scale_depth_stride;
}

/// The scale of a block's row at a depth.
template <class Machine, OperandConfig O>
TILEWISE_INLINE float operand_scale(const OperandRows& operand, int row, int64_t depth) {
  const int64_t line = memory_row<Machine, O>(operand, row);
  return load_scale<Machine, O.scale_type>(operand.scales,
                                           scale_row<O>(operand, line) + scale_depth<O>(operand, depth));
}

/// Elements of 16 bits as they are, asynchronously: rows, or columns that stay columns.
template <class Ops, ProductConfig C, OperandConfig O, int kRows>
class CopyingLoader {
  using Machine = typename Ops::Machine;
  using Tile = OperandTile<Ops, C, O, kRows>;
  static constexpr int kThreads = C.waves * Machine::kLanes;
  static constexpr int kLines = O.transposed ? C.block_k : kRows;
  static constexpr int kRuns = (O.transposed ? kRows : C.block_k) / kChunk, kUnits = kLines * kRuns;
  static constexpr int kSteps = ceil_div(kUnits, kThreads);

 public:
  TILEWISE_INLINE explicit CopyingLoader(const OperandRows& operand)
      : index_(operand.index), line_stride_(operand.line_stride) {
    for_each([&](int step, int line, int run) {
      if constexpr (O.transposed) {
        from_[step] = operand.data + 2 * row_place<O, kChunk>(operand, run * kChunk).first;
      } else {
        from_[step] = operand.data + memory_row<Machine, O>(operand, line) * operand.line_stride + 2 * kChunk * run;
      }
    });
  }

  /// Depths [depth, end) of each row, of which all lie in the tile where it is whole.
  TILEWISE_INLINE void start(Tile& tile, int64_t depth, int64_t end, bool whole) {
    for_each([&](int step, int line, int run) {
      const bool valid = whole || depth + (O.transposed ? line : run * kChunk) < end;
      const uint8_t* const from = valid ? from_[step] + skip(depth, line) : from_[0];
      Machine::copy_async(tile.chunk(line, run), from, valid);
    });
  }
  TILEWISE_INLINE void finish(Tile&) {}

 private:
  /// Bytes from an operand's start to where a line has these depths.
  TILEWISE_INLINE int64_t skip(int64_t depth, int line) const {
    if constexpr (!O.transposed) return 2 * depth;
    const int64_t at = depth + line;
    return (O.gathered ? int64_t{Machine::load_global(index_ + at)} : at) * line_stride_;
  }

  template <class Visit>
  TILEWISE_INLINE static void for_each(const Visit& visit) {
    const auto thread = static_cast<uint32_t>(Machine::thread());
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t unit = thread + static_cast<uint32_t>(step * kThreads);
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      visit(step, static_cast<int>(unit / kRuns), static_cast<int>(unit % kRuns));
    }
  }

  const int32_t* index_;
  int64_t line_stride_;
  const uint8_t* from_[kSteps];
};

/// Rows through registers, where they are widened and multiplied by their scales.
template <class Ops, ProductConfig C, OperandConfig O, int kRows>
class RowLoader {
  using Machine = typename Ops::Machine;
  using Tile = OperandTile<Ops, C, O, kRows>;
  static constexpr int kRun = O.run(), kThreads = C.waves * Machine::kLanes, kRowRuns = C.block_k / kRun;
  static constexpr int kUnits = kRows * kRowRuns, kSteps = ceil_div(kUnits, kThreads);
  static constexpr bool kScaled = O.scale_use == kScaleElements;
  static_assert(C.block_k % kRun == 0 && (O.scale_depth % kRun == 0 || !kScaled), "a run has one scale");
  static_assert(!C.in_bytes() || ((O.type == kProductE4m3 || C.scales_products()) && !kScaled), "bytes as they are");
  static constexpr bool kTranslates = C.in_bytes() && !C.scales_products();
  using Run = ElementRun<O.type, kRun>;

 public:
  TILEWISE_INLINE explicit RowLoader(const OperandRows& operand) : operand_(operand) {
    for_each([&](int step, int row, int run) {
      const int64_t line = memory_row<Machine, O>(operand, row);
      from_[step] = operand.data + line * operand.line_stride + bytes_of_elements<O>(run * kRun);
      if constexpr (kScaled) scale_row_[step] = scale_row<O>(operand, line);
    });
  }

  TILEWISE_INLINE void start(Tile&, int64_t depth, int64_t end, bool whole) {
    if (whole) {
      load(depth, [&](const uint8_t* at, int) { return Run::template load<Machine, O.vectors != 0>(at); });
    } else {
      load(depth, [&](const uint8_t* at, int run) {
        return Run::template load_some<Machine, O.vectors != 0>(at, end - depth - run * kRun);
      });
    }
    if constexpr (kScaled) {
      for_each([&](int step, int, int run) {
        // Behind the end there are zeros, whose scale may be any that there is.
        const int64_t at = scale_depth<O>(operand_, minimum(depth + run * kRun, end - 1));
        scale_[step] = load_scale<Machine, O.scale_type>(operand_.scales, scale_row_[step] + at);
      });
    }
  }

  TILEWISE_INLINE void finish(Tile& tile) {
    for_each([&](int step, int row, int run) {
      const float scale = kScaled ? scale_[step] : 1.0f;
      if constexpr (C.in_bytes()) {
        Chunk chunk;
        TILEWISE_UNROLL
        for (int i = 0; i < 4; ++i) {
          chunk.word[i] = held_[step].word[i];
          if constexpr (kTranslates) chunk.word[i] = translated_word<Machine>(chunk.word[i], nans_[step]);
        }
        Machine::store_shared(tile.chunk(row, run), chunk);
      } else if constexpr (C.in_f32()) {
        TILEWISE_UNROLL
        for (int i = 0; i < kRun; ++i) {
          const float x = held_[step].number(i);
          Machine::store_shared(tile.at(row, run * kRun + i), kScaled ? x * scale : x);
        }
      } else {
        for_each_index<0, kRun / kChunk>([&](auto i) {
          constexpr int kFirst = decltype(i)::value * kChunk;
          Machine::store_shared(tile.chunk(row, run * (kRun / kChunk) + decltype(i)::value),
                                chunk_of<Machine, C.element, kScaled, O.scale_type, kFirst>(held_[step], scale));
        });
      }
    });
  }

  /// What has been met of rows of bytes, into a tile that nobody needs any more: for nans_of_row().
  TILEWISE_INLINE void leave_nans(Tile& tile) const {
    for_each([&](int step, int row, int run) {
      Machine::store_shared(reinterpret_cast<uint32_t*>(&tile) + row * kRowRuns + run, nans_[step].value);
    });
  }

 private:
  template <class Load>
  TILEWISE_INLINE void load(int64_t depth, const Load& load) {
    const int64_t skip = bytes_of_elements<O>(depth);
    for_each([&](int step, int, int run) { held_[step] = load(from_[step] + skip, run); });
  }
  template <class Visit>
  TILEWISE_INLINE static void for_each(const Visit& visit) {
    const auto thread = static_cast<uint32_t>(Machine::thread());
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t unit = thread + static_cast<uint32_t>(step * kThreads);
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      visit(step, static_cast<int>(unit / kRowRuns), static_cast<int>(unit % kRowRuns));
    }
  }

  const OperandRows& operand_;
  const uint8_t* from_[kSteps];
  int64_t scale_row_[kScaled ? kSteps : 1];
  float scale_[kScaled ? kSteps : 1];
  Run held_[kSteps];
  ByteNans nans_[kTranslates ? kSteps : 1];
};

/// What RowLoader has left of a row in a tile of bytes.
template <class Machine, class Tile>
TILEWISE_INLINE ByteNans nans_of_row(const Tile& tile, int row) {
  constexpr int kRuns = Tile::kDepth / 16;
  ByteNans nans;
  TILEWISE_UNROLL
  for (int i = 0; i < kRuns; ++i)
    nans.value |= Machine::template load_shared<uint32_t>(reinterpret_cast<const uint32_t*>(&tile) + row * kRuns + i);
  return nans;
}

/// Columns of memory through registers: of 4 steps of the depth a lane has 8 rows each, which leave as 4 elements of
/// each row.
template <class Ops, ProductConfig C, OperandConfig O, int kRows>
class TransposingLoader {
  using Machine = typename Ops::Machine;
  using Tile = OperandTile<Ops, C, O, kRows>;
  static constexpr int kRun = O.run(), kDeep = 4;
  static constexpr int kThreads = C.waves * Machine::kLanes, kRowRuns = kRows / kRun;
  static constexpr int kUnits = kRowRuns * (C.block_k / kDeep), kSteps = ceil_div(kUnits, kThreads);
  static constexpr bool kScaled = O.scale_use == kScaleElements;
  /// Scales of a lane's square.
  static constexpr int kScaleRows = kScaled && O.scale_rows == 1 ? kRun : 1;
  static constexpr int kScaleDepths = kScaled && O.scale_depth == 1 ? kDeep : 1;
  using Run = ElementRun<O.type, kRun>;
  struct Square {
    Run line[kDeep];
  };
  struct Scales {
    float of[kScaleRows][kScaleDepths];
  };

 public:
  TILEWISE_INLINE explicit TransposingLoader(const OperandRows& operand) : operand_(operand) {
    for_each([&](int step, int row, int) {
      const RowPlace place = row_place<O, O.vectors ? kRun : 0>(operand, row);
      from_[step] = operand.data + bytes_of_elements<O>(place.first);
      left_[step] = place.left;
    });
  }

  TILEWISE_INLINE void start(Tile&, int64_t depth, int64_t end, bool) {
    for_each([&](int step, int row, int deep) {
      TILEWISE_UNROLL
      for (int i = 0; i < kDeep; ++i) {
        const int64_t line = depth + deep + i;
        held_[step].line[i] = Run{};
        if (line >= end) continue;
        const int64_t at = O.gathered ? Machine::load_global(operand_.index + line) : line;
        held_[step].line[i] = Run::template load_some<Machine, O.vectors != 0>(from_[step] + at * operand_.line_stride,
                                                                               O.vectors ? kRun : left_[step]);
      }
      if constexpr (kScaled) load_scales(scales_[step], row, depth + deep, end);
    });
  }

  TILEWISE_INLINE void finish(Tile& tile) {
    for_each([&](int step, int row, int deep) {
      const Square& square = held_[step];
      TILEWISE_UNROLL
      for (int r = 0; r < kRun; ++r) {
        if constexpr (C.in_f32()) {
          TILEWISE_UNROLL
          for (int i = 0; i < kDeep; ++i) Machine::store_shared(tile.at(row + r, deep + i), number(step, r, i));
        } else {
          HalfChunk four;
          TILEWISE_UNROLL
          for (int i = 0; i < kDeep; i += 2) {
            if constexpr (O.type == C.element && !kScaled) {
              four.word[i / 2] = square.line[i].bits(r) | square.line[i + 1].bits(r) << 16;
            } else {
              four.word[i / 2] = Machine::template pack<C.element>(number(step, r, i), number(step, r, i + 1));
            }
          }
          Machine::store_shared(tile.chunk(row + r, deep / kChunk) + deep % kChunk, four);
        }
      }
    });
  }

 private:
  TILEWISE_INLINE float number(int step, int row, int deep) const {
    const float x = held_[step].line[deep].number(row);
    if constexpr (!kScaled) return x;
    return x * scales_[kScaled ? step : 0].of[kScaleRows > 1 ? row : 0][kScaleDepths > 1 ? deep : 0];
  }

  TILEWISE_INLINE void load_scales(Scales& to, int row, int64_t depth, int64_t end) const {
    TILEWISE_UNROLL
    for (int r = 0; r < kScaleRows; ++r) {
      const int64_t line = row_place<O, 1>(operand_, row + r).first;
      TILEWISE_UNROLL
      for (int i = 0; i < kScaleDepths; ++i) {
        const int64_t at = scale_row<O>(operand_, line) + scale_depth<O>(operand_, minimum(depth + i, end - 1));
        to.of[r][i] = load_scale<Machine, O.scale_type>(operand_.scales, at);
      }
    }
  }

  /// Neighbours have adjacent runs of rows.
  template <class Visit>
  TILEWISE_INLINE static void for_each(const Visit& visit) {
    const auto thread = static_cast<uint32_t>(Machine::thread());
    TILEWISE_UNROLL
    for (int step = 0; step < kSteps; ++step) {
      const uint32_t unit = thread + static_cast<uint32_t>(step * kThreads);
      if (kUnits % kThreads != 0 && unit >= kUnits) break;
      visit(step, static_cast<int>(unit % kRowRuns) * kRun, static_cast<int>(unit / kRowRuns) * kDeep);
    }
  }

  const OperandRows& operand_;
  const uint8_t* from_[kSteps];
  int32_t left_[kSteps];
  Scales scales_[kScaled ? kSteps : 1];
  Square held_[kSteps];
};

template <class Ops, ProductConfig C, OperandConfig O>
inline constexpr bool kCopiesRows = kCopiesElements<Ops, C, O> && (!O.transposed || kKeepsColumns<Ops, C, O>);

template <class Ops, ProductConfig C, OperandConfig O, int kRows>
using OperandLoader =
    Choose<kCopiesRows<Ops, C, O>, CopyingLoader<Ops, C, O, kRows>,
           Choose<O.transposed != 0, TransposingLoader<Ops, C, O, kRows>, RowLoader<Ops, C, O, kRows>>>;

}  // namespace tilewise::device
