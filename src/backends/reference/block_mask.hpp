// What a given block mask says of one score, read from its lists: for the reference, of one query head.
#pragma once

#include <cstdint>
#include <vector>

#include "backends/reference/score_functions.hpp"
#include "core/tensor_checks.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::reference {

enum class BlockSight : std::uint8_t { hidden, asked, seen };

class BlockMaskOfHead {
 public:
  /// `lists`: the options' block_mask.
  BlockMaskOfHead(const BlockMaskShape& mask, const TensorView* lists, std::int64_t b, std::int64_t h)
      : mask_(mask), lists_(lists), b_(mask.batch ? b : 0), h_(mask.head ? h : 0) {}

  /// Of query i and key j. Without a mask every score is asked of; a query before the first place is in no block.
  [[nodiscard]] BlockSight of(std::int64_t i, std::int64_t j) {
    if (mask_.rows == 0) return BlockSight::asked;
    if (i < 0) return BlockSight::hidden;
    if (i / mask_.rows != row_) read_row(i / mask_.rows);
    return blocks_[static_cast<std::size_t>(j / mask_.keys)];
  }

 private:
  void read_row(std::int64_t row) {
    row_ = row;
    blocks_.assign(static_cast<std::size_t>(core::size_at(lists_[1], 3)), BlockSight::hidden);
    list(lists_[0], lists_[1], BlockSight::asked);
    if (mask_.full) list(lists_[2], lists_[3], BlockSight::seen);
  }

  void list(const TensorView& counts, const TensorView& indices, BlockSight sight) {
    const auto at = [&](const TensorView& view, std::int64_t n) {
      std::int64_t offset = b_ * view.strides[0] + h_ * view.strides[1] + row_ * view.strides[2];
      if (view.rank == 4) offset += n * view.strides[3];
      return static_cast<const std::int32_t*>(view.data)[offset];
    };
    const auto columns = static_cast<std::int64_t>(blocks_.size());
    for (std::int64_t n = 0; n < at(counts, 0) && n < columns; ++n) {
      const std::int32_t column = at(indices, n);
      if (column >= 0 && column < columns) blocks_[static_cast<std::size_t>(column)] = sight;
    }
  }

  BlockMaskShape mask_;
  const TensorView* lists_;
  std::int64_t b_, h_, row_ = -1;
  std::vector<BlockSight> blocks_;  // of a row
};

/// Whether a head sees a score: by its block mask, and by mask_mod where that leaves it to it.
[[nodiscard]] inline bool sees(BlockMaskOfHead& blocks, FunctionsOfHead& functions, std::int64_t i, std::int64_t j) {
  const BlockSight sight = blocks.of(i, j);
  return sight == BlockSight::seen || (sight == BlockSight::asked && functions.visible(i, j));
}

}  // namespace tilewise::backends::reference
