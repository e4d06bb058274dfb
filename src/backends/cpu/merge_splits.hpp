// Splits over keys: where each split leaves its partial result, and how they become one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "device/common/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// Partial results in the workspace, [batch, head, query, split] rows of head_dim_v outputs and
/// two statistics (reference in log2 units, sum), all Reals of the kernels.
class Splits {
 public:
  Splits(const Problem& problem, std::int64_t max_splits);

  [[nodiscard]] std::size_t workspace_size() const noexcept;

  /// Where one split of one row goes.
  [[nodiscard]] void* row(void* workspace, std::int64_t batch, std::int64_t head, std::int64_t query,
                          std::int64_t split) const;

  /// Combines the splits of every row in ascending order, adds the sink, writes out and lse.
  void merge(const device::AttentionParams& p, const ScoreParams& score, ElementIndex element, void* workspace,
             int workers) const;

 private:
  template <typename Real>
  void merge_head(const device::AttentionParams& p, const ScoreParams& score, ElementIndex element, void* workspace,
                  std::int64_t batch, std::int64_t head) const;

  std::size_t real_;  // bytes of a Real
  std::int64_t batch_size_, num_heads_, group_, seqlen_q_, head_dim_v_, max_splits_;
};

}  // namespace tilewise::backends::cpu
