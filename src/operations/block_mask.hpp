// A block mask that calls give: its tensors, checks of what they list, and what it is to kernels that know functions
// alone: a table of the blocks' states that mask_mod looks up. Of every operation that has scores.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"
#include "operations/score_functions.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::operations {

/// Of AttentionOptions::block_mask.
enum BlockMaskTensor : std::size_t { kBlockCounts, kBlockIndices, kFullBlockCounts, kFullBlockIndices };
inline constexpr std::size_t kBlockMaskTensors = 4;

/// Names of the tensors; "block_mask" of one that is too many.
[[nodiscard]] constexpr std::string_view block_mask_name(std::size_t index) {
  constexpr std::array<std::string_view, kBlockMaskTensors> kNames{"block_counts", "block_indices", "full_block_counts",
                                                                   "full_block_indices"};
  return index < kNames.size() ? kNames[index] : "block_mask";
}

template <typename Problem>
[[nodiscard]] constexpr bool has_block_mask(const Problem& p) {
  return p.block_mask.rows != 0;
}
/// Tensors that a problem's calls give.
[[nodiscard]] constexpr std::size_t block_mask_tensors(const BlockMaskShape& mask) {
  return mask.rows == 0 ? 0 : mask.full ? 4 : 2;
}

/// A block mask, and the scores that it is of.
struct BlockedScores {
  BlockMaskShape mask;
  std::int64_t batch_size, num_heads_q, queries, keys;  // the last two: places of a sequence
  std::string_view queries_name, keys_name;             // in messages
};

/// Sequences and heads that have blocks of their own, or 1 each; rows and columns of blocks.
struct BlockGrid {
  std::int64_t batch, heads, rows, columns;
  [[nodiscard]] std::int64_t blocks() const { return batch * heads * rows * columns; }
};
[[nodiscard]] TILEWISE_INTERNAL BlockGrid block_grid(const BlockedScores& scores);
/// Of a mask with scores, one of its tensors.
[[nodiscard]] TILEWISE_INTERNAL TableShape block_mask_shape(const BlockedScores& scores, std::size_t tensor);

/// What a call's tensors say, of blocks of so many rows and keys. `known` are the scores without a mask. Throws Error
/// for tensors that are no block mask.
[[nodiscard]] TILEWISE_INTERNAL BlockMaskShape described_block_mask(std::span<const TensorView> tensors,
                                                                    std::int64_t rows, std::int64_t keys,
                                                                    const BlockedScores& known, Device device);

/// Throws Error where its sizes are no good, or beside so many tables.
void validate_block_mask(const BlockedScores& scores, std::size_t tables);

/// A mask that nobody shares is not said to differ.
template <typename Problem>
void normalise_block_mask(Problem& p) {
  if (p.block_mask.rows == 0) p.block_mask = {};
  p.block_mask.batch &= p.batch_size != 1;
  p.block_mask.head &= p.num_heads_q != 1;
}

/// What lists in memory of the host hold. Throws Error for a count or an index that is out of range.
void check_block_lists(const TensorView* block_mask, const BlockedScores& scores);
/// The same of lists on a GPU, which are copied: it waits for `stream`.
void check_device_block_lists(std::span<const TensorView> block_mask, const BlockedScores& scores, void* stream);

/// What a table of blocks holds of each.
enum BlockState : std::uint8_t { kBlockHidden = 0, kBlockPartial = 1, kBlockFull = 2 };

/// Writes the states of the blocks in one row of one sequence and head, from lists in memory of the host. What is out
/// of range is listed nowhere; a block that is listed as both is full.
void write_block_row(const TensorView* block_mask, const BlockedScores& scores, std::int64_t b, std::int64_t h,
                     std::int64_t row, std::uint8_t* states);
/// Of all rows, as BlockGrid orders them.
void write_block_states(const TensorView* block_mask, const BlockedScores& scores, std::uint8_t* states);

/// Adds what the block mask does to a problem's texts and tables: a last table that has the states, and a mask_mod that
/// looks them up. Who looks at mask_mod needs to know no block mask then.
void add_block_table(const BlockedScores& scores, std::string& score_mod, std::string& mask_mod,
                     std::vector<TableShape>& tables);
template <typename Problem>
[[nodiscard]] Problem with_block_table(const Problem& problem, const BlockedScores& scores) {
  Problem with = problem;
  if (has_block_mask(problem)) add_block_table(scores, with.score_mod, with.mask_mod, with.tables);
  return with;
}
/// That table, contiguous.
[[nodiscard]] TensorView block_table(const BlockedScores& scores, std::uint8_t* states);
/// Calls attend(call) with the call whose `count` tables have that one behind them.
template <typename Params, typename Attend>
void attend_with_block_table(const Params& call, std::size_t count, const TensorView& block_table,
                             const Attend& attend) {
  std::array<TensorView, kMostTables> tables;
  std::copy_n(call.tables, count, tables.begin());
  tables[count] = block_table;
  Params with_table = call;
  with_table.tables = tables.data();
  attend(with_table);
}

}  // namespace tilewise::operations
