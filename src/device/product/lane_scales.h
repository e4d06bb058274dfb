// Scales as the matrix unit takes them beside its operands: a lane has those of its row of a tile of 32.
#pragma once

#include "device/product/operand.h"

namespace tilewise::device {

/// Of kTiles x 32 rows and a step of the depth. An instruction is 64 deep and has two scales for each row: the lower
/// half of the lanes brings the first, the upper half the second.
template <class Ops, ProductConfig C, OperandConfig O, int kTiles>
class LaneScales {
  using Machine = typename Ops::Machine;
  static constexpr int kDeep = C.block_k / 64;
  static constexpr bool kGiven = O.scale_use == kScaleProducts;
  static_assert(!kGiven || O.scale_type == kScaleE8m0, "the matrix unit takes exponents");
  static_assert(!kGiven || O.scale_depth == 32 || O.scale_depth % 64 == 0, "32 steps of the depth have one scale");

 public:
  /// What instructions are given.
  struct Held {
    uint32_t word[kTiles][kDeep];
    TILEWISE_INLINE uint32_t operator()(int tile, int deep) const { return word[tile][deep]; }
  };

  TILEWISE_INLINE LaneScales(const OperandRows& operand, int first_row) : depth_stride_(operand.scale_depth_stride) {
    if constexpr (kGiven) {
      const int lane = Machine::lane();
      TILEWISE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile) {
        const int64_t line = memory_row<Machine, O>(operand, first_row + 32 * tile + lane % 32);
        from_[tile] = static_cast<const uint8_t*>(operand.scales) + scale_row<O>(operand, line);
        if constexpr (O.scale_depth == 32) from_[tile] += lane / 32 * depth_stride_;
      }
    }
  }

  /// Of the depth from `depth` on, of which `end`, a multiple of 64, is the end: behind it any that there are.
  TILEWISE_INLINE Held load(int64_t depth, int64_t end) const {
    constexpr uint32_t kOne = 127;
    Held to;
    TILEWISE_UNROLL
    for (int deep = 0; deep < kDeep; ++deep) {
      const auto block = static_cast<uint64_t>(minimum(depth + 64 * deep, end - 64)) / uint32_t{O.scale_depth};
      const int64_t at = static_cast<int64_t>(block) * depth_stride_;
      TILEWISE_UNROLL
      for (int tile = 0; tile < kTiles; ++tile)
        to.word[tile][deep] = kGiven ? uint32_t{Machine::load_global(from_[tile] + at)} : kOne;
    }
    return to;
  }

 private:
  int64_t depth_stride_;
  const uint8_t* from_[kTiles];
};

/// Of both operands of a wave's sums.
template <class Ops, ProductConfig C>
struct PairScales {
  using A = LaneScales<Ops, C, C.a, C.wave_rows() / 32>;
  using B = LaneScales<Ops, C, C.b, C.wave_columns() / 32>;
  struct Held {
    typename A::Held a;
    typename B::Held b;
  };
  A a;
  B b;
  template <class Sums>
  TILEWISE_INLINE PairScales(const OperandRows& left, const OperandRows& right, const Sums& sums)
      : a(left, sums.first_row()), b(right, sums.first_col()) {}
  TILEWISE_INLINE Held load(int64_t depth, int64_t end) const { return {a.load(depth, end), b.load(depth, end)}; }
};
/// Of products without.
struct NoScales {
  struct Held {};
  template <class... Any>
  TILEWISE_INLINE explicit NoScales(const Any&...) {}
  TILEWISE_INLINE Held load(int64_t, int64_t) const { return {}; }
};

}  // namespace tilewise::device
