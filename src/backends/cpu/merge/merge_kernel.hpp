// Both passes of merge on the CPU.
#pragma once

#include <memory>

#include "core/implementation.hpp"
#include "tilewise/merge.hpp"

namespace tilewise::backends::cpu {

[[nodiscard]] std::unique_ptr<core::Kernel> make_merge_kernel(const MergeProblem& problem);

/// Tasks that the kernel cuts the rows into, whatever the number of threads.
[[nodiscard]] std::int64_t merge_tasks(const MergeProblem& problem);

}  // namespace tilewise::backends::cpu
