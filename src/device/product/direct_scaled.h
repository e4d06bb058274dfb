// DirectProduct of fp8 rows and of weights, fp8 or e2m1, whose scales the matrix unit takes: weights go from memory
// straight to the registers that it reads.
#pragma once

#include "device/product/direct_product.h"

namespace tilewise::device {

template <TileOps Ops, ProductConfig C>
class DirectScaled {
  using Machine = typename Ops::Machine;
  using Bytes = typename Ops::Bytes;
  using HalfBytes = typename Ops::HalfBytes;
  using TileA = OperandTile<Ops, C, C.a, C.block_m>;
  using LoaderA = OperandLoader<Ops, C, C.a, C.block_m>;
  using Scales = PairScales<Ops, C>;
  static constexpr int kRowTiles = C.wave_rows() / 32, kColTiles = C.wave_columns() / 32, kDeep = C.block_k / 64;
  static constexpr bool kFours = C.b.type == kProductE2m1;
  static_assert(C.scales_products() && C.scaled_depth() == 0 && !C.b.transposed && C.b.vectors != 0);
  static_assert(C.waves == C.waves_n && C.stages == 2 && C.block_k % 64 == 0);

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
    const Weights weights(b, sums.first_col());
    const Scales scales(a, b, sums);
    typename Weights::Held held[2];
    typename Scales::Held scale[2];
    // Behind the last step comes the last one again, which nobody multiplies: no branch holds loads back.
    const auto depth = [&](int32_t step) { return begin + int64_t{minimum(step, last)} * C.block_k; };
    const auto turn = [&](auto parity, int32_t step) {
      constexpr int kThis = decltype(parity)::value, kNext = 1 - kThis;
      Machine::barrier();  // this step's rows of a are there, and nobody reads the last step's any more
      load_a.start(shared.stage[kNext], depth(step + 1), end, true);
      weights.load(held[kNext], depth(step + 1));
      scale[kNext] = scales.load(depth(step + 1), end);
      multiply(shared.stage[kThis], held[kThis], scale[kThis], sums);
      load_a.finish(shared.stage[kNext]);
    };
    load_a.start(shared.stage[0], begin, end, true);
    weights.load(held[0], begin);
    scale[0] = scales.load(begin, end);
    load_a.finish(shared.stage[0]);
    take_turns(last, turn);
  }

 private:
  /// A wave's own rows as Ops::read_fours() and read_bytes() would have them.
  class Weights {
   public:
    struct Held {
      Bytes of[kDeep][kColTiles];
    };

    TILEWISE_INLINE Weights(const OperandRows& b, int first_col) {
      const int lane = Machine::lane();
      TILEWISE_UNROLL
      for (int c = 0; c < kColTiles; ++c) {
        const int64_t line = memory_row<Machine, C.b>(b, first_col + 32 * c + lane % 32);
        from_[c] = b.data + line * b.line_stride + lane / 32 * 16;
      }
    }

    TILEWISE_INLINE void load(Held& to, int64_t depth) const {
      const int64_t skip = bytes_of_elements<C.b>(depth);
      TILEWISE_UNROLL
      for (int k = 0; k < kDeep; ++k) {
        TILEWISE_UNROLL
        for (int c = 0; c < kColTiles; ++c) {
          const auto* const from = reinterpret_cast<const HalfBytes*>(from_[c] + skip) + bytes_of_elements<C.b>(4 * k);
          to.of[k][c].half[0] = Machine::load_global(from);
          if constexpr (kFours) {
            to.of[k][c].half[1] = HalfBytes{};
          } else {
            to.of[k][c].half[1] = Machine::load_global(from + 2);
          }
        }
      }
    }

   private:
    const uint8_t* from_[kColTiles];
  };

  TILEWISE_INLINE static void multiply(const TileA& a, const typename Weights::Held& weights,
                                       const typename Scales::Held& scale, Sums& sums) {
    TILEWISE_UNROLL
    for (int k = 0; k < kDeep; ++k) {
      Bytes own[kRowTiles];
      TILEWISE_UNROLL
      for (int r = 0; r < kRowTiles; ++r) own[r] = Ops::read_bytes(a, sums.first_row() + 32 * r, k);
      TILEWISE_UNROLL
      for (int c = 0; c < kColTiles; ++c) {
        TILEWISE_UNROLL
        for (int r = 0; r < kRowTiles; ++r) {
          Machine::template mma_scaled<kFours>(sums.tile().tile[r][c], weights.of[k][c], scale.b(c, k), own[r],
                                               scale.a(r, k));
        }
      }
    }
  }
};

}  // namespace tilewise::device
