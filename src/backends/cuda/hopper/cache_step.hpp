// What the kernels of the KV cache step share: the portable launch that joins parts of the keys.
#pragma once

#include <cstdint>

#include "gpu/lowering.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

/// `attention` is the step's, as portable::attention_of() has it.
void add_cache_combine(const Problem& attention, std::int64_t splits, gpu::LoweringBuilder& builder);

}  // namespace tilewise::backends::hopper
