// Which kernels an expert layer takes, and what they are told of it; see moe.hpp.
#include "backends/cuda/hopper/moe.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "backends/contiguous_call.hpp"
#include "backends/cuda/hopper/moe_backward.hpp"
#include "backends/cuda/hopper/moe_kernels.hpp"
#include "backends/cuda/hopper/moe_maps.hpp"
#include "backends/cuda/hopper/moe_steps.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, core::concat;

constexpr std::int64_t kRowUnit = 8, kRowUnitBits = 128;  // of 16 bytes that rows are moved by: elements, and bits
constexpr std::int64_t kMostHeldExperts = 1024, kMostSortedExperts = 256;
constexpr std::int64_t kMostColumns = std::int64_t{1} << 24, kMostPairs = std::int64_t{1} << 28;
constexpr std::int64_t kScaledBlock = 128;                            // elements of a scale of rows in fp8
constexpr std::int64_t kIdsOfHeld = 32;                               // of a warp's lanes, one each
constexpr std::int32_t kStageBytes = 128, kSharedBytes = 225 * 1024;  // of a row of quantised weights; without barriers
/// Tokens of an expert, on average, from which products bound a layer: it streams weights below.
constexpr std::int64_t kManyRows = 48;

/// scaled: rows in fp8, by products of their own.
enum class Way { held, sorted, gathered, scaled };

/// How the kernel for few rows has weights of a format; the features name all of them.
device::MoeWeights weights_of(const BlockFormat& format) {
  if (!format.defined()) return device::kMoeWeightsAsRows;
  if (format.element == DType::fp8_e4m3) return device::kMoeFp8Blocks;
  return format.global ? device::kMoeNvfp4 : device::kMoeMxfp4;
}

/// Where ids are held, all of the call's are: so many of a lane, of so few tokens.
struct HeldIds {
  std::int32_t tokens, ids;
};
constexpr HeldIds kHeld[] = {{8, 1}, {16, 4}};

/// Widening mxfp4 takes so much longer than the sort that more columns of a tile are worth it from 9 tokens on.
const HeldIds* held_ids_of(const MoeProblem& p) {
  const std::int32_t most = weights_of(p.w_format) == device::kMoeMxfp4 ? 8 : 16;
  const auto* const found = std::ranges::find_if(kHeld, [&](const HeldIds& held) {
    return held.tokens <= most && p.tokens <= held.tokens && p.tokens * p.top_k <= kIdsOfHeld * held.ids;
  });
  return found == std::end(kHeld) ? nullptr : found;
}

Way way_of(const MoeProblem& p) {
  if (p.x_format.defined()) return Way::scaled;
  if (p.save_gate_up) return Way::gathered;
  if (held_ids_of(p) != nullptr) return Way::held;
  return p.tokens * p.top_k <= kManyRows * p.num_experts ? Way::sorted : Way::gathered;
}

/// Rows in 1 x 128 and weights in 128 x 128, or rows that are not quantised.
std::string refusal_of_formats(const MoeProblem& p) {
  constexpr std::int64_t kBlock = 128, kSharing = 64;  // values whose gates share a scale in a tile
  const auto has_blocks = [](const BlockFormat& f, std::int64_t rows) {
    return f.element == DType::fp8_e4m3 && f.scale == DType::f32 && f.block_rows == rows && f.block_columns == kBlock;
  };
  if (p.w_format.element == DType::fp8_e4m3 && !has_blocks(p.w_format, kBlock)) {
    return concat("weights of fp8 must be fp8_128x128 (got ", to_string(p.w_format), ")");
  }
  if (!p.x_format.defined() && !p.h_format.defined()) return {};
  if (!has_blocks(p.x_format, 1) || !has_blocks(p.h_format, 1) || !has_blocks(p.w_format, kBlock)) {
    return concat("x_format, h_format and w_format must be fp8_1x128, fp8_1x128 and fp8_128x128 (got ",
                  to_string(p.x_format), ", ", to_string(p.h_format), " and ", to_string(p.w_format), ")");
  }
  if (p.gate == MoeGate::none) return "there must be a gate with x_format=fp8_1x128 (got gate=none)";
  if (p.intermediate % kSharing != 0) {
    return concat("intermediate must be a multiple of ", kSharing, " with x_format=fp8_1x128 (got ", p.intermediate,
                  ")");
  }
  if (p.out_dtype != DType::bf16) {
    return concat("out must be bf16 with x_format=fp8_1x128 (got ", to_string(p.out_dtype), ")");
  }
  return {};
}

std::string refusal_of(const MoeProblem& p) {
  if (p.unaligned) {
    return concat("every row of ",
                  p.pass == MoePass::moe ? "x, out, gate_up and down" : "x, dout, weights and gradients",
                  " must start on 16 bytes (got one that does not)");
  }
  if (std::string reason = refusal_of_formats(p); !reason.empty()) return reason;
  const bool quantised = p.w_format.defined();
  const std::int64_t unit =
      quantised ? kRowUnitBits / static_cast<std::int64_t>(bits_of(p.w_format.element)) : kRowUnit;
  const auto refuse_columns = [&](std::string_view name, std::int64_t size) -> std::string {
    if (size % unit != 0) {
      return concat(name, " must be a multiple of ", unit, quantised ? " with w_format=" : "",
                    quantised ? to_string(p.w_format) : "", " (got ", size, ")");
    }
    if (size > kMostColumns) return concat(name, " must be <= 2^24 (got ", size, ")");
    return {};
  };
  if (std::string reason = refuse_columns("hidden", p.hidden); !reason.empty()) return reason;
  if (std::string reason = refuse_columns("intermediate", p.intermediate); !reason.empty()) return reason;
  if (p.intermediate == 0) return "intermediate must be > 0 (got 0)";
  if (p.num_experts == 0) return "num_experts must be > 0 (got 0)";
  if (p.top_k == 0) return "top_k must be > 0 (got 0)";
  if (p.tokens > kMostPairs / p.top_k) {
    return concat("tokens * top_k must be <= 2^28 (got ", p.tokens, " * ", p.top_k, ")");
  }
  if (p.save_gate_up && quantised)
    return concat("w_format must be none with save_gate_up (got ", to_string(p.w_format), ")");
  if (p.save_gate_up && p.hidden == 0) return "hidden must be > 0 with save_gate_up (got 0)";
  if (quantised && way_of(p) == Way::gathered) {
    return concat("tokens * top_k must be <= ", kManyRows, " * num_experts with w_format=", to_string(p.w_format),
                  " and without x_format (got ", p.tokens * p.top_k, ")");
  }
  const std::int64_t most = way_of(p) == Way::held ? kMostHeldExperts : kMostSortedExperts;
  if (p.num_experts > most) {
    return concat("num_experts must be <= ", most, " with tokens=", p.tokens, " (got ", p.num_experts, ")");
  }
  // The least that a tile has: 64 rows of weights, of 32 intermediate values, and eight rows of an expert.
  const std::int64_t groups = std::min(p.tokens * p.top_k, p.tokens * p.top_k / kRowUnit + p.num_experts);
  const std::int64_t tiles = ceil_div(p.hidden, std::int64_t{64}) + ceil_div(p.intermediate, std::int64_t{32});
  if (groups > kMostTiles / tiles) {
    return concat("tiles of experts' rows and weights must be <= 2^30 (got ", groups, " * ", tiles, ")");
  }
  return {};
}

template <typename Config>
Config config_of(const MoeProblem& p) {
  Config config;
  config.type = element_type(p.dtype);
  set_activation(p, config);
  config.held_experts = experts_of_lane(p);
  return config;
}

/// A lane that waits for weights has 200 KiB on their way: stages are as many as there is room for.
device::MoeDecodeConfig decode_config(const MoeProblem& p) {
  auto config = config_of<device::MoeDecodeConfig>(p);
  config.depth = 64;
  if (const HeldIds* held = held_ids_of(p)) {
    config.held_ids = held->ids, config.block_n = held->tokens;
    config.consumers = 2, config.stages = 12;
    if (held->tokens <= 8) config.depth = 128, config.stages = 6;
  } else {
    config.held_ids = 0, config.block_n = 64, config.consumers = 2, config.stages = 9;
  }
  return config;
}

/// Warpgroups that widen mxfp4 weights of few tokens. Three are a seventh slower than two with tiles that are half as
/// high again, and better where tiles are many, or all multiprocessors at once have all of them.
std::int32_t warpgroups_that_widen(const MoeProblem& p, std::int64_t multiprocessors) {
  const std::int64_t experts = std::min(p.num_experts, p.tokens * p.top_k);
  const auto turns = [&](std::int64_t rows, std::int32_t warpgroups) {
    return static_cast<double>(ceil_div(experts * ceil_div(rows, std::int64_t{64} * warpgroups), multiprocessors));
  };
  const auto time = [&](std::int32_t warpgroups) {
    const std::int64_t up = p.gate == MoeGate::none ? p.intermediate : 2 * p.intermediate;
    return turns(up, warpgroups) * static_cast<double>(p.hidden) +
           turns(p.hidden, warpgroups) * static_cast<double>(p.intermediate);
  };
  constexpr double kSlower = 1.15;
  return kSlower * time(3) < time(2) ? 3 : 2;
}

/// Windows of a row's scales on their way: higher and wider tiles leave room for fewer.
std::int32_t scale_windows_of(const device::MoeDecodeConfig& config) {
  if (config.weights == device::kMoeFp8Blocks) return 3;
  if (config.weights == device::kMoeNvfp4) return 6;
  return config.consumers == 2 ? 4 : config.block_n <= 8 ? 3 : 2;
}

/// Of quantised weights: a stage has more elements, which two or three warpgroups widen.
device::MoeDecodeConfig quantised_config(const MoeProblem& p, std::int64_t multiprocessors) {
  auto config = config_of<device::MoeDecodeConfig>(p);
  config.weights = weights_of(p.w_format);
  config.depth = kStageBytes * config.elements_of_byte(), config.consumers = 2;
  if (const HeldIds* held = held_ids_of(p)) {
    config.held_ids = held->ids, config.block_n = held->tokens;
  } else {
    config.held_ids = 0, config.block_n = 32;
  }
  if (config.weights == device::kMoeMxfp4)
    config.consumers = config.held_ids != 0 ? warpgroups_that_widen(p, multiprocessors) : 3;
  const std::int32_t rows = 2 * config.block_n * config.depth, stage = kStageBytes * config.block_m() + rows;
  config.scale_windows = scale_windows_of(config);
  config.stages = (kSharedBytes - config.all_scale_bytes()) / stage;
  return config;
}

class MoeForwardLowerer : MoeLowerer {
 public:
  using MoeLowerer::MoeLowerer;

  gpu::Lowering lower() && {
    if (p_.tokens > 0 && p_.hidden > 0) add_steps();
    gpu::Lowering lowering = builder_.finish();
    lowering.estimated_us = estimated_us();
    return lowering;
  }

 private:
  void add_steps() {
    const Way way = way_of(p_);
    if (way != Way::held) add_moe_sort(builder_, p_);
    if (way == Way::gathered) {
      add_moe_gather<MoeGather>(builder_, shape_, device_.multiprocessors, saved_columns());
      builder_.append_schedule("rows gathered");
      add_layer();
    } else if (way == Way::scaled) {
      device::MoeShape halves = shape_;  // rows of bytes as such of twice as large elements
      halves.hidden /= 2;
      add_moe_gather<MoeGather>(builder_, halves, device_.multiprocessors);
      builder_.append_schedule("rows gathered");
      add_scaled_products();
      add_combine();
    } else {
      add_decode();
    }
  }

  /// Both, one after the other, in the fp8 of rows and weights.
  void add_scaled_products() {
    const auto columns_of = [](std::int64_t size) { return static_cast<std::int32_t>(ceil_div(size, kScaledBlock)); };
    auto config = config_of<device::MoeScaledConfig>(p_);
    device::MoeScaledParams params{};
    begin(params);
    const device::RowScales values{nullptr, columns_of(p_.intermediate), 1, shape_.pairs(),
                                   columns_of(p_.intermediate)};
    params.row_scales.rows = shape_.tokens, params.row_scales.columns = columns_of(p_.hidden);
    params.value_scales = values;
    params.weight_scales.columns = columns_of(p_.hidden);
    params.out.row_stride = p_.intermediate / 2;
    add_scaled_product(config, params);
    // The second one activates nothing.
    config.activation = device::MoeActivationConfig{}.activation, config.clamp = device::MoeActivationConfig{}.clamp;
    config.down = 1;
    params.row_scales = values, params.value_scales = {};
    params.weight_scales.columns = columns_of(p_.intermediate);
    params.out.row_stride = p_.hidden;
    add_scaled_product(config, params);
    builder_.append_schedule("two products of tiles of up to 128 rows by 256 weights' rows");
  }
  void add_scaled_product(const device::MoeScaledConfig& config, const device::MoeScaledParams& params) {
    const std::int64_t clusters = std::max(device_.multiprocessors / config.cluster, 1);
    gpu::Launch& launch = add_moe_step<MoeScaledProduct>(builder_, config, clusters * config.cluster, params);
    launch.cluster.x = static_cast<std::uint32_t>(config.cluster);
    add_moe_maps(config, launch);
  }
  void add_combine() {
    constexpr std::int64_t kColumns = 8;  // of a thread
    const device::MoeCombineConfig config;
    device::MoeCombineParams params{};
    params.shape = shape_, params.parts.row_stride = p_.hidden;
    const std::int64_t runs = p_.tokens * (p_.hidden / kColumns);
    add_moe_step<MoeCombine>(builder_, config,
                             blocks_of_rows(ceil_div(runs, std::int64_t{config.threads()}), device_.multiprocessors),
                             params);
    builder_.append_schedule("parts summed");
  }

  [[nodiscard]] std::int64_t saved_columns() const { return p_.save_gate_up ? operations::moe::gate_up_rows(p_) : 0; }

  void add_layer() {
    auto config = config_of<device::MoeLayerConfig>(p_);
    config.saves = p_.save_gate_up;
    device::MoeLayerParams params{};
    begin(params);
    params.saved_columns = static_cast<std::int32_t>(saved_columns());
    const std::int64_t clusters = std::max(device_.multiprocessors / config.cluster, 1);
    gpu::Launch& launch = add_moe_step<MoeLayer>(builder_, config, clusters * config.cluster, params);
    launch.cluster.x = static_cast<std::uint32_t>(config.cluster);
    add_moe_maps(config, p_.dtype, launch);
    builder_.append_schedule(concat("tiles of 128 weights' rows by up to ", config.block_n, " of an expert's"));
    if (p_.save_gate_up) builder_.append_schedule("sums saved");
  }

  void add_decode() {
    const device::MoeDecodeConfig config =
        p_.w_format.defined() ? quantised_config(p_, device_.multiprocessors) : decode_config(p_);
    device::MoeDecodeParams params{};
    begin(params);
    if (config.quantised()) set_scale_columns(params);
    add_moe_maps(config, p_.dtype, add_moe_step<MoeDecode>(builder_, config, device_.multiprocessors, params));
    builder_.append_schedule(
        concat("weights streamed, ", config.block_m(), " rows by up to ", config.block_n, " of an expert's"));
  }

  template <typename Params>
  void set_scale_columns(Params& params) const {
    params.gate_up_scales.columns = static_cast<std::int32_t>(ceil_div(p_.hidden, p_.w_format.block_columns));
    params.down_scales.columns = static_cast<std::int32_t>(ceil_div(p_.intermediate, p_.w_format.block_columns));
  }

  template <typename Params>
  void begin(Params& params) const {
    params.shape = shape_;
    if constexpr (requires { params.h; }) {
      params.h.row_stride = p_.intermediate, params.parts.row_stride = p_.hidden;
    }
    params.numbers = numbers_of(p_);
  }

  /// The floor of weights that are read once, at 4.2 of the 4.8 TB/s of an H200, and of products, at 780 of its 989
  /// TFLOP/s, in fp8 1.35 times as many; rows in the workspace, which go there and back twice; and what a launch takes.
  [[nodiscard]] double estimated_us() const {
    constexpr double kOfMemory = 0.875, kOfPeak = 0.79, kWgmma = 2.0;  // times mma.sync's rate, which matrix_rate is
    constexpr double kOverFloor = 1.1, kStartUs = 8.0, kStepUs = 4.0, kElementBytes = 2.0, kWays = 4.0;
    constexpr double kFp8Rate = 1.35;
    const double bytes_a_us = kOfMemory * device_.memory_gigabytes_per_second * 1e3;
    const double flops_a_us =
        kOfPeak * kWgmma * 2.0 * device_.matrix_rate * device_.gigahertz * device_.multiprocessors * 1e3;
    const double pairs = static_cast<double>(p_.tokens) * static_cast<double>(p_.top_k);
    const double bytes = operations::moe::bytes_moved(p_), products = operations::moe::flops(p_);
    const Way way = way_of(p_);
    const bool scaled = way == Way::scaled;
    const double weights = std::max(bytes / bytes_a_us, scaled ? 0.0 : widened_us(bytes));
    const double rows = kWays * pairs * static_cast<double>(p_.hidden) * kElementBytes / bytes_a_us;
    const double more_steps = way == Way::held ? 0.0 : way == Way::sorted ? 1.0 : scaled ? 4.0 : 2.0;
    const double multiply = scaled ? scaled_waste(pairs) * products / (kFp8Rate * flops_a_us) : products / flops_a_us;
    return kStartUs + kStepUs * more_steps + kOverFloor * (std::max(weights, multiply) + rows);
  }

  /// What a layer takes by what its rows alone would: an expert's last tile, which half of the experts have, costs as
  /// much as a whole one.
  [[nodiscard]] double scaled_waste(double pairs) const {
    constexpr double kLastTile = 64.0;
    return 1.0 + kLastTile * std::min(static_cast<double>(p_.num_experts), pairs) / std::max(pairs, 1.0);
  }

  /// Of weights that are widened: 2.0 to 3.7 of them in a picosecond on an H200, by how many rows an expert has.
  [[nodiscard]] double widened_us(double bytes) const {
    constexpr double kElementsOfUs = 3.0e6, kMultiprocessors = 132.0;
    if (!p_.w_format.defined()) return 0.0;
    const double elements = bytes * 8.0 / static_cast<double>(bits_of(p_.w_format.element));
    return elements / (kElementsOfUs * device_.multiprocessors / kMultiprocessors);
  }
};

}  // namespace

operations::moe::FeatureSet moe_features() {
  using enum operations::moe::Feature;
  return {forward,         backward,     bf16,         f16,         x_quantised,   h_quantised, fp8_1x128, fp8_128x128,
          mxfp4,           nvfp4,        no_gate,      interleaved, activation,    swiglu_oai,  clamp,     bias,
          weight_on_input, first_expert, save_gate_up, dx,          dtopk_weights, dweights,    dbias};
}

gpu::Outcome lower(const MoeProblem& problem, const core::DeviceDescription& device) {
  if (std::string reason = refusal_of(problem); !reason.empty()) return {{}, std::move(reason)};
  if (problem.pass == MoePass::moe_backward) return lower_moe_backward(problem, device);
  return {MoeForwardLowerer(problem, device).lower(), {}};
}

core::Verdict MoeImplementation::judge(const MoeProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, gpu::Family::sm90, find_runtime_, [&] { return lower(problem, device); });
}

gpu::DescribedCall MoeImplementation::contiguous_call(const core::ProblemView& problem) const {
  return backends::contiguous_call<operations::Moe>(problem.as<MoeProblem>());
}

}  // namespace tilewise::backends::hopper
