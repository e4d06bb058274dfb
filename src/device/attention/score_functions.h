// What the source of a problem's score_mod and mask_mod is written in: look-ups, and what operators do to floats. The
// host writes it (expression::device_source) into a struct that a kernel's config names:
//   score<Machine>(tables, score, b, h, q_idx, kv_idx), where kModifies; slope(), its derivative, in backward passes,
//   and kSloped: whether that is not 1
//   sees<Machine>(tables, b, h, q_idx, kv_idx), where kHides
//   sees_within<Machine>(...), its bounds where each of these has some, where kBounded: see score_bounds.h
// Places are int32_t, or become one (ColumnPlace).
// kSkips: mask_tiles ran before, and kernels go by what it found. kAtPositions: q_idx is the key that the query stands
// at.
#pragma once

#include "device/attention/params.h"
#include "device/attention/scores.h"
#include "device/common/arithmetic.h"
#include "device/common/float8.h"
#include "device/common/float8_e5m2.h"
#include "device/tile/element.h"
#include "device/tile/platform.h"

namespace tilewise::device {

struct TabledFunctions {
  static constexpr bool kModifies = false, kSloped = false, kHides = false, kSkips = false, kAtPositions = false,
                        kBounded = false;
  template <class Params>
  using ParamsOf = WithTables<Params>;
};

inline constexpr float kNotANumber = __builtin_bit_cast(float, 0x7FC00000u);

/// An element as it lies in memory, and what a look-up gives.
template <int kElement>
struct TableTraits {  // of one byte
  using Bits = uint8_t;
  TILEWISE_INLINE static auto value(uint8_t bits) {
    if constexpr (kElement == kTableE4m3) {
      return e4m3_to_float(bits);
    } else if constexpr (kElement == kTableE5m2) {
      return e5m2_to_float(bits);
    } else if constexpr (kElement == kTableBool) {
      return bits != 0;
    } else {
      return int32_t{bits};
    }
  }
};
template <int kElement>
struct HalfTable {
  using Bits = uint16_t;
  TILEWISE_INLINE static float value(uint16_t bits) { return element_to_float<kElement>(bits); }
};
template <class Number>
struct NumberTable {
  using Bits = Number;
  TILEWISE_INLINE static Number value(Number bits) { return bits; }
};
template <>
struct TableTraits<kTableBf16> : HalfTable<kBf16> {};
template <>
struct TableTraits<kTableF16> : HalfTable<kF16> {};
template <>
struct TableTraits<kTableF32> : NumberTable<float> {};
template <>
struct TableTraits<kTableF64> {
  using Bits = double;
  TILEWISE_INLINE static float value(double bits) { return static_cast<float>(bits); }
};
template <>
struct TableTraits<kTableI32> : NumberTable<int32_t> {};
template <>
struct TableTraits<kTableI64> : NumberTable<int64_t> {};

/// An index where it is inside a dimension, else the last one. Numbers below 0 count as large ones. One instruction,
/// and no choice between addresses, which take two registers each.
TILEWISE_INLINE uint32_t place_within(int32_t index, int32_t size) {
  return minimum(static_cast<uint32_t>(index), static_cast<uint32_t>(size - 1));
}
TILEWISE_INLINE uint32_t place_within(int64_t index, int32_t size) {
  return static_cast<uint32_t>(minimum(static_cast<uint64_t>(index), static_cast<uint64_t>(size - 1)));
}
TILEWISE_INLINE bool is_place(int32_t index, uint32_t place) { return static_cast<uint32_t>(index) == place; }
TILEWISE_INLINE bool is_place(int64_t index, uint32_t place) { return static_cast<uint64_t>(index) == place; }

/// The element of a table that is not empty; 0 where an index is outside it. Something is read then, too: without a
/// branch the reads of a tile stand side by side, and equal ones become one.
template <class Machine, int kElement, class... Indices>
TILEWISE_INLINE auto look_up(const ScoreTable& table, Indices... indices) {
  using Traits = TableTraits<kElement>;
  using Bits = typename Traits::Bits;
  bool inside = true;
  uint64_t offset = 0;
  int dimension = 0;
  const auto add = [&](auto index) {
    const uint32_t place = place_within(index, table.sizes[dimension]);
    inside = inside & is_place(index, place);
    offset += place * static_cast<uint64_t>(table.strides[dimension]);
    ++dimension;
  };
  (add(indices), ...);
  const auto at = static_cast<int64_t>(offset);
  const auto value = Traits::value(Machine::load_global(static_cast<const Bits*>(table.data) + at));
  return inside ? value : decltype(Traits::value(Bits{})){};
}

/// Of a place, where floats hold it.
TILEWISE_INLINE float real_of(int32_t place) { return static_cast<float>(place); }

TILEWISE_INLINE float nearest_integer(float x) {
#if defined(__CUDACC_RTC__) || defined(__CUDACC__)
  return roundf(x);
#else
  return __builtin_roundf(x);
#endif
}

TILEWISE_INLINE float remainder_of_float(float a, float b) { return remainder_from(float_remainder(a, b), b); }
TILEWISE_INLINE float floor_divided_float(float a, float b) {
  if (b == 0.0f) return a / b;
  const float quotient = floor_quotient_from(float_remainder(a, b), a, b);
  return magnitude(quotient) < kInfinity ? nearest_integer(quotient) : quotient;
}

}  // namespace tilewise::device
