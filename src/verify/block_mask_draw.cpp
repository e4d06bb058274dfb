// The lists of a call's block mask, in any order, with poison behind them. One that is made of mask_mod is checked.
#include <array>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "operations/attention/block_mask.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/block_mask.hpp"
#include "verify/call_tensors.hpp"
#include "verify/draw_block_mask.hpp"

namespace tilewise::verify {
namespace {

/// Writes one row's list, and what nobody may read behind it.
void write_list(const TensorView& counts, const TensorView& indices, std::span<const std::int64_t> row,
                const std::vector<std::int32_t>& list) {
  std::int64_t at_count = 0, at_index = 0;
  for (std::size_t d = 0; d < row.size(); ++d) {
    at_count += row[d] * counts.strides[d];
    at_index += row[d] * indices.strides[d];
  }
  static_cast<std::int32_t*>(counts.data)[at_count] = static_cast<std::int32_t>(list.size());
  for (std::int64_t n = 0; n < indices.shape[3]; ++n) {
    const auto place = static_cast<std::size_t>(n);
    static_cast<std::int32_t*>(indices.data)[at_index + n * indices.strides[3]] =
        place < list.size() ? list[place] : -7'000'000;
  }
}

}  // namespace

void CallTensors::check_made_block_mask() const {
  const auto mask_mod = score_function(problem_, operations::attention::ScoreFunction::mask_mod);
  if (!mask_mod || problem_.batch_size == 0) return;
  BlockMaskArguments arguments;
  arguments.mask_mod = problem_.mask_mod;
  arguments.tables = options.tables;
  arguments.batch_size = mask_mod->speaks_of("b") ? problem_.batch_size : 0;
  arguments.num_heads = mask_mod->speaks_of("h") ? problem_.num_heads_q : 0;
  arguments.seqlen_q = problem_.seqlen_q;
  arguments.seqlen_k = problem_.seqlen_k;
  arguments.block_rows = problem_.block_mask.rows;
  arguments.block_keys = problem_.block_mask.keys;
  const BlockMask made(arguments);
  BlockMask::check(arguments, made.tensors());
}

void CallTensors::draw_block_mask() {
  if (!operations::has_block_mask(problem_)) return;
  check_made_block_mask();
  options.block_rows = problem_.block_mask.rows;
  options.block_keys = problem_.block_mask.keys;
  const auto add = [this](std::string name, std::vector<std::int64_t> shape) {
    std::vector<int> order(shape.size());
    std::iota(order.begin(), order.end(), 0);
    return add_input(std::move(name), DType::i32, std::move(shape), random_placement(order, false, rng_));
  };
  options.block_mask = drawn_block_mask(operations::attention::blocked_scores(problem_), add, rng_);
}

std::vector<TensorView> drawn_block_mask(const operations::BlockedScores& scores, const AddList& add, Random& rng) {
  std::vector<TensorView> tensors;
  if (scores.mask.rows == 0) return tensors;
  for (std::size_t i = 0; i < operations::block_mask_tensors(scores.mask); ++i) {
    const TableShape shape = block_mask_shape(scores, i);
    tensors.push_back(
        add(std::string(operations::block_mask_name(i)), {shape.shape.begin(), shape.shape.begin() + shape.rank}));
  }
  const operations::BlockGrid grid = block_grid(scores);
  const double hidden = rng.pick({0.0, 0.3, 0.3, 0.8}), full = rng.pick({0.0, 0.3, 1.0});
  for (std::int64_t list = 0; list < grid.batch * grid.heads * grid.rows; ++list) {
    const std::array<std::int64_t, 3> row{list / grid.rows / grid.heads, list / grid.rows % grid.heads,
                                          list % grid.rows};
    std::array<std::vector<std::int32_t>, 2> lists;
    for (std::int32_t column = 0; column < grid.columns; ++column) {
      if (rng.chance(hidden)) continue;
      std::vector<std::int32_t>& to = lists[scores.mask.full && rng.chance(full) ? 1 : 0];
      to.insert(to.begin() + rng.integer(0, static_cast<std::int64_t>(to.size())), column);
    }
    write_list(tensors[0], tensors[1], row, lists[0]);
    if (scores.mask.full) write_list(tensors[2], tensors[3], row, lists[1]);
  }
  return tensors;
}

}  // namespace tilewise::verify
