// Numbers to elements and scales. A wave makes the scales of its lanes' columns in a row by itself; where many rows, or
// a whole row, share a scale, the waves of a block take them in turn. What the whole tensor shares is there already.
#pragma once

#include "device/quantize/places.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class Quantize {
  using Machine = typename Ops::Machine;
  static constexpr int kLanes = Machine::kLanes;
  static constexpr int64_t kRun = int64_t{kLanes} * kLaneColumns;
  static constexpr bool kE2m1 = C.e2m1 != 0, kVector = C.vector_rows != 0;
  static constexpr BlockRule kRule{kE2m1, C.scale_type, C.power_of_two != 0};

  struct Keys {
    int32_t key[C.waves][kLanes];
  };

 public:
  using Params = QuantizeParams;
  using Shared = Choose<C.together(), Keys, NoShared>;

  TILEWISE_INLINE static void run(const Params& p, Shared& shared) {
    const QuantizeShape& s = p.shape;
    const int wave = Machine::wave();
    const int64_t block_rows = C.tall ? s.block_rows : 1;
    const QuantizePlaces places{s.num_experts, ceil_div(s.rows, block_rows),
                                C.scope == kScopeRow ? 1 : ceil_div(s.columns, kRun)};
    const int64_t index = C.together() ? Machine::block() : static_cast<int64_t>(Machine::block()) * C.waves + wave;
    if (index >= places.count()) return;
    const QuantizePlace place = places.at(index, kRun);
    const Share share{place.row_block * block_rows, minimum(s.rows, (place.row_block + 1) * block_rows),
                      place.column + Machine::lane() * kLaneColumns, C.together() ? wave : 0};
    float value[kLaneColumns];
    float divisor = 0.0f;
    if constexpr (C.scope == kScopeTensor) {
      divisor = Machine::load_global(p.whole.data + place.expert * p.whole.expert_stride);
      load(p, place, share.first_row, share.column, value);
    } else {
      int32_t key = 0;
      for_each_piece(s, share, [&](int64_t row, int64_t column) {
        load(p, place, row, column, value);
        key = greatest_key<kE2m1>(value, key);
      });
      if constexpr (C.together()) key = greatest_of_waves(key, wave, shared);
      key = greatest_of_lanes<Machine>(key, C.scope == kScopeRow ? kLanes : C.lanes_a_block);
      divisor = make_scale(p, place, share, key);
    }
    for_each_piece(s, share, [&](int64_t row, int64_t column) {
      if constexpr (C.together()) load(p, place, row, column, value);
      auto* elements = static_cast<uint8_t*>(p.elements.data) + place.expert * p.elements.expert_stride;
      store_elements<Machine, kE2m1, kVector>(value, divisor, elements + row * p.elements.row_stride, column,
                                              s.columns);
    });
  }

 private:
  /// The rows of a place, the lane's first column, and which of the waves that take turns this one is.
  struct Share {
    int64_t first_row, end_row, column;
    int wave;
  };

  /// Calls visit(row, column) for each time that this wave's lanes have columns.
  template <class Visit>
  TILEWISE_INLINE static void for_each_piece(const QuantizeShape& s, const Share& share, const Visit& visit) {
    if constexpr (C.tall) {
      for (int64_t row = share.first_row + share.wave; row < share.end_row; row += C.waves) visit(row, share.column);
    } else if constexpr (C.scope == kScopeRow) {
      const int64_t first = share.wave * kRun;
      for (int64_t start = first; start < s.columns; start += C.waves * kRun)
        visit(share.first_row, start + share.column);
    } else {
      visit(share.first_row, share.column);
    }
  }

  TILEWISE_INLINE static void load(const Params& p, const QuantizePlace& place, int64_t row, int64_t column,
                                   float (&value)[kLaneColumns]) {
    load_columns<Machine, kVector, C.number_type>(value, p.numbers.data,
                                                  place.expert * p.numbers.expert_stride + row * p.numbers.row_stride,
                                                  column, p.shape.columns);
  }

  /// Lane by lane.
  TILEWISE_INLINE static int32_t greatest_of_waves(int32_t key, int wave, Shared& shared) {
    const int lane = Machine::lane();
    Machine::store_shared(&shared.key[wave][lane], key);
    Machine::barrier();
    TILEWISE_UNROLL
    for (int other = 0; other < C.waves; ++other)
      key = maximum(key, Machine::template load_shared<int32_t>(&shared.key[other][lane]));
    return key;
  }

  /// What the numbers of the lane's block are divided by. The block's first lane writes the scale.
  TILEWISE_INLINE static float make_scale(const Params& p, const QuantizePlace& place, const Share& share,
                                          int32_t key) {
    const bool nan = key > 0x7F800000;
    float global = 1.0f;
    if constexpr (C.global) global = Machine::load_global(p.whole.data + place.expert * p.whole.expert_stride);
    const uint32_t bits = scale_bits(kRule, nan ? 0.0f : __builtin_bit_cast(float, key), nan, global);
    const bool first = C.scope == kScopeRow ? Machine::lane() == 0  // of a row without columns too
                                            : Machine::lane() % C.lanes_a_block == 0 && share.column < p.shape.columns;
    if (first && share.wave == 0) {
      const int64_t column_block = C.scope == kScopeRow ? 0 : share.column / p.shape.block_columns;
      const int64_t at = place.expert * p.scales.expert_stride + place.row_block * p.scales.row_stride +
                         column_block * p.scales.column_stride;
      if constexpr (C.scale_type == kScaleF32) {
        Machine::store_global(static_cast<float*>(p.scales.data) + at, __builtin_bit_cast(float, bits));
      } else {
        Machine::store_global(static_cast<uint8_t*>(p.scales.data) + at, static_cast<uint8_t>(bits));
      }
    }
    const float scale = scale_value(C.scale_type, bits);
    return C.global ? scale * global : scale;
  }
};

}  // namespace tilewise::device
