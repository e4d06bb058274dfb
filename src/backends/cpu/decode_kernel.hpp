// The forward pass of few queries (decode): splits over keys, key heads visited together so that
// memory is read in order.
#pragma once

#include <memory>

#include "backends/cpu/kernels.hpp"
#include "operations/attention/attention.hpp"

namespace tilewise::backends::cpu {

/// True where a key head has so few rows that packing its keys would cost more than the products.
[[nodiscard]] bool suits_decode(const Problem& problem, const KernelSet& kernels);
[[nodiscard]] std::unique_ptr<core::Kernel> make_decode_kernel(const Problem& problem, const KernelSet& kernels);

}  // namespace tilewise::backends::cpu
