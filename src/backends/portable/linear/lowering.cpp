// Which kernels a linear problem takes; see lowering.hpp.
#include "backends/portable/linear/lowering.hpp"

#include <algorithm>
#include <cstdint>

#include "backends/portable/linear/bind.hpp"
#include "backends/portable/linear/kernels.hpp"
#include "backends/portable/linear/schedule.hpp"
#include "backends/portable/product/operand.hpp"
#include "backends/portable/product/schedule.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/linear/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;
using operations::linear::LinearParams;

constexpr double kLaunchUs = 3.5;  // of a kernel that has next to nothing to do (H200)
constexpr double kOfBandwidth = 0.75;
constexpr double kOfVectors = 0.05;  // of the matrix units' rate that products in fp32 reach without them

class Lowerer {
 public:
  Lowerer(const LinearProblem& problem, const core::DeviceDescription& device, gpu::Family family)
      : p_(problem), traits_(traits_of(device, family)), family_(family) {}

  Outcome lower() {
    p_.pass == LinearPass::linear ? add_product(forward_config(p_, traits_), device::kLinearOut) : lower_backward();
    if (!refusal_.empty()) return {{}, refusal_};
    Outcome outcome{builder_.finish(), {}};
    outcome.lowering.estimated_us = estimated_us(outcome.lowering);
    return outcome;
  }

 private:
  void lower_backward() {
    const bool again = p_.activation != Activation::identity;
    const DType dsum = again ? p_.dtype : p_.out_dtype;
    if (again) {
      device::LinearConfig config = forward_config(p_, traits_);
      config.gradient = 1;
      config.dout_type = number_type_of_linear(p_.out_dtype);
      config.out_type = number_type_of_linear(p_.dtype);
      add_product(config, device::kLinearDsum);
    }
    dsum_role_ = again ? device::kLinearDsum : device::kLinearDout;
    if (p_.dx) add_product(dx_config(p_, dsum, traits_), device::kLinearDx);
    if (p_.dw) add_dw(dw_config(p_, dsum, traits_), dsum);
    if (p_.dbias) add_dbias(dsum);
  }

  /// A grid of so many tiles; none where they are too many.
  gpu::Extent3 grid_of(std::int64_t a, std::int64_t b, std::int64_t c) {
    constexpr std::int64_t kMost = 0x7FFFFFFF;
    std::int64_t blocks = 0;
    if (__builtin_mul_overflow(a, b, &blocks) || __builtin_mul_overflow(blocks, c, &blocks) || blocks > kMost) {
      refusal_ = concat("tiles must be <= ", kMost, " (got ", a, " * ", b, " * ", c, ")");
      return {0, 1, 1};
    }
    return {static_cast<std::uint32_t>(blocks), 1, 1};
  }

  [[nodiscard]] device::ProductGroups groups() const {
    const bool counted = operations::linear::is_counted(p_), grouped = operations::linear::is_grouped(p_);
    const bool wide = p_.groups == LinearGroups::offsets_i64 || p_.groups == LinearGroups::counts_i64;
    device::ProductGroups groups{};
    groups.num_groups = static_cast<std::int32_t>(p_.num_experts);
    groups.bytes = !grouped ? 1 : wide ? 8 : 4;
    groups.type = !grouped ? device::kGroupsNone : counted ? device::kGroupsCounts : device::kGroupsOffsets;
    return groups;
  }

  [[nodiscard]] std::int64_t columns_of(std::int32_t role) const {
    return role == device::kLinearDx || role == device::kLinearX ? p_.k : p_.n;
  }

  /// Rows of an operand that are lines, or transposed.
  [[nodiscard]] device::ProductOperand operand(const device::OperandConfig& config, std::int32_t role) const {
    device::ProductOperand o{};
    o.role = role;
    o.type = config.type;
    const bool is_w = role == device::kLinearW || role == device::kLinearWBack;
    o.experts = is_w ? p_.num_experts : 1;
    o.lines = !is_w ? p_.tokens : p_.w_transposed ? p_.k : p_.n;
    o.length = !is_w ? columns_of(role) : p_.w_transposed ? p_.n : p_.k;
    if (role == device::kLinearDsum) {
      o.line_stride = p_.n * device::bits_of_product_type(config.type) / 8;
    }
    if (config.scale_use != device::kScaleNever) {
      const auto blocks = [](std::int64_t size, std::int32_t block) {
        return block == 0 ? 1 : ceil_div(size, std::int64_t{block});
      };
      const bool back = role == device::kLinearWBack;
      o.scales.type = config.scale_type;
      o.scales.rows = blocks(!is_w ? p_.tokens : back ? p_.k : p_.n, config.scale_rows);
      o.scales.depths = blocks(back ? p_.n : p_.k, config.scale_depth);
    }
    return o;
  }

  [[nodiscard]] device::LinearMatrix matrix(std::int32_t role, std::int32_t type) const {
    device::LinearMatrix m{};
    m.role = role;
    m.type = type;
    if (role == device::kLinearDsum) m.row_stride = p_.n;
    return m;
  }

  [[nodiscard]] static device::ProductVector vector(bool given, std::int64_t experts, std::int64_t size,
                                                    std::int32_t type) {
    device::ProductVector v{};
    v.given = given;
    v.experts = given ? experts : 0;
    v.size = given ? size : 0;
    v.type = type;
    return v;
  }

  void add_product(device::LinearConfig config, device::LinearRole result) {
    const bool back = result == device::kLinearDx;
    device::LinearProductParams params{};
    device::LinearEpilogueParams& e = params.epilogue;
    params.depth = back ? p_.n : p_.k;
    params.a = operand(config.a, back ? dsum_role_ : device::kLinearX);
    params.b = operand(config.b, back ? device::kLinearWBack : device::kLinearW);
    e.rows = p_.tokens;
    e.columns = columns_of(result);
    e.groups = groups();
    const bool end = p_.w_format.block_rows == 1;
    e.row_scale = vector(config.row_scale != 0, 1, p_.x_format.block_rows == 1 ? p_.tokens : 1, device::kNumberF32);
    e.column_scale = vector(config.column_scale != 0, p_.num_experts, end ? p_.n : 1, device::kNumberF32);
    e.expert_scale = vector(config.expert_scale != 0, p_.num_experts, 1, device::kNumberF32);
    e.bias = vector(config.bias_type != device::kBiasNone, p_.num_experts, p_.n,
                    config.bias_type == device::kBiasF32 ? device::kNumberF32 : device::kNumberBf16);
    if (config.gradient != 0) e.dout = matrix(device::kLinearDout, config.dout_type);
    e.out = matrix(result, config.out_type);
    const bool grouped = operations::linear::is_grouped(p_);
    const std::int64_t m_tiles = device::most_group_tiles(p_.tokens, p_.num_experts, config.block_m, grouped);
    const std::int64_t n_tiles = ceil_div(e.columns, std::int64_t{config.block_n});
    const std::int64_t splits = splits_of(config, m_tiles * n_tiles, params.depth, p_.batch_invariant, traits_);
    const gpu::Extent3 grid = grid_of(m_tiles, n_tiles, splits);
    const std::int64_t step = std::max<std::int64_t>(config.block_k, 128);
    e.grid = {static_cast<std::int32_t>(m_tiles), static_cast<std::int32_t>(n_tiles), static_cast<std::int32_t>(splits),
              0, ceil_div(ceil_div(params.depth, splits), step) * step};
    config.split = splits > 1;
    builder_.launch<LinearProductKernel>(family_, config, grid, params, [](const void* call, void* block) {
      bind(*static_cast<const LinearParams*>(call), *static_cast<device::LinearProductParams*>(block));
    });
    if (splits > 1) {
      builder_.launch<LinearCombineKernel>(
          family_, config, grid_of(m_tiles, n_tiles, 1), e, [](const void* call, void* block) {
            bind(*static_cast<const LinearParams*>(call), *static_cast<device::LinearEpilogueParams*>(block));
          });
    }
    builder_.append_schedule(concat(config.block_m, " x ", config.block_n, " x ", config.block_k, ", ", config.stages,
                                    " stages", splits > 1 ? concat(", ", splits, " parts") : std::string()));
  }

  void add_dw(const device::LinearDwConfig& config, DType dsum) {
    device::LinearDwParams params{};
    const std::int32_t a = p_.dw_transposed ? std::int32_t{device::kLinearX} : dsum_role_;
    const std::int32_t b = p_.dw_transposed ? dsum_role_ : std::int32_t{device::kLinearX};
    params.tokens = p_.tokens;
    params.rows = p_.dw_transposed ? p_.k : p_.n;
    params.columns = p_.dw_transposed ? p_.n : p_.k;
    params.groups = groups();
    params.a = operand(config.a, a);
    params.b = operand(config.b, b);
    params.out = matrix(device::kLinearDw, config.out_type);
    const std::int64_t m_tiles = ceil_div(params.rows, std::int64_t{config.block_m});
    const std::int64_t n_tiles = ceil_div(params.columns, std::int64_t{config.block_n});
    params.m_tiles = static_cast<std::int32_t>(m_tiles);
    params.n_tiles = static_cast<std::int32_t>(n_tiles);
    builder_.launch<LinearDwKernel>(
        family_, config, grid_of(m_tiles, n_tiles, p_.num_experts), params, [](const void* call, void* block) {
          bind(*static_cast<const LinearParams*>(call), *static_cast<device::LinearDwParams*>(block));
        });
    builder_.append_schedule(concat("dw ", config.block_m, " x ", config.block_n, " of ", to_string(dsum)));
  }

  void add_dbias(DType dsum) {
    device::LinearDbiasConfig config;
    config.groups = groups().type;
    config.dout_type = number_type_of_linear(dsum);
    config.out_type = number_type_of_linear(operations::dtype_of_vector(p_.bias));
    device::LinearDbiasParams params{};
    params.tokens = p_.tokens;
    params.columns = p_.n;
    params.groups = groups();
    params.dout = matrix(dsum_role_, config.dout_type);
    params.out_type = config.out_type;
    const std::int64_t n_tiles = ceil_div(p_.n, std::int64_t{gpu::lanes(family_)});
    params.n_tiles = static_cast<std::int32_t>(n_tiles);
    builder_.launch<LinearDbiasKernel>(
        family_, config, grid_of(n_tiles, p_.num_experts, 1), params, [](const void* call, void* block) {
          bind(*static_cast<const LinearParams*>(call), *static_cast<device::LinearDbiasParams*>(block));
        });
  }

  [[nodiscard]] double estimated_us(const gpu::Lowering& lowering) const {
    const double rate = traits_.gflops * (p_.dtype == DType::f32 ? kOfVectors : 1.0);
    const double products = 1e-3 * operations::linear::flops(p_) / rate;
    const double memory =
        1e-3 * operations::linear::bytes_moved(p_) / (kOfBandwidth * traits_.memory_gigabytes_per_second);
    return kLaunchUs * static_cast<double>(std::max<std::size_t>(lowering.steps.size(), 1)) +
           std::max(products, memory);
  }

  const LinearProblem& p_;
  DeviceTraits traits_;
  gpu::Family family_;
  gpu::LoweringBuilder builder_;
  std::int32_t dsum_role_ = device::kLinearDout;
  std::string refusal_;
};

}  // namespace

operations::linear::FeatureSet Portable<operations::Linear>::features() {
  using enum operations::linear::Feature;
  return {forward,      backward,
          f32,          bf16,
          f16,          out_dtype,
          x_quantised,  fp8_tensor,
          fp8_row,      fp8_1x128,
          fp8_128x128,  e8m0_blocks,
          mxfp8,        mxfp4,
          nvfp4,        grouped,
          bias,         activation,
          w_transposed, batch_invariant,
          dx,           backward_quantised,
          dw,           dbias};
}

Outcome Portable<operations::Linear>::lower(const LinearProblem& problem, const core::DeviceDescription& device,
                                            gpu::Family family) {
  if (std::string refusal = refusal_of(problem); !refusal.empty()) return {{}, std::move(refusal)};
  return Lowerer(problem, device, family).lower();
}

bool Portable<operations::Linear>::is_aligned(const LinearParams& call) {
  return starts_on_16_bytes(call.x) && starts_on_16_bytes(call.w) && starts_on_16_bytes(call.out) &&
         starts_on_16_bytes(call.dout) && starts_on_16_bytes(call.dx) && starts_on_16_bytes(call.dw);
}

double Portable<operations::Linear>::emulated_us(const LinearProblem& problem) {
  constexpr double kCallUs = 2000.0, kFlopUs = 0.02;
  return kCallUs + kFlopUs * operations::linear::flops(problem);
}

}  // namespace tilewise::backends::portable
