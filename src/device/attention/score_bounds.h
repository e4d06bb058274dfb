// What the source of mask_mod's bounds is written in: between what ints lie where the places that they are made of lie
// between bounds. The host writes it (expression::bounds_source) where no term can overflow, so that nothing here wraps
// around. Bools are 0 and 1. Everything is the same in all lanes of a wave.
#pragma once

#include "device/attention/score_functions.h"

namespace tilewise::device {

struct Bounds {
  int64_t low, high;  // both inclusive
};

TILEWISE_INLINE constexpr Bounds truth_bounds(bool may_be_false, bool may_be_true) {
  return {may_be_false ? 0 : 1, may_be_true ? 1 : 0};
}
TILEWISE_INLINE constexpr Bounds united(const Bounds& a, const Bounds& b) {
  return {minimum(a.low, b.low), maximum(a.high, b.high)};
}
TILEWISE_INLINE constexpr Bounds negated_bounds(const Bounds& a) { return {-a.high, -a.low}; }
TILEWISE_INLINE constexpr Bounds absolute_bounds(const Bounds& a) {
  return {a.low > 0 ? a.low : a.high < 0 ? -a.high : int64_t{0}, maximum(-a.low, a.high)};
}
TILEWISE_INLINE constexpr Bounds added_bounds(const Bounds& a, const Bounds& b) {
  return {a.low + b.low, a.high + b.high};
}
TILEWISE_INLINE constexpr Bounds subtracted_bounds(const Bounds& a, const Bounds& b) {
  return {a.low - b.high, a.high - b.low};
}
TILEWISE_INLINE constexpr Bounds of_corners(int64_t a, int64_t b, int64_t c, int64_t d) {
  return {minimum(minimum(a, b), minimum(c, d)), maximum(maximum(a, b), maximum(c, d))};
}
TILEWISE_INLINE constexpr Bounds multiplied_bounds(const Bounds& a, const Bounds& b) {
  return of_corners(a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high);
}
/// By a divisor above 0.
TILEWISE_INLINE constexpr Bounds floor_divided_bounds(const Bounds& a, const Bounds& b) {
  return of_corners(floor_divided_integer(a.low, b.low), floor_divided_integer(a.low, b.high),
                    floor_divided_integer(a.high, b.low), floor_divided_integer(a.high, b.high));
}
/// Likewise. Within one period the remainder goes with the number.
TILEWISE_INLINE constexpr Bounds remainder_bounds(const Bounds& a, const Bounds& b) {
  if (b.low == b.high && floor_divided_integer(a.low, b.low) == floor_divided_integer(a.high, b.low)) {
    return {remainder_of_integer(a.low, b.low), remainder_of_integer(a.high, b.low)};
  }
  return {0, a.low >= 0 ? minimum(a.high, b.high - 1) : b.high - 1};
}
TILEWISE_INLINE constexpr Bounds minimum_bounds(const Bounds& a, const Bounds& b) {
  return {minimum(a.low, b.low), minimum(a.high, b.high)};
}
TILEWISE_INLINE constexpr Bounds maximum_bounds(const Bounds& a, const Bounds& b) {
  return {maximum(a.low, b.low), maximum(a.high, b.high)};
}

TILEWISE_INLINE constexpr Bounds not_bounds(const Bounds& a) { return {1 - a.high, 1 - a.low}; }
TILEWISE_INLINE constexpr Bounds and_bounds(const Bounds& a, const Bounds& b) { return minimum_bounds(a, b); }
TILEWISE_INLINE constexpr Bounds or_bounds(const Bounds& a, const Bounds& b) { return maximum_bounds(a, b); }
TILEWISE_INLINE constexpr Bounds less_bounds(const Bounds& a, const Bounds& b) {
  return truth_bounds(!(a.high < b.low), a.low < b.high);
}
TILEWISE_INLINE constexpr Bounds less_equal_bounds(const Bounds& a, const Bounds& b) {
  return truth_bounds(!(a.high <= b.low), a.low <= b.high);
}
TILEWISE_INLINE constexpr Bounds equal_bounds(const Bounds& a, const Bounds& b) {
  const bool is_one = a.low == a.high && b.low == b.high && a.low == b.low;
  return truth_bounds(!is_one, a.low <= b.high && b.low <= a.high);
}
TILEWISE_INLINE constexpr Bounds selected_bounds(const Bounds& chooses, const Bounds& a, const Bounds& b) {
  return chooses.low == 1 ? a : chooses.high == 0 ? b : united(a, b);
}

/// Elements of a look-up that a wave goes through; of more, and of those of two dimensions, nothing is known.
inline constexpr int64_t kMostBoundedElements = 512;

/// The least or greatest of all lanes' numbers.
template <class Machine, class Combine>
TILEWISE_INLINE int64_t combined_of_wave(int64_t value, const Combine& combine) {
  TILEWISE_UNROLL
  for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
    const auto half = [&](int64_t bits) {
      return static_cast<uint32_t>(shuffle_xor<Machine>(static_cast<int32_t>(bits), bit));
    };
    const uint32_t low = half(value), high = half(value >> 32);
    value = combine(value, static_cast<int64_t>(uint64_t{high} << 32 | low));
  }
  return value;
}

/// What a look-up of ints or bools gives where each index lies between bounds; `any`: what the table's type may have.
template <class Machine, int kElement, class... Indices>
TILEWISE_INLINE Bounds look_up_bounds(const ScoreTable& table, const Bounds& any, const Indices&... indices) {
  using Traits = TableTraits<kElement>;
  bool outside = false, nowhere = false, many = false;
  int64_t offset = 0, stride = 0, count = 1;
  int dimension = 0;
  const auto add = [&](const Bounds& index) {
    const int64_t low = maximum(index.low, int64_t{0}), high = minimum(index.high, int64_t{table.sizes[dimension]} - 1);
    outside = outside | (low != index.low) | (high != index.high);
    nowhere = nowhere | (low > high);
    many = many | (high > low && count > 1);
    if (high > low) count = high - low + 1, stride = table.strides[dimension];
    offset += low * table.strides[dimension];
    ++dimension;
  };
  (add(indices), ...);
  if (nowhere) return {0, 0};
  if (many || count > kMostBoundedElements) return any;
  Bounds found{any.high, any.low};
  for (int64_t i = Machine::lane(); i < count; i += Machine::kLanes) {
    const auto* const from = static_cast<const typename Traits::Bits*>(table.data) + offset + i * stride;
    const auto value = static_cast<int64_t>(Traits::value(Machine::load_global(from)));
    found = {minimum(found.low, value), maximum(found.high, value)};
  }
  found.low = combined_of_wave<Machine>(found.low, [](int64_t a, int64_t b) { return minimum(a, b); });
  found.high = combined_of_wave<Machine>(found.high, [](int64_t a, int64_t b) { return maximum(a, b); });
  return outside ? united(found, Bounds{0, 0}) : found;
}

}  // namespace tilewise::device
