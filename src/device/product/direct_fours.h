// DirectProduct of e2m1 weights under 16-bit rows: each wave loads its own weights as they lie and widens them, times
// their scales, to registers, a piece beside the products of the piece before.
#pragma once

#include "device/product/product.h"
#include "device/tile/fours.h"

namespace tilewise::device {

/// A wave's own rows of e2m1 and the scales of their 32 or 16 elements, a step of 64 at a time: of a row the lower half
/// of the lanes has the first 32, the upper half the others.
template <class Ops, ProductConfig C, int kColTiles>
class HeldFours {
  using Machine = typename Ops::Machine;
  static constexpr int kWords = 4, kScales = 32 / C.b.scale_depth;
  static constexpr bool kMachineScales =
      C.element == kBf16 && C.b.scale_type == kScaleE8m0 && requires { Machine::template scaled_fours<0>(0u, 0u); };
  using Scale = Choose<kMachineScales, uint32_t, TablesOfFours<Machine, C.element, C.b.scale_type == kScaleE4m3>>;

 public:
  /// What is multiplied in a step.
  struct Step {
    WordRun<kWords> words[kColTiles];
    Scale scale[kColTiles][kScales];

    /// Elements [8 i, 8 i + 8) of a lane's 32.
    TILEWISE_INLINE Chunk widened(int col_tile, int i) const {
      const uint32_t word = words[col_tile].word[i];
      const Scale& by = scale[col_tile][i * kScales / kWords];
      if constexpr (kMachineScales) {
        return Chunk{{Machine::template scaled_fours<0>(word, by), Machine::template scaled_fours<1>(word, by),
                      Machine::template scaled_fours<2>(word, by), Machine::template scaled_fours<3>(word, by)}};
      } else {
        return by.widened(word);
      }
    }
  };

  TILEWISE_INLINE HeldFours(const OperandRows& b, int first_col) : depth_stride_(b.scale_depth_stride) {
    const int lane = Machine::lane();
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      const int64_t line = memory_row<Machine, C.b>(b, first_col + 32 * c + lane % 32);
      from_[c] = b.data + line * b.line_stride + lane / 32 * 16;
      scales_[c] = static_cast<const uint8_t*>(b.scales) + scale_row<C.b>(b, line) +
                   int64_t{lane / 32 * kScales} * depth_stride_;
    }
  }

  TILEWISE_INLINE void load(int64_t depth) {
    const int64_t first_scale = depth / C.b.scale_depth * depth_stride_;
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      words_[c] = Machine::load_global(reinterpret_cast<const WordRun<kWords>*>(from_[c] + depth / 2));
      TILEWISE_UNROLL
      for (int i = 0; i < kScales; ++i)
        bytes_[c][i] = Machine::load_global(scales_[c] + first_scale + i * depth_stride_);
    }
  }

  TILEWISE_INLINE Step step() const {
    Step to;
    TILEWISE_UNROLL
    for (int c = 0; c < kColTiles; ++c) {
      to.words[c] = words_[c];
      TILEWISE_UNROLL
      for (int i = 0; i < kScales; ++i) {
        if constexpr (kMachineScales) {
          to.scale[c][i] = bytes_[c][i];
        } else {
          to.scale[c][i].fill(C.b.scale_type == kScaleE8m0 ? e8m0_to_float(bytes_[c][i]) : widen_e4m3(bytes_[c][i]));
        }
      }
    }
    return to;
  }

 private:
  int64_t depth_stride_;
  const uint8_t* from_[kColTiles];
  const uint8_t* scales_[kColTiles];
  WordRun<kWords> words_[kColTiles];
  uint8_t bytes_[kColTiles][kScales];
};

template <TileOps Ops, ProductConfig C>
class DirectFours {
  using Machine = typename Ops::Machine;
  using Operand = typename Ops::HalfBytes;
  using TileA = OperandTile<Ops, C, C.a, C.block_m>;
  using LoaderA = OperandLoader<Ops, C, C.a, C.block_m>;
  static constexpr int kRowTiles = C.wave_rows() / 32, kColTiles = C.wave_columns() / 32, kSteps = 4;
  using Held = HeldFours<Ops, C, kColTiles>;
  static_assert(C.b.type == kProductE2m1 && !C.b.transposed && C.b.vectors != 0 && C.b.scale_use == kScaleElements);
  static_assert(C.b.scale_rows == 1 && (C.b.scale_depth == 32 || C.b.scale_depth == 16));
  static_assert(C.waves == C.waves_n && C.stages == 2 && C.block_k == 64 && !C.in_f32() && !C.in_bytes());

 public:
  using Sums = MatrixSums<Ops, C>;
  struct Shared {
    TileA stage[2];
  };

  /// As Product::run(); begin and end are multiples of block_k.
  TILEWISE_INLINE static void run(Shared& shared, const OperandRows& a, const OperandRows& b, int64_t begin,
                                  int64_t end, Sums& sums) {
    if (begin >= end) return;
    const auto last = static_cast<int32_t>((end - begin) / C.block_k) - 1;
    LoaderA load_a(a);
    Held held(b, sums.first_col());
    // Behind the last step comes the last one again, which nobody multiplies: no branch holds loads back.
    const auto depth = [&](int32_t step) { return begin + int64_t{minimum(step, last)} * C.block_k; };
    load_a.start(shared.stage[0], begin, end, true);
    held.load(begin);
    load_a.finish(shared.stage[0]);
    TILEWISE_NO_UNROLL
    for (int32_t step = 0; step <= last; ++step) {
      Machine::barrier();  // this step's rows of a are there, and nobody reads the last step's any more
      const typename Held::Step weights = held.step();
      load_a.start(shared.stage[(step + 1) % 2], depth(step + 1), end, true);
      held.load(depth(step + 1));
      multiply(shared.stage[step % 2], weights, sums);
      load_a.finish(shared.stage[(step + 1) % 2]);
    }
  }

 private:
  /// Products 16 deep, whose order of the depth is the weights': 8 of the first 32 and 8 of the others.
  TILEWISE_INLINE static void multiply(const TileA& a, const typename Held::Step& weights, Sums& sums) {
    constexpr int kPieces = kSteps * kColTiles;
    Operand own[2][kRowTiles];
    const auto read = [&](int i, int r) { own[i % 2][r] = Ops::read_halves(a, sums.first_row() + 32 * r, i, 4); };
    TILEWISE_UNROLL
    for (int r = 0; r < kRowTiles; ++r) read(0, r);
    Operand right = __builtin_bit_cast(Operand, weights.widened(0, 0));
    for_each_index<0, kPieces>([&](auto index) {
      constexpr int kPiece = decltype(index)::value, kStep = kPiece / kColTiles, kCol = kPiece % kColTiles;
      constexpr int kNext = kPiece + 1;
      const Operand here = right;
      TILEWISE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) {
        Ops::template multiply_step<C.element>(sums.tile().tile[r][kCol], here, own[kStep % 2][r]);
        if (kCol == 0 && kStep + 1 < kSteps) read(kStep + 1, r);
        if (r == 0 && kNext < kPieces)
          right = __builtin_bit_cast(Operand, weights.widened(kNext % kColTiles, kNext / kColTiles));
      }
      keep_order<Machine>();
    });
  }
};

}  // namespace tilewise::device
