// Which kernels a problem of experts takes; see lowering.hpp.
#include "backends/portable/moe/lowering.hpp"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <string>
#include <utility>

#include "backends/portable/moe/kernels.hpp"
#include "backends/portable/moe/schedule.hpp"
#include "backends/portable/product/operand.hpp"
#include "backends/portable/product/schedule.hpp"
#include "backends/portable/quantize/kernels.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/elements.hpp"
#include "operations/moe/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div, core::concat;
using device::ExpertRole, device::OperandConfig, device::ProductOperand, device::ProductVector;
using operations::moe::gate_up_rows, operations::moe::MoeParams;

constexpr double kLaunchUs = 3.5;  // of a kernel that has next to nothing to do (H200)
constexpr double kOfBandwidth = 0.65;
constexpr double kOfVectors = 0.05;  // of the matrix units' rate that products in fp32 reach without them

class Lowerer {
 public:
  Lowerer(const MoeProblem& problem, const core::DeviceDescription& device, gpu::Family family)
      : p_(problem),
        traits_(traits_of(device, family)),
        family_(family),
        pairs_(problem.tokens * problem.top_k),
        rows_(gate_up_rows(problem)) {}

  Outcome lower() && {
    p_.pass == MoePass::moe ? add_forward() : add_backward();
    if (!refusal_.empty()) return {{}, refusal_};
    Outcome outcome{builder_.finish(), {}};
    outcome.lowering.estimated_us = estimated_us(outcome.lowering);
    return outcome;
  }

 private:
  void add_forward() {
    add_sort();
    add_up();
    if (p_.h_format.defined()) add_quantize();
    const device::ExpertRowsConfig down = down_config(p_, traits_);
    add_rows(down, p_.h_format.defined() ? device::kExpertHElements : device::kExpertH, device::kExpertDown,
             device::kExpertParts);
    if (p_.norm != MoeVector::none) add_norm();
    add_combine(device::kExpertParts, down.out_type, device::kExpertOut, p_.out_dtype);
  }

  void add_backward() {
    add_sort();
    if (p_.dx || p_.dtopk_weights || p_.dgate_up || p_.ddown || p_.dgate_up_bias) {
      add_rows(dh_config(p_, traits_), device::kExpertDout, device::kExpertDownBack, device::kExpertDh);
      add_up();
    }
    if (p_.dx) {
      const device::ExpertRowsConfig config = dx_config(p_, traits_);
      add_rows(config, device::kExpertDproducts, device::kExpertGateUpBack, device::kExpertDxParts);
      add_combine(device::kExpertDxParts, config.out_type, device::kExpertDx, p_.dtype);
    }
    if (p_.dgate_up) {
      add_dw(dgate_up_config(p_, traits_), p_.dgate_up_transposed, device::kExpertDproducts, device::kExpertX,
             device::kExpertDgateUp);
    }
    if (p_.ddown) {
      add_dw(ddown_config(p_, traits_), p_.ddown_transposed, device::kExpertDout, device::kExpertH,
             device::kExpertDdown);
    }
    if (p_.dgate_up_bias) add_dbias(device::kExpertDproducts, p_.dtype, p_.gate_up_bias, device::kExpertDgateUpBias);
    if (p_.ddown_bias) add_dbias(device::kExpertDout, p_.out_dtype, p_.down_bias, device::kExpertDdownBias);
    if (p_.dtopk_weights) add_dweights();
  }

  [[nodiscard]] device::MoeShape shape() const {
    return {static_cast<std::int32_t>(p_.tokens),
            static_cast<std::int32_t>(p_.top_k),
            static_cast<std::int32_t>(p_.hidden),
            static_cast<std::int32_t>(p_.intermediate),
            static_cast<std::int32_t>(p_.num_experts),
            0,
            p_.first_expert};
  }

  template <typename Kernel>
  void add(const typename Kernel::Config& config, std::int64_t blocks, const typename Kernel::Params& params) {
    builder_.launch<Kernel>(family_, config, gpu::Extent3{static_cast<std::uint32_t>(blocks)}, params,
                            [](const void* call, void* block) {
                              bind(*static_cast<const MoeParams*>(call), *static_cast<typename Kernel::Params*>(block));
                            });
  }
  /// Tiles of a launch; none, and a refusal, where they are too many.
  std::int64_t tiles(std::int64_t m_tiles, std::int64_t n_tiles) {
    constexpr std::int64_t kMost = 0x7FFFFFFF;
    std::int64_t blocks = 0;
    if (!__builtin_mul_overflow(m_tiles, n_tiles, &blocks) && blocks <= kMost) return blocks;
    refusal_ = concat("tiles must be <= ", kMost, " (got ", m_tiles, " * ", n_tiles, ")");
    return 0;
  }
  std::int64_t tiles_of_rows(std::int32_t block_m) const {
    return p_.num_experts == 0 ? 0 : device::most_group_tiles(pairs_, p_.num_experts, block_m, true);
  }

  void add_sort() {
    constexpr std::int32_t kThreads = 256;
    device::ExpertSortConfig config;
    config.experts =
        static_cast<std::int32_t>(std::bit_ceil(static_cast<std::uint64_t>(std::max<std::int64_t>(p_.num_experts, 4))));
    config.waves = kThreads / static_cast<std::int32_t>(gpu::lanes(family_));
    device::ExpertSortParams params{};
    params.shape = shape();
    params.topk_ids.type = static_cast<std::int32_t>(size_of(p_.ids_dtype));
    params.topk_weights.type = bias_type_of(p_.weights_dtype);
    const std::int64_t chunks = ceil_div(pairs_, std::int64_t{device::ExpertSortConfig::kChunk});
    params.chunks = static_cast<std::int32_t>(chunks);
    for (config.counts = chunks > 1 ? 1 : 0; config.counts >= 0; --config.counts) {
      add<ExpertSortKernel>(config, chunks, params);
    }
    builder_.append_schedule("pairs sorted");
  }

  /// Lines of an operand, as many as its role has.
  [[nodiscard]] ProductOperand operand(const OperandConfig& config, ExpertRole role) const {
    const std::int64_t hidden = p_.hidden, intermediate = p_.intermediate;
    ProductOperand o{};
    o.role = role;
    o.type = config.type;
    o.experts = 1;
    const auto lines = [&o](std::int64_t count, std::int64_t length) { o.lines = count, o.length = length; };
    const auto rows_of_workspace = [&](std::int64_t length) {
      lines(pairs_, length);
      o.line_stride = length * device::bits_of_product_type(config.type) / 8;
    };
    switch (role) {
      case device::kExpertX:
      case device::kExpertDout:
        lines(p_.tokens, hidden);
        break;
      case device::kExpertGateUp:
      case device::kExpertGateUpBack:
        o.experts = p_.num_experts;
        p_.gate_up_transposed ? lines(hidden, rows_) : lines(rows_, hidden);
        break;
      case device::kExpertDown:
      case device::kExpertDownBack:
        o.experts = p_.num_experts;
        p_.down_transposed ? lines(intermediate, hidden) : lines(hidden, intermediate);
        break;
      case device::kExpertDproducts:
        rows_of_workspace(rows_);
        break;
      default:
        rows_of_workspace(intermediate);
    }
    if (config.scale_use == device::kScaleNever) return o;
    switch (role) {
      case device::kExpertGateUp:
        set_scale_blocks(o, config, rows_, hidden);
        break;
      case device::kExpertGateUpBack:
        set_scale_blocks(o, config, hidden, rows_);
        break;
      case device::kExpertDown:
        set_scale_blocks(o, config, hidden, intermediate);
        break;
      case device::kExpertDownBack:
        set_scale_blocks(o, config, intermediate, hidden);
        break;
      default:  // of rows; transposed, of pairs that are summed over
        set_scale_blocks(o, config, o.lines, config.transposed != 0 ? pairs_ : o.length);
    }
    return o;
  }

  /// Blocks of an operand's rows and of its depth, of which some have scales.
  void set_scale_blocks(ProductOperand& o, const OperandConfig& config, std::int64_t rows, std::int64_t depth) const {
    const auto blocks = [](std::int64_t size, std::int32_t block) {
      return block == 0 ? 1 : ceil_div(size, std::int64_t{block});
    };
    o.scales.type = config.scale_type;
    o.scales.rows = blocks(rows, config.scale_rows);
    o.scales.depths = blocks(depth, config.scale_depth);
    // Of those in the workspace.
    o.scales.row_stride = o.scales.depths, o.scales.depth_stride = 1;
  }

  [[nodiscard]] static ProductVector vector(bool given, std::int64_t experts, std::int64_t size, std::int32_t type) {
    ProductVector v{};
    v.given = given;
    v.experts = given ? experts : 0, v.size = given ? size : 0;
    v.type = type;
    return v;
  }
  /// Of BiasType for the table's NumberType.
  [[nodiscard]] static std::int32_t number_of_bias(std::int32_t type) {
    return type == device::kBiasF32 ? device::kNumberF32 : device::kNumberBf16;
  }
  template <typename Config>
  [[nodiscard]] device::ExpertSums sums(const Config& config, std::int64_t scaled_rows, std::int64_t columns) const {
    const std::int64_t scaled_columns = p_.w_format.block_rows == 1 ? columns : 1;
    return {vector(config.row_scale != 0, 1, scaled_rows, device::kNumberF32),
            vector(config.column_scale != 0, p_.num_experts, scaled_columns, device::kNumberF32),
            vector(config.expert_scale != 0, p_.num_experts, 1, device::kNumberF32),
            vector(config.bias_type != device::kBiasNone, p_.num_experts, columns, number_of_bias(config.bias_type))};
  }

  void add_up() {
    const device::ExpertUpConfig config = up_config(p_, traits_);
    device::ExpertUpParams params{};
    params.shape = shape();
    params.a = operand(config.a, device::kExpertX);
    params.b = operand(config.b, device::kExpertGateUp);
    params.sums = sums(config, p_.x_format.block_rows == 1 ? p_.tokens : 1, rows_);
    params.numbers = {static_cast<float>(p_.alpha), static_cast<float>(p_.limit)};
    params.h_type = config.h_type;
    params.gate_up_rows = static_cast<std::int32_t>(rows_);
    params.gradient = config.gradient;
    const std::int64_t n_tiles = ceil_div(p_.intermediate, std::int64_t{config.values()});
    params.n_tiles = static_cast<std::int32_t>(n_tiles);
    add<ExpertUpKernel>(config, tiles(tiles_of_rows(config.block_m), n_tiles), params);
    append_tiles(config);
  }

  void add_quantize() {
    const device::QuantizeConfig config = quantize_config(p_);
    device::QuantizeParams params{};
    const std::int64_t block = is_end(p_.h_format) ? p_.intermediate : p_.h_format.block_columns;
    params.shape = {
        1, pairs_, p_.intermediate, 1, std::max<std::int64_t>(block, 1), device::kNumberF32, 0, config.scale_type, 0};
    params.numbers.row_stride = params.elements.row_stride = p_.intermediate;
    params.scales.row_stride = ceil_div(p_.intermediate, params.shape.block_columns);
    params.scales.column_stride = 1;
    const std::int64_t run = device::kLaneColumns * std::int64_t{gpu::lanes(family_)};
    const std::int64_t places = tiles(pairs_, is_end(p_.h_format) ? 1 : ceil_div(p_.intermediate, run));
    add<ExpertQuantizeKernel>(config, config.together() ? places : ceil_div(places, std::int64_t{config.waves}),
                              params);
    builder_.append_schedule("h quantised");
  }

  void add_rows(const device::ExpertRowsConfig& config, ExpertRole rows, ExpertRole weights, ExpertRole out) {
    const bool gate_up = weights == device::kExpertGateUpBack, back = gate_up || weights == device::kExpertDownBack;
    device::ExpertRowsParams params{};
    params.shape = shape();
    params.a = operand(config.a, rows);
    params.b = operand(config.b, weights);
    params.depth = gate_up ? rows_ : back ? p_.hidden : p_.intermediate;
    params.columns = weights == device::kExpertDownBack ? p_.intermediate : p_.hidden;
    params.sums = sums(config, pairs_, params.columns);
    params.sums.row_scale.stride = 1;
    params.out_type = config.out_type;
    params.out_role = out;
    const std::int64_t n_tiles = ceil_div(params.columns, std::int64_t{config.block_n});
    params.n_tiles = static_cast<std::int32_t>(n_tiles);
    add<ExpertRowsKernel>(config, tiles(tiles_of_rows(config.block_m), n_tiles), params);
    append_tiles(config);
  }
  void append_tiles(const device::ProductConfig& c) {
    builder_.append_schedule(concat(c.block_m, " x ", c.block_n, " x ", c.block_k, ", ", c.stages, " stages"));
  }

  void add_norm() {
    const device::ExpertWaveConfig config;
    device::ExpertNormParams params{};
    params.shape = shape();
    params.epsilon = static_cast<float>(p_.norm_epsilon);
    params.weighs = !p_.weight_on_input;
    if (p_.num_experts > 0) add<ExpertNormKernel>(config, ceil_div(pairs_, std::int64_t{config.waves}), params);
    builder_.append_schedule("normalised");
  }

  void add_combine(ExpertRole parts, std::int32_t part_type, ExpertRole out, DType out_dtype) {
    device::ExpertCombineConfig config;
    config.part_type = part_type;
    config.out_type = number_type_of(out_dtype);
    config.norm_type = out == device::kExpertOut ? bias_type_of(p_.norm) : std::int32_t{device::kBiasNone};
    config.vector_rows = !p_.unaligned && p_.hidden % device::kLaneColumns == 0;
    device::ExpertCombineParams params{};
    params.shape = shape();
    params.topk_ids.type = static_cast<std::int32_t>(size_of(p_.ids_dtype));
    params.norm =
        vector(config.norm_type != device::kBiasNone, p_.num_experts, p_.hidden, number_of_bias(config.norm_type));
    params.part_type = part_type, params.part_role = parts;
    params.out_type = config.out_type, params.out_role = out;
    const std::int64_t threads = std::int64_t{config.waves} * gpu::lanes(family_);
    const std::int64_t runs = ceil_div(p_.hidden, std::int64_t{device::kLaneColumns});
    add<ExpertCombineKernel>(config, tiles(1, ceil_div(p_.tokens * runs, threads)), params);
  }

  void add_dw(const device::ExpertDwConfig& config, bool transposed, ExpertRole rows, ExpertRole columns,
              ExpertRole out) {
    device::ExpertDwParams params{};
    params.shape = shape();
    params.a = operand(config.a, transposed ? columns : rows);
    params.b = operand(config.b, transposed ? rows : columns);
    const bool down = out == device::kExpertDdown;
    params.rows = down ? p_.hidden : rows_;
    params.columns = down ? p_.intermediate : p_.hidden;
    if (transposed) std::swap(params.rows, params.columns);
    params.out_type = config.out_type;
    params.out_role = out;
    const std::int64_t m_tiles = ceil_div(params.rows, std::int64_t{config.block_m});
    const std::int64_t n_tiles = ceil_div(params.columns, std::int64_t{config.block_n});
    params.m_tiles = static_cast<std::int32_t>(m_tiles), params.n_tiles = static_cast<std::int32_t>(n_tiles);
    add<ExpertDwKernel>(config, tiles(m_tiles * p_.num_experts, n_tiles), params);
    builder_.append_schedule(concat("weights ", config.block_m, " x ", config.block_n));
  }

  void add_dbias(ExpertRole from, DType dtype, MoeVector vector, ExpertRole out) {
    const bool down = out == device::kExpertDdownBias;
    device::ExpertDbiasConfig config;
    config.rows_type = number_type_of(dtype);
    config.out_type = number_type_of(operations::dtype_of_vector(vector));
    config.gathered = down;
    config.weighs = down && !p_.weight_on_input;
    device::ExpertDbiasParams params{};
    params.shape = shape();
    params.from_stride = params.columns = down ? p_.hidden : rows_;
    params.from_type = config.rows_type, params.from_role = from;
    params.out_type = config.out_type, params.out_role = out;
    const std::int64_t n_tiles = ceil_div(params.columns, std::int64_t{gpu::lanes(family_)});
    params.n_tiles = static_cast<std::int32_t>(n_tiles);
    add<ExpertDbiasKernel>(config, tiles(p_.num_experts, n_tiles), params);
  }

  void add_dweights() {
    const device::ExpertWaveConfig config;
    device::ExpertDweightsParams params{};
    params.shape = shape();
    const bool biased = p_.down_bias != MoeVector::none && !p_.weight_on_input;
    params.dout_type = bias_type_of(p_.out_dtype);
    params.bias_type = bias_type_of(p_.down_bias);
    params.out_type = bias_type_of(p_.weights_dtype);
    params.bias = vector(biased, p_.num_experts, p_.hidden, number_of_bias(params.bias_type));
    add<ExpertDweightsKernel>(config, ceil_div(pairs_, std::int64_t{config.waves}), params);
  }

  [[nodiscard]] double estimated_us(const gpu::Lowering& lowering) const {
    const double rate = traits_.gflops * (p_.dtype == DType::f32 ? kOfVectors : 1.0);
    const double products = 1e-3 * operations::moe::flops(p_) / rate;
    const double memory =
        1e-3 * operations::moe::bytes_moved(p_) / (kOfBandwidth * traits_.memory_gigabytes_per_second);
    return kLaunchUs * static_cast<double>(std::max<std::size_t>(lowering.steps.size(), 1)) +
           std::max(products, memory);
  }

  const MoeProblem& p_;
  DeviceTraits traits_;
  gpu::Family family_;
  gpu::LoweringBuilder builder_;
  std::int64_t pairs_, rows_;
  std::string refusal_;
};

}  // namespace

operations::moe::FeatureSet Portable<operations::Moe>::features() {
  using enum operations::moe::Feature;
  return {forward,      backward,      f32,
          bf16,         f16,           out_dtype,
          x_quantised,  h_quantised,   fp8_tensor,
          fp8_row,      fp8_1x128,     fp8_128x128,
          e8m0_blocks,  mxfp8,         mxfp4,
          nvfp4,        no_gate,       interleaved,
          activation,   swiglu_oai,    clamp,
          bias,         norm,          weight_on_input,
          first_expert, transposed,    batch_invariant,
          dx,           dtopk_weights, dweights,
          dbias};
}

Outcome Portable<operations::Moe>::lower(const MoeProblem& problem, const core::DeviceDescription& device,
                                         gpu::Family family) {
  if (std::string refusal = refusal_of(problem); !refusal.empty()) return {{}, std::move(refusal)};
  return Lowerer(problem, device, family).lower();
}

bool Portable<operations::Moe>::is_aligned(const MoeParams& call) {
  return starts_on_16_bytes(call.x) && starts_on_16_bytes(call.out) && starts_on_16_bytes(call.gate_up) &&
         starts_on_16_bytes(call.down) && starts_on_16_bytes(call.dout) && starts_on_16_bytes(call.dx) &&
         starts_on_16_bytes(call.dgate_up) && starts_on_16_bytes(call.ddown);
}

double Portable<operations::Moe>::emulated_us(const MoeProblem& problem) {
  constexpr double kCallUs = 5000.0, kFlopUs = 0.02;
  return kCallUs + kFlopUs * operations::moe::flops(problem);
}

}  // namespace tilewise::backends::portable
