// What tests know of emulated machines.
#pragma once

#include <string_view>

namespace tilewise {

/// Of emulations that are RDNA's but for matrix instructions: tests/emulation/rdna4_test.cpp has what is their own.
[[nodiscard]] inline bool differs_in_products_alone(std::string_view row) {
  return row == "emulation.rdna4" || row == "emulation.gfx1250";
}

}  // namespace tilewise
