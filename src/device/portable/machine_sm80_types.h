// Register types of NVIDIA's matrix instructions, shared by the machine and its emulation.
#pragma once

#include "device/portable/platform.h"

namespace tilewise::device {

/// mma.sync's accumulator of 16 rows x 8 columns.
struct Sm80Accumulator {
  float value[4];
  TILEWISE_INLINE float& operator[](int i) { return value[i]; }
  TILEWISE_INLINE const float& operator[](int i) const { return value[i]; }
};

}  // namespace tilewise::device
