// How long a call takes on a CPU: a model of the kernels over a table of what processors do in a cycle. It times
// nothing: equal problems, processors and thread counts give equal estimates.
#pragma once

#include <array>

#include "backends/cpu/cpu_features.hpp"
#include "backends/cpu/kernels.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::cpu {

/// What the kernels of one instruction set reach on a core.
struct IsaRates {
  double flops_a_cycle = 1.0;  ///< sustained in the products of f32; of bf16 where the set has such products
  double score_cycles = 0.0;   ///< for a score's way from one product to the next
  double bf16_cycles = 0.0, f16_cycles = 0.0;  ///< to widen an element where no instruction does
};

/// What estimates go by: nothing in it is measured at run time.
struct CpuTraits {
  double gigahertz = 1.0;
  double core_gigabytes = 1.0;   ///< read from memory by one core, GB/s
  double share_gigabytes = 1.0;  ///< and by each one of many
  double fresh_gigabytes = 1.0;  ///< written by one core to memory that nobody has touched, as new gradients are
  std::array<IsaRates, kIsaCount> rates{};
};

/// A row of the table, by vendor and family.
[[nodiscard]] CpuTraits traits_of(const Processor& processor);

/// Microseconds of `kernels`, which are those of `isa`, on `threads` threads with a core each. Which instruction set is
/// the fastest doesn't depend on `threads`: plans are kept for any number of them.
[[nodiscard]] double estimate_us(const Problem& problem, Isa isa, const KernelSet& kernels, const CpuTraits& traits,
                                 int threads);

}  // namespace tilewise::backends::cpu
