// A tensor map as it travels in a kernel's parameters. The driver writes it, from dimensions, strides and a box.
#pragma once

#include <stdint.h>

namespace tilewise::device {

struct alignas(64) TensorMap {
  uint64_t opaque[16];

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("opaque", p.opaque);
  }
};

/// Loads of rows by expert take boxes of 64, 32, 16 and 8 of them: the fewer, the less the copy engine has to do.
inline constexpr int32_t kRowBoxes = 4, kMostBoxRows = 64;

}  // namespace tilewise::device
