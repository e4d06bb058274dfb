// Which kernels a merge problem takes; see lowering.hpp.
#include "backends/portable/merge/lowering.hpp"

#include <algorithm>
#include <cstdint>

#include "backends/portable/alignment.hpp"
#include "backends/portable/merge/kernels.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/merge/rules.hpp"

namespace tilewise::backends::portable {
namespace {

using core::ceil_div;

using operations::merge::MergeParams;

constexpr std::int32_t kWaves = 4;
constexpr double kLaunchUs = 3.5;               // of a kernel that has next to nothing to do (H200)
constexpr double kOfBandwidth = 0.7;            // that rows of a few hundred bytes reach
constexpr double kPartLatencyUs = 0.25;         // of parts that follow one another
constexpr std::int64_t kMostRows = 0x7FFFFFFF;  // kernels divide row numbers in 32 bits

class Lowerer {
 public:
  Lowerer(const MergeProblem& problem, const core::DeviceDescription& device, gpu::Family family)
      : p_(problem), device_(device), family_(family), rows_(operations::merge::rows_of(problem)) {}

  Outcome lower() {
    if (rows_ > kMostRows) {
      return {{}, core::concat("batch_size * seqlen_q * num_heads_q must be <= ", kMostRows, " (got ", rows_, ")")};
    }
    if (p_.pass == MergePass::merge) {
      lower_forward();
    } else {
      lower_backward();
    }
    const device::MergeConfig config = base_config();
    builder_.append_schedule(core::concat(config.lanes_a_row, " lanes a row, ", launches_, " of ",
                                          p_.stacked ? p_.parts : std::min<std::int64_t>(p_.parts, device::kMostParts),
                                          " parts"));
    Outcome outcome{builder_.finish(), {}};
    outcome.lowering.estimated_us = std::max(estimated_us_, kLaunchUs);
    return outcome;
  }

 private:
  [[nodiscard]] device::MergeConfig base_config() const {
    const auto wave = static_cast<std::int32_t>(gpu::lanes(family_));
    const auto chunks = static_cast<std::int32_t>(ceil_div(p_.head_dim_v, device::kMergeCols));
    device::MergeConfig config;
    config.out_type = part_type_of(p_.dtype);
    config.part_type = p_.parts_dtype == PartsDType::mixed ? device::kPartMixed
                                                           : part_type_of(operations::merge::dtype_of(p_.parts_dtype));
    config.lanes_a_row = 1;
    while (config.lanes_a_row < std::min(chunks, wave)) config.lanes_a_row *= 2;
    config.passes = static_cast<std::int32_t>(ceil_div(chunks, config.lanes_a_row));
    config.waves = kWaves;
    config.vector_rows = !p_.unaligned && p_.head_dim_v % device::kMergeCols == 0;
    config.stacked = p_.stacked;
    return config;
  }

  /// Calls visit(range, config) for each launch that walks over the parts.
  template <typename Visit>
  void for_each_range(const Visit& visit) {
    const std::int64_t each = p_.stacked ? p_.parts : device::kMostParts;
    launches_ = ceil_div(p_.parts, each);
    for (std::int64_t first = 0; first < p_.parts; first += each) {
      device::PartRange range{};
      range.first_part = first;
      range.num_parts = std::min(each, p_.parts - first);
      range.stacked = p_.stacked;
      range.resumes = first > 0;
      range.pauses = first + each < p_.parts;
      range.turn = static_cast<std::int32_t>(first / each % 2);
      device::MergeConfig config = base_config();
      config.sink = p_.sink != MergeSink::none && range.pauses == 0;
      config.resumes = range.resumes;
      config.pauses = range.pauses;
      visit(range, config);
    }
  }

  template <typename Kernel>
  void add(const typename Kernel::Config& config, typename Kernel::Params params, std::int64_t blocks, double bytes) {
    params.shape = {p_.batch_size, p_.seqlen_q, p_.num_heads_q, p_.head_dim_v};
    const auto bind_params = [](const void* call, void* block) {
      bind(*static_cast<const MergeParams*>(call), *static_cast<typename Kernel::Params*>(block));
    };
    const gpu::Extent3 grid{static_cast<std::uint32_t>(blocks)};
    if (builder_.launch<Kernel>(family_, config, grid, params, bind_params) == nullptr) return;
    estimated_us_ += kLaunchUs + 1e-3 * bytes / (kOfBandwidth * device_.memory_gigabytes_per_second);
  }

  [[nodiscard]] std::int64_t blocks(const device::MergeConfig& config) const {
    const auto wave = static_cast<std::int32_t>(gpu::lanes(family_));
    return ceil_div(rows_, std::int64_t{config.waves} * (wave / config.lanes_a_row));
  }

  /// Bytes of so many parts, and of out or dout once.
  [[nodiscard]] double bytes_of(std::int64_t parts) const {
    MergeProblem some = p_;
    some.pass = MergePass::merge;
    some.parts = parts;
    return operations::merge::bytes_moved(some);
  }

  void lower_forward() {
    for_each_range([this](const device::PartRange& range, const device::MergeConfig& config) {
      device::MergeForwardParams params{};
      params.range = range;
      params.out_type = part_type_of(p_.dtype);
      add<MergeForward>(config, params, blocks(config), bytes_of(range.num_parts));
      estimated_us_ += kPartLatencyUs * static_cast<double>(range.num_parts);
    });
  }

  void lower_backward() {
    std::int32_t turn = 0;
    for_each_range([&](const device::PartRange& range, const device::MergeConfig& config) {
      device::MergeBwdPreprocessParams params{};
      params.range = range;
      params.out_type = part_type_of(p_.dtype);
      params.parts_of_call = p_.parts;
      turn = range.turn;
      add<MergeBwdPreprocess>(config, params, blocks(config), bytes_of(range.num_parts));
    });
    if (p_.douts || p_.dlses) {
      for_each_range([&](device::PartRange range, device::MergeConfig config) {
        config.sink = config.resumes = config.pauses = 0;  // every launch is like the others
        range.resumes = range.pauses = 0;
        range.turn = turn;
        device::MergeBwdParams params{};
        params.range = range;
        params.out_type = part_type_of(p_.dtype);
        params.parts_of_call = p_.parts;
        add<MergeBwd>(config, params, blocks(config), bytes_of(range.num_parts));
      });
    }
    if (!p_.dsink) return;
    device::MergeBwdDsinkParams params{};
    params.turn = turn;
    add<MergeBwdDsink>({}, params, p_.num_heads_q, 3.0 * sizeof(float) * static_cast<double>(rows_));
  }

  const MergeProblem& p_;
  const core::DeviceDescription& device_;
  gpu::Family family_;
  std::int64_t rows_;
  gpu::LoweringBuilder builder_;
  std::int64_t launches_ = 1;
  double estimated_us_ = 0.0;
};

}  // namespace

operations::merge::FeatureSet Portable<operations::Merge>::features() {
  using enum operations::merge::Feature;
  return {forward, backward, f32, bf16, f16, f32_parts, mixed_parts, packed, stacked, sink, dlse, dsink};
}

Outcome Portable<operations::Merge>::lower(const MergeProblem& problem, const core::DeviceDescription& device,
                                           gpu::Family family) {
  return Lowerer(problem, device, family).lower();
}

bool Portable<operations::Merge>::is_aligned(const MergeParams& call) {
  return rows_start_on_16_bytes(call.out, call.dtype) && rows_start_on_16_bytes(call.dout, call.dtype) &&
         std::ranges::all_of(call.parts, [&call](const operations::merge::Part& part) {
           return rows_start_on_16_bytes(part.out, part.dtype, call.stacked.out) &&
                  rows_start_on_16_bytes(part.dout, part.dtype, call.stacked.dout);
         });
}

double Portable<operations::Merge>::emulated_us(const MergeProblem& problem) {
  constexpr double kCallUs = 1000.0, kPartUs = 5.0, kElementUs = 0.1;
  const double parts = static_cast<double>(operations::merge::rows_of(problem)) * static_cast<double>(problem.parts);
  return kCallUs + parts * (kPartUs + kElementUs * static_cast<double>(problem.head_dim_v));
}

}  // namespace tilewise::backends::portable
