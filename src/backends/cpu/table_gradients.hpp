// Gradients of captured tensors on the CPU.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/score_functions.hpp"
#include "expression/derivative.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// Of a problem: compiled once, for every call. For each look-up the scores are recomputed as for dbias, but with the
/// derivative by what it gives in place of that by the score, so that a block's results are what each key adds.
class TableGradients {
 public:
  explicit TableGradients(const Problem& problem);

  [[nodiscard]] bool wanted() const { return problem_.dtables != 0; }
  /// Writes them. `score` but for its functions. Heads are added up in groups of their own, which are then added in
  /// order: results do not depend on the number of threads.
  void write(const device::AttentionParams& p, const ScoreParams& score, const KernelSet& kernels, ElementIndex element,
             std::size_t kernel_scratch, int workers) const;

 private:
  Problem problem_;
  std::vector<expression::LookUpDerivative> look_ups_;
  std::vector<std::unique_ptr<const CompiledFunctions>> functions_;  // of each
};

}  // namespace tilewise::backends::cpu
