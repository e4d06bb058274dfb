// Which kernels a linear layer takes, and what they are told of it; see linear.hpp.
#include "backends/cuda/hopper/linear.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "backends/contiguous_call.hpp"
#include "backends/cuda/hopper/linear_kernels.hpp"
#include "backends/portable/traits.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "gpu/lowered_kernel.hpp"
#include "operations/activation.hpp"

namespace tilewise::backends::hopper {
namespace {

using core::ceil_div, core::concat;
using operations::linear::LinearParams;

constexpr std::int64_t kOutUnit = 8;  // elements of the 16 bytes that rows of out are stored by
constexpr std::int64_t kMostSize = std::int64_t{1} << 28, kMostLinearExperts = std::int64_t{1} << 20;

bool is_grouped(const LinearProblem& p) { return p.groups != LinearGroups::none; }

/// Rows of 1 x 128 by blocks of 128 x 128, or neither.
std::string refusal_of_formats(const LinearProblem& p) {
  const auto has_blocks = [](const BlockFormat& f, std::int64_t rows) {
    return f.element == DType::fp8_e4m3 && f.block_rows == rows && f.block_columns == kScaleBlock;
  };
  if (!p.x_format.defined() && !p.w_format.defined()) return {};
  if (has_blocks(p.x_format, 1) && has_blocks(p.w_format, kScaleBlock)) return {};
  return concat("quantised rows and weights must be fp8_1x128 by fp8_128x128 (got ",
                p.x_format.defined() ? to_string(p.x_format) : "none", " by ", to_string(p.w_format), ")");
}

std::string refusal_of(const LinearProblem& p) {
  if (p.unaligned) return "every row of x, w and out must start on 16 bytes (got one that does not)";
  if (std::string reason = refusal_of_formats(p); !reason.empty()) return reason;
  if (size_of(p.out_dtype) != 2) {
    return concat("out must be bf16 or f16 (got ", to_string(p.out_dtype), ")");
  }
  if (p.x_format.defined() && p.w_transposed) return "k of quantised weights must be contiguous (got n)";
  if (p.n % kOutUnit != 0) return concat("n must be a multiple of ", kOutUnit, " (got ", p.n, ")");
  for (const auto& [name, size] : {std::pair{"tokens", p.tokens}, std::pair{"n", p.n}, std::pair{"k", p.k}}) {
    if (size > kMostSize) return concat(name, " must be <= 2^28 (got ", size, ")");
  }
  if (p.k == 0) return "k must be > 0 (got 0)";
  if (p.num_experts == 0 || p.num_experts > kMostLinearExperts) {
    return concat("num_experts must be between 1 and 2^20 (got ", p.num_experts, ")");
  }
  const std::int64_t down = p.tokens / std::int64_t{128} + p.num_experts,
                     across = std::max<std::int64_t>(ceil_div(p.n, std::int64_t{64}), 1);
  if (down > kMostTiles / across) {
    return concat("tiles of rows and weights must be <= 2^30 (got ", down, " * ", across, ")");
  }
  return {};
}

/// What a launch in clusters looks like.
struct Tiling {
  device::GemmConfig config;
  std::int64_t rows, cols;  ///< of clusters' tiles; grouped: at most
  bool swapped = false;     ///< w's rows are M of the product, and x's are N
  double used_rows = 0.0;   ///< of x in a tile, on average

  [[nodiscard]] std::int64_t count() const { return rows * cols; }
};

class LinearLowerer {
 public:
  LinearLowerer(const LinearProblem& problem, const core::DeviceDescription& device)
      : p_(problem),
        device_(device),
        scaled_(problem.x_format.defined()),
        builder_(portable::traits_of(device, gpu::Family::sm80).overlaps_steps) {}

  gpu::Lowering lower() && {
    if (p_.tokens > 0 && p_.n > 0) add_steps();
    gpu::Lowering lowering = builder_.finish();
    lowering.estimated_us = estimated_us_;
    return lowering;
  }

 private:
  void add_steps() {
    if (scaled_ || is_grouped(p_)) add_prepare();
    const Tiling tiling = best_tiling();
    if (scaled_) {
      device::ScaledGemmParams params{};
      params.w_scale_stride = scale_stride();
      params.w_scale_expert_stride = ceil_div(p_.n, std::int64_t{kScaleBlock}) * scale_stride();
      add_product<ScaledGemm>(tiling, params.gemm, params);
    } else if (tiling.swapped) {
      device::GroupedGemmParams params{};
      add_product<GroupedGemm>(tiling, params.gemm, params);
    } else {
      device::GemmParams params{};
      add_product<Gemm>(tiling, params, params);
    }
  }

  template <typename Kernel, typename Params>
  gpu::Launch& add(const typename Kernel::Config& config, std::int64_t blocks, const Params& params) {
    const auto bind_params = [](const void* call, void* block) {
      bind(*static_cast<const LinearParams*>(call), *static_cast<Params*>(block));
    };
    const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
    return *builder_.launch<Kernel>(gpu::Family::sm90, config, grid, params, bind_params);
  }

  void add_prepare() {
    device::GemmPrepareConfig config;
    config.grouped = is_grouped(p_), config.scaled = scaled_;
    device::GemmPrepareParams params{};
    params.num_experts = narrow(p_.num_experts), params.m = narrow(p_.tokens);
    if (is_grouped(p_)) {
      const bool wide = p_.groups == LinearGroups::offsets_i64 || p_.groups == LinearGroups::counts_i64;
      params.groups.bytes = wide ? 8 : 4;
      params.groups.counted = operations::linear::is_counted(p_);
    }
    if (scaled_) {
      params.m_padded = narrow(padded_rows(p_.tokens)), params.w_stride = narrow(scale_stride());
      params.k_blocks = narrow(ceil_div(p_.k, std::int64_t{kScaleBlock}));
      params.n_blocks = narrow(ceil_div(p_.n, std::int64_t{kScaleBlock}));
      params.x_scale.e8m0 = p_.x_format.scale == DType::fp8_e8m0,
      params.w_scale.e8m0 = p_.w_format.scale == DType::fp8_e8m0;
    }
    const std::int64_t scales = std::int64_t{params.k_blocks} * params.m_padded +
                                params.num_experts * (std::int64_t{params.n_blocks} * params.w_stride);
    const std::int64_t blocks =
        std::clamp<std::int64_t>(ceil_div(scales, std::int64_t{config.threads()}), 1, 4 * device_.multiprocessors);
    add<GemmPrepare>(config, blocks, params);
    builder_.append_schedule(scaled_ ? "scales turned" : "rows of experts found");
  }

  template <typename Kernel, typename Params>
  void add_product(const Tiling& tiling, device::GemmParams& gemm, const Params& params) {
    constexpr std::int32_t kPanel = 8;  // rows of clusters' tiles that pass by all columns before the next ones
    const device::GemmConfig& c = tiling.config;
    gemm.grid = {narrow(tiling.rows), narrow(tiling.cols), kPanel, 0};
    gemm.steps = narrow(ceil_div(p_.k, std::int64_t{c.block_k()}));
    gemm.num_experts = is_grouped(p_) ? narrow(p_.num_experts) : 0;
    gemm.m = narrow(p_.tokens), gemm.n = narrow(p_.n);
    const std::int64_t clusters =
        std::min<std::int64_t>(tiling.count(), std::max(device_.multiprocessors / c.cluster, 1));
    gpu::Launch& launch = add<Kernel>(c, clusters * c.cluster, params);
    launch.cluster.x = static_cast<std::uint32_t>(c.cluster);
    if (tiling.swapped) {
      add_grouped_maps(c, p_.dtype, p_.out_dtype, launch);
    } else {
      add_linear_maps(c, p_.dtype, p_.out_dtype, scaled_, launch);
    }
    builder_.append_schedule(
        concat("tiles of ", tiling.swapped ? "up to " : "", c.block_m, " rows by ", c.block_n, " of w",
               c.cluster > 1 ? c.shares_x != 0 ? ", two side by side" : ", two below another" : ""));
  }

  [[nodiscard]] device::GemmConfig config(std::int32_t block_m, std::int32_t block_n, std::int32_t stages,
                                          std::int32_t store_buffers, std::int32_t cluster, bool shares_x) const {
    device::GemmConfig c;
    c.type = scaled_ ? device::kE4m3 : p_.dtype == DType::f16 ? device::kF16 : device::kBf16;
    c.out_type = p_.out_dtype == DType::f16 ? device::kF16 : device::kBf16;
    c.block_m = block_m, c.block_n = block_n, c.stages = stages, c.store_buffers = store_buffers;
    c.cluster = cluster, c.shares_x = shares_x, c.w_mn_major = p_.w_transposed;
    c.grouped = is_grouped(p_), c.biases = p_.bias != LinearBias::none;
    c.activation = static_cast<std::int32_t>(operations::kind_of(p_.activation));
    return c;
  }

  /// The tiles that are done soonest: large ones share most, small ones keep more multiprocessors busy.
  [[nodiscard]] Tiling best_tiling() {
    Tiling best{};
    const auto consider = [&](const Tiling& tiling) {
      const double us = microseconds_of(tiling);
      if (best.rows == 0 || us < estimated_us_) best = tiling, estimated_us_ = us;
    };
    if (is_grouped(p_) && !scaled_ && !p_.w_transposed && p_.num_experts <= device::kMostGroupedExperts) {
      consider(swapped_tiling());
    }
    for (device::GemmConfig c : {large_tiles(), config(128, 128, 6, 1, 1, false), config(128, 64, 8, 1, 1, false)}) {
      // Two sums in turn where a warpgroup has the registers.
      if (scaled_ && c.row_blocks() == 1) c.parts = 2;
      consider(tiling_of(c));
    }
    return best;
  }
  /// Rows by expert end anywhere: their tiles are lower, and share rows of x.
  [[nodiscard]] device::GemmConfig large_tiles() const {
    if (scaled_) return is_grouped(p_) ? config(128, 128, 6, 1, 2, true) : config(256, 128, 4, 1, 2, true);
    return config(128, 256, 4, 2, 2, is_grouped(p_));
  }
  [[nodiscard]] Tiling tiling_of(const device::GemmConfig& c) const {
    const auto high = std::int64_t{c.cluster_m()};
    // No more groups than rows have any; each has one tile that is not whole.
    const std::int64_t rows =
        is_grouped(p_) ? p_.tokens / high + std::min(p_.num_experts, p_.tokens) : ceil_div(p_.tokens, high);
    return {c, rows, ceil_div(p_.n, std::int64_t{c.cluster_n()}), false, static_cast<double>(c.block_m)};
  }
  /// Tiles with as many rows as an expert has. Lower ones leave room for more stages, which few rows need: weights come
  /// from memory then.
  [[nodiscard]] Tiling swapped_tiling() const {
    struct Shape {
      double rows;  // of an expert, at most on average
      std::int32_t block_m, stages;
    };
    constexpr Shape kShapes[] = {{40.0, 64, 8}, {96.0, 128, 6}, {160.0, 192, 5}};
    constexpr double kHalfStep = 8.0;  // columns of a product that no row has, on average
    const double used = static_cast<double>(std::max<std::int64_t>(std::min(p_.num_experts, p_.tokens), 1));
    const double of_expert = static_cast<double>(p_.tokens) / used;
    const Shape* const found =
        std::ranges::find_if(kShapes, [of_expert](const Shape& shape) { return of_expert <= shape.rows; });
    const Shape shape = found == std::end(kShapes) ? Shape{of_expert, 256, 4} : *found;
    Tiling tiling = tiling_of(config(shape.block_m, 128, shape.stages, 0, 2, true));
    const double groups = std::ceil(of_expert / shape.block_m);
    tiling.swapped = true, tiling.used_rows = std::min(of_expert / groups + kHalfStep, 1.0 * shape.block_m);
    tiling.rows = std::min(tiling.rows, static_cast<std::int64_t>(groups * used));
    return tiling;
  }

  /// Turns of all multiprocessors, in each of which a block multiplies at some part of the matrix unit's peak or waits
  /// for its operands to come from L2 and memory.
  [[nodiscard]] double microseconds_of(const Tiling& tiling) const {
    constexpr double kOfPeak = 0.82, kWgmma = 2.0, kOfMemory = 0.8, kStartUs = 4.0, kTileUs = 0.6,
                     kLoadGigabytes = 55.0;
    const device::GemmConfig& c = tiling.config;
    const double byte_rate = scaled_ ? 2.0 : 1.0;
    const double steps = static_cast<double>(ceil_div(p_.k, std::int64_t{c.block_k()}));
    const double flops_a_us = kOfPeak * kWgmma * byte_rate * 2.0 * device_.matrix_rate * device_.gigahertz * 1e3;
    const double multiply_us = 2.0 * tiling.used_rows * c.block_n * c.block_k() / flops_a_us;
    const double load_us = (tiling.used_rows + c.block_n) * 128.0 / (kLoadGigabytes * 1e3);
    const double turns =
        static_cast<double>(ceil_div(tiling.count(), std::int64_t{std::max(device_.multiprocessors / c.cluster, 1)}));
    const double tiles_us = turns * (kTileUs + steps * std::max(multiply_us, load_us));
    const double bytes_us =
        1e-3 * operations::linear::bytes_moved(p_) / (kOfMemory * device_.memory_gigabytes_per_second);
    const double prepare_us = scaled_ || is_grouped(p_) ? 3.0 : 0.0;
    return kStartUs + prepare_us + std::max(tiles_us, bytes_us);
  }

  /// Scales of w along k, in whole runs of four.
  [[nodiscard]] std::int64_t scale_stride() const { return ceil_div(p_.k, std::int64_t{4 * kScaleBlock}) * 4; }
  static std::int32_t narrow(std::int64_t x) { return static_cast<std::int32_t>(x); }

  const LinearProblem& p_;
  const core::DeviceDescription& device_;
  const bool scaled_;
  gpu::LoweringBuilder builder_;
  double estimated_us_ = 0.0;
};

}  // namespace

operations::linear::FeatureSet linear_features() {
  using enum operations::linear::Feature;
  return {forward,     bf16,    f16,  out_dtype,  x_quantised,  fp8_1x128,      fp8_128x128,
          e8m0_blocks, grouped, bias, activation, w_transposed, batch_invariant};
}

gpu::Outcome lower(const LinearProblem& problem, const core::DeviceDescription& device) {
  if (std::string reason = refusal_of(problem); !reason.empty()) return {{}, std::move(reason)};
  return {LinearLowerer(problem, device).lower(), {}};
}

core::Verdict LinearImplementation::judge(const LinearProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, gpu::Family::sm90, find_runtime_, [&] { return lower(problem, device); });
}

gpu::DescribedCall LinearImplementation::contiguous_call(const core::ProblemView& problem) const {
  return backends::contiguous_call<operations::Linear>(problem.as<LinearProblem>());
}

}  // namespace tilewise::backends::hopper
