// Between what an expression lies where its variables lie between bounds: by what a whole block of a mask is seen to be
// empty or full.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "expression/expression.hpp"

namespace tilewise::expression {

/// Of a bool: 0 and 1 in `low` and `high`; of an int: likewise; of a float: `real_low` and `real_high`, and whether it
/// may be a NaN.
struct Interval {
  std::int64_t low = 0, high = 0;
  double real_low = 0, real_high = 0;
  bool may_be_nan = false;

  [[nodiscard]] static constexpr Interval of_integers(std::int64_t low, std::int64_t high) {
    return {.low = low, .high = high};
  }
  [[nodiscard]] static Interval of_reals(double low, double high, bool may_be_nan = false) {
    return {.real_low = low, .real_high = high, .may_be_nan = may_be_nan};
  }
  [[nodiscard]] bool always() const { return low == 1; }  ///< of a bool
  [[nodiscard]] bool never() const { return high == 0; }
};

/// An int of as many bits, with its sign.
[[nodiscard]] constexpr Interval any_integer_of(int bits) {
  const auto low = static_cast<std::int64_t>(~std::uint64_t{0} << (bits - 1));
  return Interval::of_integers(low, -(low + 1));
}

[[nodiscard]] constexpr bool fits_32_bits(const Interval& integers) {
  constexpr Interval kNarrow = any_integer_of(32);
  return integers.low >= kNarrow.low && integers.high <= kNarrow.high;
}

/// Bounds of what lies between either's.
[[nodiscard]] Interval united(const Interval& a, const Interval& b);
/// Bounds of whatever a type has.
[[nodiscard]] Interval any_of(Type type);
/// Bounds of whatever a table of a dtype has.
[[nodiscard]] Interval any_element_of(DType dtype);

/// What a look-up in a table gives where its indices lie between bounds.
using LookUpBounds = std::function<Interval(std::uint32_t table, std::span<const Interval> indices)>;

/// Bounds of the result, which hold whether floats are computed in fp32 or fp64. `inputs` has the signature's variables
/// in their order; low is no greater than high. Without `look_up` they hold for any tables.
[[nodiscard]] Interval bounds(const Expression& expression, std::span<const Interval> inputs,
                              const LookUpBounds& look_up = {});
/// Likewise of every node.
[[nodiscard]] std::vector<Interval> bounds_of_nodes(const Expression& expression, std::span<const Interval> inputs,
                                                    const LookUpBounds& look_up = {});

}  // namespace tilewise::expression
