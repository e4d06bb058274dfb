// The files of a block mask for `tilewise run`, in attention and in the KV cache step.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "array.hpp"
#include "operations/block_mask.hpp"
#include "run_files.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::tools {

/// Names of files, empty where they are not given, in the order of AttentionOptions::block_mask.
using BlockMaskFiles = std::array<std::string, operations::kBlockMaskTensors>;

/// "--block-counts"
[[nodiscard]] inline std::string block_mask_flag(std::size_t tensor) {
  return flag_of(operations::block_mask_name(tensor));
}

/// Reads what is given, which the result holds, and gives it to the options. `stated` is what a problem's text says of
/// the mask, if there is one. Throws Error for tensors that are not there together.
template <typename Options>
[[nodiscard]] std::vector<Array> take_block_mask(const BlockMaskFiles& files, const BlockMaskShape& stated,
                                                 std::string_view with, Options& options) {
  std::vector<Array> arrays;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::size_t other = i % 2 == 0 ? i + 1 : i - 1;
    if (files[i].empty() && !files[other].empty())
      core::invalid_argument(block_mask_flag(i), ": must be given with ", block_mask_flag(other), " (got none)");
    if (files[i].empty()) continue;
    if (files[operations::kBlockCounts].empty())
      core::invalid_argument(block_mask_flag(i), ": needs ", block_mask_flag(operations::kBlockCounts), " (got none)");
    options.block_mask.push_back(arrays.emplace_back(read_named(block_mask_flag(i), files[i], with)).view());
  }
  if (stated.rows != 0) options.block_rows = stated.rows, options.block_keys = stated.keys;
  return arrays;
}

}  // namespace tilewise::tools
