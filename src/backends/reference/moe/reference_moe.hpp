// Whole expert layers in double precision (long double where out is f64): the oracle. Nothing is rounded but results.
#pragma once

#include <cstdint>
#include <vector>

#include "core/visibility.hpp"
#include "operations/moe/params.hpp"

namespace tilewise::backends::reference {

/// Where pairs t * top_k + j stand in gate_up_out: by expert, then in their order; of somebody else's -1.
[[nodiscard]] TILEWISE_INTERNAL std::vector<std::int64_t> saved_rows(const operations::moe::MoeParams& p);

void moe_forward(const operations::moe::MoeParams& p);

/// Writes those of dx, dtopk_weights and the gradients of weights and biases that are given.
void moe_backward(const operations::moe::MoeParams& p);

}  // namespace tilewise::backends::reference
