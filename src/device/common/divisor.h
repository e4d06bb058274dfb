// Division by a number that the host knows: dividing by a variable takes a GPU 30 instructions, each waiting for the
// one before, and a block that decodes a token divided 15 times before it asked for its first key.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// n / d = n * multiplier >> shift for n and d in [0, 2^31), d at least 1: with shift = 31 + ceil(log2 d) and the
/// multiplier 2^shift / d, rounded up, the error of the product is below one part in d.
struct Divisor {
  uint32_t multiplier, shift;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("multiplier", p.multiplier), visit("shift", p.shift);
  }
};

/// By 1 where d is less, as a grid without blocks has it.
constexpr Divisor divisor_of(int32_t d) {
  const uint64_t number = d < 1 ? 1 : static_cast<uint64_t>(d);
  uint32_t log = 0;
  while (uint64_t{1} << log < number) ++log;
  const uint64_t power = uint64_t{1} << (31 + log);
  return {static_cast<uint32_t>((power + number - 1) / number), 31 + log};
}

/// n / d, n at least 0.
constexpr int32_t divide(int32_t n, const Divisor& d) {
  return static_cast<int32_t>(static_cast<uint64_t>(static_cast<uint32_t>(n)) * d.multiplier >> d.shift);
}

}  // namespace tilewise::device
