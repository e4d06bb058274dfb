// Block masks of a mask_mod: which blocks of its scores are hidden, visible whole, or to be asked of. No mask of scores
// is stored.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "tilewise/export.h"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise {

/// What a block mask is made of.
struct BlockMaskArguments {
  std::string mask_mod;            ///< as AttentionOptions has it
  std::vector<TensorView> tables;  ///< what it looks up, in memory of the host
  std::int64_t batch_size = 0;     ///< 0: one for all sequences, which mask_mod must then not speak of
  std::int64_t num_heads = 0;      ///< likewise of query heads
  std::int64_t seqlen_q = 0, seqlen_k = 0;
  std::int64_t block_rows = 128, block_keys = 128;  ///< multiples of 16
};

/// A value with its own memory, of the host.
class TILEWISE_EXPORT BlockMask {
 public:
  /// By bounds of mask_mod over blocks, and score by score where these do not decide. A block is full where each of its
  /// scores within seqlen_q and seqlen_k is visible. Throws Error naming the first bad argument.
  explicit BlockMask(const BlockMaskArguments& arguments);

  /// What AttentionOptions::block_mask takes, for as long as this lives: block_counts, block_indices (ascending, then
  /// 0), full_block_counts and full_block_indices.
  [[nodiscard]] std::vector<TensorView> tensors() const;

  /// Throws Error where a block that is hidden or full is not so by mask_mod, which is asked for each score. Of
  /// `tensors` in memory of the host, as AttentionOptions::block_mask has them.
  static void check(const BlockMaskArguments& arguments, const std::vector<TensorView>& tensors);

 private:
  std::array<std::int64_t, 4> shape_{};
  std::array<std::vector<std::int32_t>, 4> lists_;
};

}  // namespace tilewise
