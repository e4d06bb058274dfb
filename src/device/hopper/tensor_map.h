// A tensor map as it travels in a kernel's parameters. The driver writes it, from dimensions, strides and a box.
#pragma once

#include <stdint.h>

namespace tilewise::device {

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

}  // namespace tilewise::device
