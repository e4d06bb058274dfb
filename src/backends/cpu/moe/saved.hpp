// Sums of the first product that are kept between the passes of a layer of experts: rows of gate_up_out, by expert, of
// gates and then of ups. Arguments of the activation are Reals in the order of gate_up's rows.
#pragma once

#include <cstdint>

#include "backends/cpu/moe/parts.hpp"
#include "operations/moe/params.hpp"

namespace tilewise::backends::cpu {

/// Whether a call has them, of one without memory too.
[[nodiscard]] inline bool is_saved(const operations::moe::MoeParams& p) { return p.gate_up_out.columns > 0; }

/// Stores the sums of a chunk's parts, rounded, and makes arguments of them. next[e]: the row of the expert's first
/// part here, which moves behind its last one.
void save_sums(const operations::moe::MoeParams& p, const Parts& chunk, std::int64_t* next, void* sums);

/// Rows from `first` on become 0.
void clear_saved(const operations::moe::MoeParams& p, std::int64_t first);

/// Arguments of parts [first, first + count) of all, as if they had been multiplied.
void load_arguments(const operations::moe::MoeParams& p, const Parts& all, std::int64_t first, std::int64_t count,
                    void* arguments);

/// weights[i] = the sum of a part's sums times their gradients, which are rows of `dtype` in the arguments' order.
void multiply_saved(const operations::moe::MoeParams& p, std::int64_t first, std::int64_t count, const void* gradients,
                    DType dtype, void* weights);

}  // namespace tilewise::backends::cpu
