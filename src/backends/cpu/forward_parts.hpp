// What kernels of the forward pass take of a problem, and run tiles with.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/rows.hpp"
#include "backends/cpu/score_functions.hpp"
#include "backends/cpu/tile_maker.hpp"

namespace tilewise::backends::cpu {

struct ForwardParts {
  ElementIndex element;
  ProblemScores scores;
  std::int64_t block_keys;  // that a kernel reads together
  std::int64_t most_rows;   // of a tile
  double flops;

  ForwardParts(const Problem& problem, const KernelSet& kernels)
      : element(element_of(problem.dtype)),
        scores(problem),
        block_keys(kernels.forward_keys),
        most_rows(std::min<std::int64_t>(kernels.max_rows, kRowCapacity)),
        flops(forward_flops(problem)),
        run_(kernels.forward[element]),
        scratch_(kernels.forward_scratch[element](static_cast<std::int32_t>(problem.head_dim),
                                                  static_cast<std::int32_t>(problem.head_dim_v))) {}

  void run(const ForwardTile& tile) const { run_(tile, thread_scratch(scratch_)); }

 private:
  ForwardFn run_;
  std::size_t scratch_;
};

}  // namespace tilewise::backends::cpu
