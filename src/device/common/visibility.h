// What functions of scores leave of a block of keys, as far as the host knows.
#pragma once

#include <stdint.h>

namespace tilewise::device {

enum class Visibility : uint8_t {
  some,  ///< nothing is known
  none,  ///< every key is hidden
  all    ///< mask_mod hides none
};

}  // namespace tilewise::device
