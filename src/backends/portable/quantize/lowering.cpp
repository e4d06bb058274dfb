// Which kernels a quantize problem takes; see lowering.hpp.
#include "backends/portable/quantize/lowering.hpp"

#include <algorithm>
#include <cstdint>

#include "backends/portable/quantize/kernels.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "formats/scales.hpp"
#include "operations/quantize/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;

using HostParams = operations::quantize::QuantizeParams;

constexpr std::int32_t kWaves = 4, kWavesTogether = 8;
constexpr std::int64_t kPiecesAShare = 4, kMostShares = 8192;  // enough to have all memory channels at work
constexpr std::int64_t kMostPlaces = 0x7FFFFFFF;               // kernels divide their numbers in 32 bits
constexpr double kLaunchUs = 3.5;                              // of a kernel that has next to nothing to do (H200)
constexpr double kOfBandwidth = 0.7;

class Lowerer {
 public:
  Lowerer(const QuantizeProblem& problem, const core::DeviceDescription& device, gpu::Family family)
      : p_(problem), device_(device), family_(family) {
    run_ = device::kLaneColumns * std::int64_t{gpu::lanes(family)};
  }

  Outcome lower() {
    const std::int64_t runs = ceil_div(p_.columns, run_);
    std::int64_t places = 0;
    if (__builtin_mul_overflow(p_.num_experts, p_.rows, &places) || __builtin_mul_overflow(places, runs, &places) ||
        places > kMostPlaces) {
      return {{},
              core::concat("num_experts * rows * ceil(columns / ", run_, ") must be <= ", kMostPlaces, " (got ",
                           p_.num_experts, " * ", p_.rows, " * ", runs, ")")};
    }
    p_.pass == QuantizePass::quantize ? lower_forward() : lower_backward();
    builder_.append_schedule(core::concat(run_, " columns a wave"));
    Outcome outcome{builder_.finish(), {}};
    outcome.lowering.estimated_us =
        kLaunchUs * static_cast<double>(outcome.lowering.steps.size()) +
        1e-3 * operations::quantize::bytes_moved(p_) / (kOfBandwidth * device_.memory_gigabytes_per_second);
    outcome.lowering.estimated_us = std::max(outcome.lowering.estimated_us, kLaunchUs);
    return outcome;
  }

 private:
  /// Of kernels that read numbers alone.
  [[nodiscard]] device::QuantizeConfig config_of_numbers() const {
    device::QuantizeConfig config;
    config.number_type = number_type_of(p_.dtype);
    config.vector_rows = !p_.unaligned && p_.columns % device::kLaneColumns == 0;
    config.waves = kWaves;
    return config;
  }
  [[nodiscard]] device::QuantizeConfig config() const {
    const BlockFormat& format = p_.format;
    device::QuantizeConfig config = config_of_numbers();
    config.e2m1 = format.element == DType::fp4_e2m1;
    config.scale_type = formats::scale_type_of(format.scale);
    config.power_of_two = p_.power_of_two;
    config.scope = format.block_rows == BlockFormat::kAll      ? device::kScopeTensor
                   : format.block_columns == BlockFormat::kAll ? device::kScopeRow
                                                               : device::kScopeBlock;
    config.lanes_a_block = config.scope == device::kScopeBlock
                               ? static_cast<std::int32_t>(format.block_columns) / device::kLaneColumns
                               : 1;
    config.tall = format.block_rows > 1;
    config.global = format.global;
    return config;
  }
  [[nodiscard]] device::QuantizeShape shape() const {
    const auto block = [](std::int64_t size, std::int64_t all) {
      return size == BlockFormat::kAll ? std::max<std::int64_t>(all, 1) : size;
    };
    const device::QuantizeConfig c = config();
    return {p_.num_experts,
            p_.rows,
            p_.columns,
            block(p_.format.block_rows, p_.rows),
            block(p_.format.block_columns, p_.columns),
            c.number_type,
            c.e2m1,
            c.scale_type,
            0};
  }

  template <typename Kernel>
  void add(const device::QuantizeConfig& config, typename Kernel::Params params, std::int64_t blocks,
           gpu::Bind bind_params) {
    params.shape = shape();
    builder_.launch<Kernel>(family_, config, gpu::Extent3{static_cast<std::uint32_t>(blocks)}, params, bind_params);
  }

  void lower_forward() {
    device::QuantizeConfig c = config();
    if (c.scope == device::kScopeTensor || c.global != 0) add_whole();
    const std::int64_t runs = c.scope == device::kScopeRow ? 1 : ceil_div(p_.columns, run_);
    const std::int64_t places = p_.num_experts * ceil_div(p_.rows, c.tall != 0 ? p_.format.block_rows : 1) * runs;
    if (c.together()) c.waves = kWavesTogether;
    add<QuantizeBlocks>(
        c, {}, c.together() ? places : ceil_div(places, std::int64_t{c.waves}), [](const void* call, void* block) {
          bind(*static_cast<const HostParams*>(call), true, *static_cast<device::QuantizeParams*>(block));
        });
  }

  void add_whole() {
    device::QuantizeExtremesParams extremes{};
    const std::int64_t pieces = p_.rows * ceil_div(p_.columns, run_);
    const std::int64_t most = std::max<std::int64_t>(kMostShares / std::max<std::int64_t>(p_.num_experts, 1), 1);
    extremes.parts = std::clamp<std::int64_t>(ceil_div(pieces, kPiecesAShare), 1, most);
    add<QuantizeExtremes>(
        config_of_numbers(), extremes, ceil_div(p_.num_experts * extremes.parts, std::int64_t{kWaves}),
        [](const void* call, void* block) {
          bind(*static_cast<const HostParams*>(call), *static_cast<device::QuantizeExtremesParams*>(block));
        });
    device::QuantizeConfig c;
    c.waves = kWaves;
    c.global = p_.format.global;
    c.power_of_two = p_.power_of_two;
    device::QuantizeWholeParams whole{};
    whole.parts = extremes.parts;
    add<QuantizeWholeScale>(
        c, whole, ceil_div(p_.num_experts, std::int64_t{kWaves}), [](const void* call, void* block) {
          bind(*static_cast<const HostParams*>(call), *static_cast<device::QuantizeWholeParams*>(block));
        });
  }

  void lower_backward() {
    const device::QuantizeConfig c = config();
    const std::int64_t places = p_.num_experts * p_.rows * ceil_div(p_.columns, run_);
    add<Dequantize>(c, {}, ceil_div(places, std::int64_t{c.waves}), [](const void* call, void* block) {
      bind(*static_cast<const HostParams*>(call), false, *static_cast<device::QuantizeParams*>(block));
    });
  }

  const QuantizeProblem& p_;
  const core::DeviceDescription& device_;
  gpu::Family family_;
  gpu::LoweringBuilder builder_;
  std::int64_t run_;
};

}  // namespace

operations::quantize::FeatureSet Portable<operations::Quantize>::features() {
  using enum operations::quantize::Feature;
  return {quantize,    dequantize,  f32,   bf16,  f16,   fp8_tensor,   fp8_row, fp8_1x128,
          fp8_128x128, e8m0_blocks, mxfp8, mxfp4, nvfp4, power_of_two, stacked};
}

Outcome Portable<operations::Quantize>::lower(const QuantizeProblem& problem, const core::DeviceDescription& device,
                                              gpu::Family family) {
  return Lowerer(problem, device, family).lower();
}

bool Portable<operations::Quantize>::is_aligned(const HostParams& call) {
  return core::rows_start_on_16_bytes(call.numbers) && core::rows_start_on_16_bytes(call.quantized.elements);
}

double Portable<operations::Quantize>::emulated_us(const QuantizeProblem& problem) {
  constexpr double kCallUs = 1000.0, kElementUs = 0.2;
  return kCallUs + kElementUs * static_cast<double>(problem.num_experts) * static_cast<double>(problem.rows) *
                       static_cast<double>(problem.columns);
}

}  // namespace tilewise::backends::portable
