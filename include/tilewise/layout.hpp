// The order of a tensor's dimensions, as several operations know it.
#pragma once

#include "tilewise/cxx20.hpp"

#include <cstdint>

namespace tilewise {

/// Batch, sequence, head, dim; thd is packed: [total, head, dim].
enum class Layout : std::uint8_t { bshd, sbhd, bhsd, thd };

}  // namespace tilewise
