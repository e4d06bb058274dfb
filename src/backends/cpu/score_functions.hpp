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
#include "operations/attention/score_blocks.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// What a call knows of its captured tensors, for as long as it runs.
struct CapturedTables {
  std::array<CapturedTable, operations::attention::kMostTables> tables;
  std::optional<operations::attention::ScoreBlocks> blocks;
};

/// Of a problem: compiled once, for every call.
class CompiledFunctions {
 public:
  explicit CompiledFunctions(const Problem& problem);

  /// What a call's rows are given, all but the thread's memory; `captured` outlives it.
  [[nodiscard]] ScoreFunctions bind(const device::AttentionParams& p, CapturedTables& captured) const;

 private:
  Problem problem_;
  std::vector<DType> table_dtypes_;
  std::optional<expression::Expression> score_mod_, mask_mod_;
  std::unique_ptr<const CompiledProgram> score_program_, mask_program_;
};

/// Memory of the calling thread for functions, or null where there are none.
[[nodiscard]] void* function_memory(const ScoreFunctions& functions);

}  // namespace tilewise::backends::cpu
