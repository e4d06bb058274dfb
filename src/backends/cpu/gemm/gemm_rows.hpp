// What the rows of the dispatch table share that run kernels of matrix products: one for each instruction set that has
// some, and how long such a set takes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "backends/cpu/cost.hpp"
#include "backends/cpu/gemm/grouped_product.hpp"
#include "core/features.hpp"
#include "core/implementation.hpp"
#include "core/message.hpp"
#include "tilewise/block_format.hpp"

namespace tilewise::backends::cpu {

struct GemmIsa {
  Isa isa;
  std::string_view name;  ///< of its rows
};

/// As the instruction sets of cpu_implementations(), best first.
inline constexpr std::array kGemmIsas{
#if defined(__x86_64__)
    GemmIsa{Isa::amx_bf16, "cpu.amx_bf16"}, GemmIsa{Isa::avx512_bf16, "cpu.avx512_bf16"},
    GemmIsa{Isa::avx512, "cpu.avx512"},     GemmIsa{Isa::avx2, "cpu.avx2"},
#elif defined(__aarch64__)
    GemmIsa{Isa::neon_bf16, "cpu.neon_bf16"},
    GemmIsa{Isa::neon, "cpu.neon"},
#endif
    GemmIsa{Isa::generic, "cpu.generic"},
};

/// One `Row`, made of a GemmIsa, for each of them.
template <typename Row>
[[nodiscard]] std::span<const core::Implementation* const> rows_of_gemm_isas() {
  return []<std::size_t... i>(std::index_sequence<i...>) -> std::span<const core::Implementation* const> {
    static const std::array<Row, sizeof...(i)> rows{Row(kGemmIsas[i])...};
    static const std::array<const core::Implementation*, sizeof...(i)> table{&rows[i]...};
    return table;
  }(std::make_index_sequence<kGemmIsas.size()>());
}

/// Why the described processor does not run the set, if so.
[[nodiscard]] inline std::optional<std::string> lack_of(Isa isa, const core::DeviceDescription& cpu) {
  for (const core::DeviceDescription::Lack& lack : cpu.lacks)
    if (lack.instruction_set == to_string(isa)) return lack.reason;
  return std::nullopt;
}

/// Features of rows' element types that the set has kernels of.
template <typename Feature>
void insert_rows(core::FeatureSetOf<Feature>& set, const GemmKernels& kernels) {
  const auto insert = [&](Feature feature, DType dtype) {
    if (gemm_kernel(kernels, dtype, dtype) != nullptr) set.insert(feature);
  };
  insert(Feature::f32, DType::f32);
  insert(Feature::bf16, DType::bf16);
  insert(Feature::f16, DType::f16);
  insert(Feature::f64, DType::f64);
  insert(Feature::x_quantised, DType::fp8_e4m3);
}

/// Why kernels refuse weights of that format whose summed dimension is not contiguous; empty where they don't.
[[nodiscard]] inline std::string_view refusal_of_transposed(const BlockFormat& format, bool backward) {
  if (format == parse_block_format("mxfp8")) return "scales of 32 elements want them contiguous";
  // Gradients are sums over the rows that such scales are of.
  if (backward && format.block_rows == 1) return "gradients want rows with scales of their own contiguous";
  return {};
}

/// How rows are multiplied, for whoever asks.
[[nodiscard]] inline std::string schedule_of(const GemmKernel& kernel, bool batch_invariant) {
  const std::string packed =
      core::concat("blocks of up to ", kGemmRows, " rows by panels of ", kernel.panel, " outputs");
  if (batch_invariant) return packed;
  return core::concat(packed, "; weights of up to ", kernel.stream_rows, " rows streamed");
}

/// Products at the set's rate, weights and rows at memory's, on as many threads as the fastest set's work deserves:
/// which set is the best does not depend on their number.
[[nodiscard]] inline double gemm_estimate_us(Isa isa, double flops, double bytes, bool f64,
                                             const core::DeviceDescription& cpu) {
  constexpr double kCallNs = 1000.0, kWorkerNs = 5e3, kWakeNs = 30e3, kMostGigabytes = 250.0;
  const CpuTraits traits = traits_of({cpu.intel ? Processor::Vendor::intel : Processor::Vendor::other, cpu.family});
  const double width = f64 ? 2.0 : 1.0;  // a vector holds half as many doubles
  const auto core_ns = [&](Isa of) {
    return width * flops / traits.rates[static_cast<std::size_t>(of)].flops_a_cycle / traits.gigahertz;
  };
  const double least_ns = core_ns(Isa::amx_bf16) + bytes / traits.core_gigabytes;
  const double workers = std::clamp(least_ns / kWorkerNs, 1.0, static_cast<double>(std::max(cpu.threads, 1)));
  const double gigabytes = std::min(std::max(traits.core_gigabytes, traits.share_gigabytes * workers), kMostGigabytes);
  const double ns = kCallNs + core_ns(isa) / workers + bytes / gigabytes + kWakeNs * (1.0 - 1.0 / workers);
  return 1e-3 * ns;
}

}  // namespace tilewise::backends::cpu
