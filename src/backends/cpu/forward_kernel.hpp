// The forward pass on the CPU: which rows make a tile, which tiles there are, and the merge of
// splits over keys. The arithmetic is isa/'s.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "core/implementation.hpp"

namespace tilewise::backends::cpu {

/// Tile shape, a pure function of the problem.
struct ForwardSchedule {
  bool decode = false;  // few rows a key head: stream keys instead of packing them
  std::int64_t heads_per_tile = 1;
  std::int64_t queries_per_tile = 1;
  std::int64_t keys_per_split = 0;  // 0: not split
  std::int64_t max_splits = 1;
  bool merges = false;  // through partial results, even of a single split
};

[[nodiscard]] ForwardSchedule schedule_forward(const Problem& problem, const KernelSet& kernels);
[[nodiscard]] std::unique_ptr<const core::Kernel> make_forward_kernel(const Problem& problem, const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
