// Which blocks of a call's scores score_mod and mask_mod hide or leave alone as a whole, by bounds: no mask is stored.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "device/common/mask.h"
#include "device/common/visibility.h"
#include "expression/bounds.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::operations::attention {

using device::Visibility;

/// Half-open ranges of places, none of them empty.
struct ScoreBlock {
  std::int64_t b, h_begin, h_end, q_begin, q_end, k_begin, k_end;
};

/// The least and the greatest of what look-ups in a tensor give, found quickly for any box of indices.
class TableBounds {
 public:
  /// `view` in memory of the host. Of more than `most` elements nothing is said.
  TableBounds(const TensorView& view, std::int64_t most);

  [[nodiscard]] expression::Interval of(std::span<const expression::Interval> indices) const;

 private:
  static constexpr std::int64_t kRun = 64;  // adjacent elements of the last dimension that are known together

  [[nodiscard]] expression::Interval element(std::int64_t offset) const;
  void add_row(std::int64_t begin, std::int64_t end, std::int64_t offset, std::int64_t row,
               std::optional<expression::Interval>& sum) const;

  TensorView view_;
  std::int64_t runs_a_row_ = 0;
  std::vector<expression::Interval> runs_;  // empty: nothing is said
};

/// Keys of a block: those at either end that are hidden from all of it left out, and the longest run that mask_mod
/// shows as a whole. Either may be empty.
struct VisibleKeys {
  device::KeyRange some, all;
};

/// Of a call: what its functions leave of blocks.
class ScoreBlocks {
 public:
  /// Functions may be null, and outlive it. `tables` in memory of the host, as many as they know; larger ones than
  /// `most_elements` are not read.
  ScoreBlocks(const expression::Expression* score_mod, const expression::Expression* mask_mod,
              std::span<const TensorView> tables, std::int64_t most_elements);

  [[nodiscard]] Visibility of(const ScoreBlock& block) const;

  /// Of each `step` keys of a block, the last of them perhaps fewer: ceil((k_end - k_begin) / step) results.
  void of_each(const ScoreBlock& block, std::int64_t step, Visibility* results) const;

  /// By steps of 32 keys, and of more where that would be too many.
  [[nodiscard]] VisibleKeys seen(const ScoreBlock& block) const;

 private:
  const expression::Expression *score_mod_, *mask_mod_;
  std::vector<std::optional<TableBounds>> tables_;  // of those that mask_mod looks up
};

}  // namespace tilewise::operations::attention
