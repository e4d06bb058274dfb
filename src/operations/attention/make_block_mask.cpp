// Block masks made of a mask_mod; see tilewise/block_mask.hpp.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/num_threads.hpp"
#include "core/parallel.hpp"
#include "core/tensor_checks.hpp"
#include "expression/evaluate.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/score_blocks.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/block_mask.hpp"

namespace tilewise::operations::attention {
namespace {

using core::ceil_div, core::invalid_argument;

/// The problem of a call that takes such a mask.
AttentionProblem problem_of(const BlockMaskArguments& a) {
  AttentionProblem p;
  p.batch_size = std::max<std::int64_t>(a.batch_size, 1);
  p.num_heads_q = std::max<std::int64_t>(a.num_heads, 1);
  p.seqlen_q = a.seqlen_q;
  p.seqlen_k = a.seqlen_k;
  p.mask_mod = a.mask_mod;
  p.block_mask = {a.block_rows, a.block_keys, p.batch_size != 1, p.num_heads_q != 1, true};
  for (std::size_t i = 0; i < a.tables.size(); ++i) {
    core::check_view(a.tables[i], table_name(i), Device{}, "the block mask");
    p.tables.push_back(table_shape_of(a.tables[i], table_name(i)));
  }
  return p;
}

AttentionProblem checked_problem(const BlockMaskArguments& a) {
  const auto check = [](std::string_view name, std::int64_t size) {
    constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
    if (size < 0 || size > kMost) invalid_argument(name, ": must be 0 to ", kMost, " (got ", size, ")");
  };
  check("batch_size", a.batch_size);
  check("num_heads", a.num_heads);
  check("seqlen_q", a.seqlen_q);
  check("seqlen_k", a.seqlen_k);
  if (a.mask_mod.empty()) invalid_argument("mask_mod: must be given (got none)");
  const AttentionProblem p = problem_of(a);
  validate_score_functions(p);
  validate_block_mask(blocked_scores(p), p.tables.size());
  const auto mask_mod = score_function(p, ScoreFunction::mask_mod);
  if (a.batch_size == 0 && mask_mod->speaks_of("b"))
    invalid_argument("batch_size: must be given where mask_mod speaks of b (got 0)");
  if (a.num_heads == 0 && mask_mod->speaks_of("h"))
    invalid_argument("num_heads: must be given where mask_mod speaks of h (got 0)");
  return p;
}

/// Finds states of one head's blocks.
class BlocksOfHead {
 public:
  BlocksOfHead(const AttentionProblem& p, const expression::Expression& mask_mod, std::span<const TensorView> tables,
               const ScoreBlocks* bounds, std::int64_t b, std::int64_t h)
      : p_(p), grid_(block_grid(blocked_scores(p))), bounds_(bounds), mask_(mask_mod, tables), b_(b), h_(h) {}

  /// Into one state a block, row after row. Boxes of blocks that bounds do not decide are halved along the longer side.
  void find(std::uint8_t* states) { find_in({0, grid_.rows, 0, grid_.columns}, states); }

  /// Of one block, by asking for each score.
  [[nodiscard]] BlockState evaluated(std::int64_t row, std::int64_t column) {
    const std::int64_t first_key = column * p_.block_mask.keys,
                       keys = std::min(p_.block_mask.keys, p_.seqlen_k - first_key);
    keys_.resize(static_cast<std::size_t>(keys));
    seen_.resize(keys_.size());
    std::iota(keys_.begin(), keys_.end(), first_key);
    bool any = false, all = true;
    const std::int64_t first = row * p_.block_mask.rows, end = std::min(first + p_.block_mask.rows, p_.seqlen_q);
    for (std::int64_t query = first; query < end && !(any && !all); ++query) {
      using Input = expression::Input<double>;
      const auto same = [](const std::int64_t& value) { return Input{.integers = &value, .uniform = true}; };
      const std::array<Input, 4> inputs{same(b_), same(h_), same(query), Input{.integers = keys_.data()}};
      mask_(inputs, keys, seen_.data());
      const auto count = std::accumulate(seen_.begin(), seen_.end(), std::int64_t{0});
      any = any || count > 0;
      all = all && count == keys;
    }
    return all ? kBlockFull : any ? kBlockPartial : kBlockHidden;
  }

 private:
  struct Box {
    std::int64_t row, row_end, column, column_end;
  };

  void find_in(const Box& box, std::uint8_t* states) {
    if (box.row == box.row_end || box.column == box.column_end) return;
    const ScoreBlock scores{b_,
                            h_,
                            h_ + 1,
                            box.row * p_.block_mask.rows,
                            std::min(box.row_end * p_.block_mask.rows, p_.seqlen_q),
                            box.column * p_.block_mask.keys,
                            std::min(box.column_end * p_.block_mask.keys, p_.seqlen_k)};
    const Visibility visibility = bounds_->of(scores);
    const std::int64_t rows = box.row_end - box.row, columns = box.column_end - box.column;
    if (visibility != Visibility::some) {
      for (std::int64_t row = box.row; row < box.row_end; ++row)
        std::fill_n(states + row * grid_.columns + box.column, columns,
                    visibility == Visibility::all ? kBlockFull : kBlockHidden);
    } else if (rows == 1 && columns == 1) {
      states[box.row * grid_.columns + box.column] = evaluated(box.row, box.column);
    } else {
      Box one = box, other = box;
      if (rows > columns)
        one.row_end = other.row = box.row + rows / 2;
      else
        one.column_end = other.column = box.column + columns / 2;
      find_in(one, states);
      find_in(other, states);
    }
  }

  const AttentionProblem& p_;
  BlockGrid grid_;
  const ScoreBlocks* bounds_;
  expression::Evaluator<double> mask_;
  std::int64_t b_, h_;
  std::vector<std::int64_t> keys_;
  std::vector<std::uint8_t> seen_;
};

constexpr std::int64_t kMostTableElements = std::int64_t{1} << 26;

std::vector<std::uint8_t> found_states(const BlockMaskArguments& a, const AttentionProblem& p) {
  const BlockGrid grid = block_grid(blocked_scores(p));
  const auto mask_mod = score_function(p, ScoreFunction::mask_mod);
  const ScoreBlocks bounds(nullptr, &*mask_mod, a.tables, kMostTableElements);
  std::vector<std::uint8_t> states(static_cast<std::size_t>(grid.blocks()));
  core::parallel_for(grid.batch * grid.heads, core::num_threads(), [&](std::int64_t head, int) {
    BlocksOfHead(p, *mask_mod, a.tables, &bounds, head / grid.heads, head % grid.heads)
        .find(states.data() + head * grid.rows * grid.columns);
  });
  return states;
}

}  // namespace
}  // namespace tilewise::operations::attention

namespace tilewise {

using namespace operations;
using namespace operations::attention;

BlockMask::BlockMask(const BlockMaskArguments& arguments) {
  const AttentionProblem p = checked_problem(arguments);
  const BlockGrid grid = block_grid(blocked_scores(p));
  const std::vector<std::uint8_t> states = found_states(arguments, p);
  shape_ = {grid.batch, grid.heads, grid.rows, grid.columns};
  const auto lists = static_cast<std::size_t>(grid.batch * grid.heads * grid.rows);
  for (std::size_t i = 0; i < lists_.size(); ++i) lists_[i].resize(i % 2 == 0 ? lists : states.size());
  for (std::size_t i = 0; i < states.size(); ++i) {
    if (states[i] == kBlockHidden) continue;
    const auto columns = static_cast<std::size_t>(grid.columns), of = std::size_t{states[i] == kBlockFull ? 2U : 0U};
    const std::size_t list = i / columns;
    const auto n = static_cast<std::size_t>(lists_[of][list]++);
    lists_[of + 1][list * columns + n] = static_cast<std::int32_t>(i % columns);
  }
}

std::vector<TensorView> BlockMask::tensors() const {
  std::vector<TensorView> views;
  for (std::size_t i = 0; i < lists_.size(); ++i) {
    void* const data = const_cast<std::int32_t*>(lists_[i].data());
    const auto [batch, heads, rows, columns] = shape_;
    views.push_back(i % 2 == 0 ? TensorView(data, DType::i32, {batch, heads, rows})
                               : TensorView(data, DType::i32, {batch, heads, rows, columns}));
  }
  return views;
}

void BlockMask::check(const BlockMaskArguments& arguments, const std::vector<TensorView>& tensors) {
  AttentionProblem p = checked_problem(arguments);
  p.block_mask = described_block_mask(tensors, arguments.block_rows, arguments.block_keys, blocked_scores(p), Device{});
  const BlockedScores scores = blocked_scores(p);
  check_block_lists(tensors.data(), scores);
  const BlockGrid grid = block_grid(scores);
  std::vector<std::uint8_t> states(static_cast<std::size_t>(grid.blocks()));
  write_block_states(tensors.data(), scores, states.data());
  const auto mask_mod = score_function(p, ScoreFunction::mask_mod);
  core::parallel_for(p.batch_size * p.num_heads_q, core::num_threads(), [&](std::int64_t head, int) {
    const std::int64_t b = head / p.num_heads_q, h = head % p.num_heads_q;
    BlocksOfHead blocks(p, *mask_mod, arguments.tables, nullptr, b, h);
    const std::int64_t first = ((p.block_mask.batch ? b : 0) * grid.heads + (p.block_mask.head ? h : 0)) * grid.rows;
    for (std::int64_t row = 0; row < grid.rows; ++row) {
      for (std::int64_t column = 0; column < grid.columns; ++column) {
        const auto state = states[static_cast<std::size_t>((first + row) * grid.columns + column)];
        const BlockState found = state == kBlockPartial ? kBlockPartial : blocks.evaluated(row, column);
        if (found == state) continue;
        invalid_argument(
            state == kBlockFull ? "full_block_indices" : "block_indices", ": block [", row, ", ", column,
            "] of sequence ", b, " and head ", h, " must ",
            state == kBlockFull ? "not be full, mask_mod hides some of it" : "be listed, mask_mod shows some of it");
      }
    }
  });
}

}  // namespace tilewise
