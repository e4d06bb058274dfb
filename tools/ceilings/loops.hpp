// The loops behind measure_ceilings(): each is one instruction issued from registers alone, or
// one way to read memory. Chosen at run time; nothing here needs compiler flags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "backends/cpu/cpu_features.hpp"

namespace tilewise::tools {

/// A loop over independent accumulators, enough of them to hide the instruction's latency.
struct RateLoop {
  std::string_view instruction;
  double flops_per_iteration;
  void (*run)(std::int64_t iterations);
};

/// The widest fp32 multiply-add of `isa` (any instruction set has one).
[[nodiscard]] RateLoop fma_loop(backends::cpu::Isa isa);
/// vdpbf16ps, tdpbf16ps: nothing where `isa` stops short of them.
[[nodiscard]] std::optional<RateLoop> bf16_loop(backends::cpu::Isa isa);
[[nodiscard]] std::optional<RateLoop> amx_loop(backends::cpu::Isa isa);

/// One way to read `size` bytes (a multiple of kReadBlock) once; the sum keeps the loads alive.
struct ReadPattern {
  std::string_view name;
  std::uint64_t (*sum)(const std::byte* data, std::size_t size);
};

inline constexpr std::size_t kReadBlock = 4096;

/// One and two streams, with and without software prefetch, at the widest loads of `isa`.
[[nodiscard]] std::vector<ReadPattern> read_patterns(backends::cpu::Isa isa);

}  // namespace tilewise::tools
