// Which kernels the backward pass of an expert layer takes: rows of x and of dout gathered by expert, dout times down,
// the first product again, or its saved sums, with what follows from both, and then products that sum over weights'
// rows, or over experts'.
#include "backends/cuda/hopper/moe_backward.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/cuda/hopper/moe_maps.hpp"
#include "backends/cuda/hopper/moe_steps.hpp"
#include "backends/portable/quantize/kernels.hpp"
#include "backends/portable/traits.hpp"
#include "core/message.hpp"
#include "operations/moe/rules.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, core::concat;
using operations::moe::gate_up_rows;

constexpr std::int64_t kMostExperts = 256;
constexpr std::int64_t kBlocksAtOnce = 8;  // of a multiprocessor

std::string backward_refusal_of(const MoeProblem& p) {
  if (p.w_format.defined()) {
    return concat("w_format must be none in the backward pass (got ", to_string(p.w_format), ")");
  }
  // Rows of the first product's gradient are weighed, and those of the bias are not.
  if (p.weight_on_input && p.dgate_up_bias) return "dgate_up_bias must not be wanted with weight_on_input (got both)";
  if (p.tokens == 0) return "tokens must be > 0 in the backward pass (got 0)";
  if (p.hidden == 0) return "hidden must be > 0 in the backward pass (got 0)";
  if (p.num_experts > kMostExperts) {
    return concat("num_experts must be <= ", kMostExperts, " in the backward pass (got ", p.num_experts, ")");
  }
  const std::int64_t tiles = ceil_div(gate_up_rows(p), std::int64_t{64}) * ceil_div(p.hidden, std::int64_t{64});
  if (tiles > kMostTiles / p.num_experts) {
    return concat("tiles of weights' gradients must be <= 2^30 (got ", p.num_experts, " * ", tiles, ")");
  }
  return {};
}

class MoeBackwardLowerer : MoeLowerer {
 public:
  MoeBackwardLowerer(const MoeProblem& problem, const core::DeviceDescription& device)
      : MoeLowerer(problem, device),
        rows_(narrow(gate_up_rows(problem))),
        terms_(problem.save_gate_up ? 1 : narrow(ceil_div(rows_, device::MoeSlopesConfig::kBlockN))) {}

  gpu::Lowering lower() && {
    add_moe_sort(builder_, p_);
    // Rows of x are multiplied by gate_up or by the gradient of their product.
    if (!p_.save_gate_up || p_.dgate_up) add_moe_gather<MoeGather>(builder_, shape_, device_.multiprocessors);
    add_moe_gather<MoeGatherDout>(builder_, shape_, device_.multiprocessors);
    builder_.append_schedule("rows gathered");
    add_product<MoeProductOf::dout>(shape_.hidden, shape_.intermediate);
    p_.save_gate_up ? add_saved_slopes() : add_slopes();
    if (p_.dx) {
      add_product<MoeProductOf::products>(rows_, shape_.hidden);
      add_sum();
    }
    if (p_.dgate_up) add_dw(false);
    if (p_.ddown) add_dw(true);
    if (p_.dgate_up_bias) add_dbias(false);
    if (p_.ddown_bias) add_dbias(true);
    if (p_.dtopk_weights) add_dweights();
    gpu::Lowering lowering = builder_.finish();
    lowering.estimated_us = estimated_us(lowering.steps.size());
    return lowering;
  }

 private:
  static std::int32_t narrow(std::int64_t x) { return static_cast<std::int32_t>(x); }

  /// Weights are M of the product, as in the forward pass.
  [[nodiscard]] device::GemmConfig product_config() const {
    device::GemmConfig c;
    c.type = c.out_type = element_type(p_.dtype);
    c.block_m = 256, c.block_n = 128, c.store_buffers = 0;
    c.shares_x = 1, c.w_mn_major = 1, c.grouped = 1;
    return c;
  }

  /// Rows of `depth` by `columns`.
  template <MoeProductOf kOf>
  void add_product(std::int32_t depth, std::int32_t columns) {
    const device::GemmConfig config = product_config();
    device::GroupedGemmParams params{};
    set_product(config, depth, columns, params.gemm);
    gpu::Launch& launch =
        add_moe_step<MoeProduct<kOf>>(builder_, config, clusters_of(config.cluster) * config.cluster, params);
    launch.cluster.x = static_cast<std::uint32_t>(config.cluster);
    add_moe_maps(kOf, config, p_.dtype, launch);
    builder_.append_schedule(concat("tiles of ", config.block_n, " weights' rows by up to ", config.block_m));
  }
  void set_product(const device::GemmConfig& config, std::int32_t depth, std::int32_t columns,
                   device::GemmParams& params) const {
    params.grid = {0, narrow(ceil_div(columns, config.cluster_n())), 1, 0};
    params.steps = narrow(ceil_div(depth, config.block_k()));
    params.num_experts = shape_.num_experts;
    params.m = shape_.pairs(), params.n = columns, params.out_stride = columns;
  }
  [[nodiscard]] std::int64_t clusters_of(std::int32_t blocks) const {
    return std::max(device_.multiprocessors / blocks, 1);
  }

  void add_slopes() {
    device::MoeSlopesConfig config;
    set_activation(p_, config);
    config.biases = p_.gate_up_bias != MoeVector::none;
    config.type = element_type(p_.dtype), config.interleaved = p_.gate == MoeGate::interleaved;
    device::MoeSlopesParams params{};
    set_product(config.gemm(), shape_.hidden, rows_, params.gemm);
    params.h.row_stride = params.intermediate = shape_.intermediate;
    params.num_terms = terms_;
    params.numbers = numbers_of(p_);
    gpu::Launch& launch =
        add_moe_step<MoeSlopes>(builder_, config, clusters_of(config.cluster) * config.cluster, params);
    launch.cluster.x = static_cast<std::uint32_t>(config.cluster);
    add_moe_maps(config, p_.dtype, launch);
    builder_.append_schedule(concat("slopes by ", device::MoeSlopesConfig::kBlockN));
  }

  void add_saved_slopes() {
    device::MoeSavedSlopesConfig config;
    set_activation(p_, config);
    config.biases = p_.gate_up_bias != MoeVector::none;
    config.type = element_type(p_.dtype), config.interleaved = p_.gate == MoeGate::interleaved;
    device::MoeSavedSlopesParams params{};
    params.shape = shape_, params.numbers = numbers_of(p_);
    params.h.row_stride = shape_.intermediate, params.products.row_stride = rows_;
    const std::int64_t blocks = ceil_div(shape_.pairs(), config.warps);
    add_moe_step<MoeSavedSlopes>(builder_, config, std::min(blocks, kBlocksAtOnce * device_.multiprocessors), params);
    builder_.append_schedule("slopes of saved sums");
  }

  void add_dweights() {
    device::MoeDweightsConfig config;
    config.type = element_type(p_.dtype);
    config.biased = p_.down_bias != MoeVector::none && !p_.weight_on_input;
    device::MoeDweightsParams params{};
    params.shape = shape_, params.dout.row_stride = shape_.hidden, params.num_terms = terms_;
    const std::int64_t blocks = ceil_div(shape_.pairs(), config.warps);
    add_moe_step<MoeDweights>(builder_, config, std::min(blocks, kBlocksAtOnce * device_.multiprocessors), params);
  }

  void add_dbias(bool of_down) {
    constexpr std::int64_t kLanes = 32;
    device::ExpertDbiasConfig config;
    config.rows_type = portable::number_type_of(p_.dtype);
    config.out_type = portable::number_type_of(operations::dtype_of_vector(of_down ? p_.down_bias : p_.gate_up_bias));
    config.weighs = of_down && !p_.weight_on_input;
    device::ExpertDbiasParams params{};
    params.shape = shape_;
    params.from_stride = params.columns = of_down ? shape_.hidden : rows_;
    params.from_type = config.rows_type, params.out_type = config.out_type;
    params.out_role = of_down ? device::kExpertDdownBias : device::kExpertDgateUpBias;
    params.n_tiles = narrow(ceil_div(params.columns, kLanes));
    const gpu::Extent3 grid{static_cast<std::uint32_t>(std::int64_t{params.n_tiles} * shape_.num_experts)};
    builder_.launch<MoeDbias>(gpu::Family::sm80, config, grid, params, [](const void* call, void* block) {
      portable::bind(*static_cast<const operations::moe::MoeParams*>(call),
                     *static_cast<device::ExpertDbiasParams*>(block));
    });
  }

  void add_sum() {
    device::MoeCombineConfig config;
    config.type = element_type(p_.dtype);
    device::MoeCombineParams params{};
    params.shape = shape_, params.parts.row_stride = shape_.hidden;
    const std::int64_t blocks =
        ceil_div(p_.tokens * (p_.hidden / device::kLaneColumns), std::int64_t{config.threads()});
    add_moe_step<MoeSum>(builder_, config, std::min(blocks, kBlocksAtOnce * device_.multiprocessors), params);
  }

  void add_dw(bool of_down) {
    constexpr std::int32_t kPanel = 8;  // rows of clusters' tiles that pass by all columns before the next ones
    device::MoeDwConfig config;
    config.type = element_type(p_.dtype);
    device::MoeDwParams params{};
    params.rows = of_down ? shape_.hidden : rows_, params.columns = of_down ? shape_.intermediate : shape_.hidden;
    params.num_experts = shape_.num_experts, params.of_down = of_down ? 1 : 0;
    params.grid = {narrow(ceil_div(params.rows, device::MoeDwConfig::kBlockM * config.cluster)),
                   narrow(ceil_div(params.columns, config.block_n)), kPanel, 0};
    gpu::Launch& launch = add_moe_step<MoeDw>(builder_, config, clusters_of(config.cluster) * config.cluster, params);
    launch.cluster.x = static_cast<std::uint32_t>(config.cluster);
    add_moe_maps(of_down, config, p_.dtype, launch);
    builder_.append_schedule(concat("weights ", device::MoeDwConfig::kBlockM, " x ", config.block_n));
  }

  /// Products at 690 of an H200's 989 TFLOP/s, of rows that each expert has 48 of for nothing; rows that pass by
  /// memory; and what a launch takes.
  [[nodiscard]] double estimated_us(std::size_t steps) const {
    constexpr double kOfMemory = 0.8, kOfPeak = 0.64, kWgmma = 2.0, kStepUs = 4.0, kElementBytes = 2.0, kWasted = 48.0;
    const double bytes_a_us = kOfMemory * device_.memory_gigabytes_per_second * 1e3;
    const double flops_a_us =
        kOfPeak * kWgmma * 2.0 * device_.matrix_rate * device_.gigahertz * device_.multiprocessors * 1e3;
    const double pairs = static_cast<double>(shape_.pairs());
    const double wasted = kWasted * std::min(static_cast<double>(p_.num_experts), pairs);
    const double columns = 4.0 * static_cast<double>(p_.hidden) + 2.0 * static_cast<double>(p_.intermediate) +
                           (p_.save_gate_up ? static_cast<double>(rows_) : 0.0);
    const double products = operations::moe::flops(p_) / flops_a_us * (pairs + wasted) / pairs;
    return kStepUs * static_cast<double>(steps) + std::max(products, operations::moe::bytes_moved(p_) / bytes_a_us) +
           pairs * columns * kElementBytes / bytes_a_us;
  }

  const std::int32_t rows_, terms_;  // of gate_up; of the gradient of a row's weight, one of each tile across
};

}  // namespace

gpu::Outcome lower_moe_backward(const MoeProblem& problem, const core::DeviceDescription& device) {
  if (std::string reason = backward_refusal_of(problem); !reason.empty()) return {{}, std::move(reason)};
  return {MoeBackwardLowerer(problem, device).lower(), {}};
}

}  // namespace tilewise::backends::hopper
