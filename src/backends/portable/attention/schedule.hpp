// Configs of the attention kernels: pure functions of the problem and the device.
#pragma once

#include "backends/portable/attention/kernels.hpp"
#include "backends/portable/traits.hpp"
#include "operations/attention/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// What portable kernels honour, for every family.
[[nodiscard]] operations::attention::FeatureSet attention_features();

/// Which lengths and which modifications of scores the kernels of any GPU are specialised on.
void set_score_options(device::ScoreConfig& config, const Problem& problem);

/// Whether rows start on 16 bytes and are whole chunks of 16 bytes.
template <typename AnyProblem>
[[nodiscard]] bool has_vector_rows(const AnyProblem& p) {
  return !p.unaligned && p.head_dim % 8 == 0 && p.head_dim_v % 8 == 0;
}

/// head_dim as kernels see it: the next multiple of 32.
[[nodiscard]] std::int32_t padded_dim(std::int64_t dim);

/// Everything decided but `split`.
[[nodiscard]] device::ForwardConfig forward_config(const Problem& problem, const DeviceTraits& traits);
[[nodiscard]] device::CombineConfig combine_config(const Problem& problem);
/// Blocks of combine for a head of a batch entry.
[[nodiscard]] std::int64_t combine_tiles(const Problem& problem, const device::CombineConfig& config,
                                         std::int64_t splits, gpu::Family family);
[[nodiscard]] device::BwdPreprocessConfig bwd_preprocess_config(const Problem& problem);
[[nodiscard]] device::BwdDqConfig bwd_dq_config(const Problem& problem, const DeviceTraits& traits);
/// wants_dv is unset where dk and dv are two kernels' work.
[[nodiscard]] device::BwdDkdvConfig bwd_dkdv_config(const Problem& problem, const DeviceTraits& traits);
/// Everything decided but `split`.
[[nodiscard]] device::BwdConfig bwd_config(const Problem& problem, const DeviceTraits& traits);
[[nodiscard]] device::BwdConvertDqConfig bwd_convert_dq_config(const Problem& problem, const device::BwdConfig& bwd);
[[nodiscard]] device::BwdConvertDkdvConfig bwd_convert_dkdv_config(const Problem& problem,
                                                                   const device::BwdConfig& bwd);
[[nodiscard]] device::BwdConvertSelectedConfig bwd_convert_selected_config(const Problem& problem);
[[nodiscard]] device::BwdDbiasConfig bwd_dbias_config(const Problem& problem, const DeviceTraits& traits);
/// Patches of dbias, a block each.
[[nodiscard]] device::BwdDtableConfig bwd_dtable_config(const Problem& problem, const DeviceTraits& traits);
[[nodiscard]] std::int64_t dbias_blocks(const Problem& problem, const device::BwdDbiasConfig& config);
[[nodiscard]] device::BwdDsinkConfig bwd_dsink_config(const Problem& problem);

/// Whether a block fits the device's shared memory: the largest head dims don't everywhere.
template <typename Kernel>
[[nodiscard]] bool fits(const typename Kernel::Config& config, const DeviceTraits& traits) {
  return Kernel::shared_bytes(config, traits.family) <= traits.shared_bytes;
}

/// Whether one kernel computes dk and dv, whose waves share their products: where the machine reads tiles
/// both ways, a block fits, and no keys are selected.
[[nodiscard]] bool fuses_gradients(const Problem& problem, const DeviceTraits& traits);

/// Whether that kernel also adds up dq, in no fixed order: where the problem lets it.
[[nodiscard]] bool accumulates_dq(const Problem& problem);

/// Shapes are the same for more.
inline constexpr std::int64_t kManyQueries = 1024;

/// Query heads of a key head.
[[nodiscard]] std::int64_t group_of(const Problem& problem);

/// Blocks that keys are split into for each multiprocessor, at most: more of the smallest.
[[nodiscard]] constexpr int blocks_at_once(const device::ForwardConfig& config) {
  return config.waves == 1 && config.block_n <= 32 ? 4 : 2;
}

}  // namespace tilewise::backends::portable
