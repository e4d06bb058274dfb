// What a block mask lists in sample calls: every block, of which mask_mod is asked.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "operations/block_mask.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::tools {

/// Of contiguous tensors.
inline void list_every_block(std::span<const TensorView> block_mask) {
  for (std::size_t i = 0; i < block_mask.size(); ++i) {
    const std::int64_t columns = block_mask[operations::kBlockIndices].shape[3];
    auto* const numbers = static_cast<std::int32_t*>(block_mask[i].data);
    for (std::int64_t n = 0; n < block_mask[i].numel(); ++n)
      numbers[n] = static_cast<std::int32_t>(i % 2 == 1 ? n % columns : i == operations::kBlockCounts ? columns : 0);
  }
}

}  // namespace tilewise::tools
