// The forward pass over selected keys: a tile is the query heads of one query that share a key head, since each query
// has keys of its own.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "core/implementation.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

[[nodiscard]] std::unique_ptr<core::Kernel> make_selected_forward_kernel(const Problem& problem,
                                                                         const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
