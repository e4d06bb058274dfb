// score_mod and mask_mod of a problem as the kernels of this backend get them.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "backends/cpu/compiled_program.hpp"
#include "backends/cpu/kernels.hpp"
#include "backends/cpu/rows.hpp"
#include "operations/attention/score_blocks.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// What a call knows of its captured tensors, for as long as it runs.
struct CapturedTables {
  std::array<CapturedTable, operations::attention::kMostTables> tables;
  std::optional<operations::attention::ScoreBlocks> blocks;
};

/// What b, h, q_idx and kv_idx may be.
struct ScoreSizes {
  std::int64_t batch_size, num_heads_q, seqlen_q, seqlen_k;
  bool positions = false;  ///< q_idx is the key that a query stands at, which may be before the first; rows say it
};

/// Of a problem: compiled once, for every call.
class CompiledFunctions {
 public:
  explicit CompiledFunctions(const Problem& problem);
  /// With another slope than score_mod's derivative.
  CompiledFunctions(const Problem& problem, const expression::Expression& slope);
  /// Of kernels that compute in numbers of `real_bytes`. `slope` may be null.
  CompiledFunctions(const operations::ScoreFunctionTexts& texts, const ScoreSizes& sizes, std::size_t real_bytes,
                    const expression::Expression* slope);

  /// What a call's rows are given, all but the thread's memory; `captured` outlives it.
  [[nodiscard]] ScoreFunctions bind(const TensorView* tables, CapturedTables& captured) const;

 private:
  CompiledFunctions(const Problem& problem, const std::optional<expression::Expression>& slope);

  ScoreSizes sizes_;
  std::vector<DType> table_dtypes_;
  std::optional<expression::Expression> score_mod_, mask_mod_;
  std::unique_ptr<const CompiledProgram> score_program_, mask_program_;
};

/// What a problem says of its scores: made once, for every call.
class ProblemScores {
 public:
  explicit ProblemScores(const Problem& problem);

  /// What a call's rows are given, all but the thread's memory; `captured` outlives it.
  [[nodiscard]] ScoreParams bind(const device::AttentionParams& p, CapturedTables& captured) const;
  [[nodiscard]] double softmax_scale() const { return factors_.softmax_scale; }

 private:
  device::ScoreFactors factors_;
  CompiledFunctions functions_;
};

/// What functions leave of rows' ranges of keys, for a few rows beside each other: keys at either end that are hidden
/// from all of them go, and keys that mask_mod shows to all are said. The rows are `block`'s queries, those of a head
/// beside each other and `head_stride` from the next head's; nothing is said of keys outside the block.
void narrow_rows(const operations::attention::ScoreBlocks& functions, const operations::attention::ScoreBlock& block,
                 RowInfo* rows, std::int64_t head_stride);

/// Memory of the calling thread for functions, or null where there are none.
[[nodiscard]] void* function_memory(const ScoreFunctions& functions);

}  // namespace tilewise::backends::cpu
