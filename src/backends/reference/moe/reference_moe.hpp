// Whole expert layers in double precision (long double where out is f64): the oracle. Nothing is rounded but results.
#pragma once

#include "operations/moe/params.hpp"

namespace tilewise::backends::reference {

void moe_forward(const operations::moe::MoeParams& p);

/// Writes those of dx, dtopk_weights and the gradients of weights and biases that are given.
void moe_backward(const operations::moe::MoeParams& p);

}  // namespace tilewise::backends::reference
