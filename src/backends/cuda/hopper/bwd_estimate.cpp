// The kernel takes as long as the longest of: its blocks of keys one after the other on each multiprocessor; the
// longest of them alone; and the way of its tensors to memory and back. Before and after it, memory alone counts.
#include "backends/cuda/hopper/bwd_estimate.hpp"

#include <algorithm>
#include <cmath>

#include "backends/cuda/hopper/bwd_schedule.hpp"
#include "backends/portable/attention/estimate.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "backends/portable/traits.hpp"
#include "core/ceil_div.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends::hopper {
namespace {

using portable::f;

constexpr double kBwdStartUs = 4.0, kBlockUs = 5.0;  // of the launch, and of a block beside its tiles of queries
constexpr double kBwdOfPeak = 0.71;                  // the products' rate, of wgmma's peak
constexpr double kOfPeakSharing = 0.51;  // of two warpgroups with the same keys: dq's sums are what takes long
constexpr double kOfPeakOwnDq = 0.64;    // of those that multiply dq, too
constexpr double kBwdWgmma = 2.0;        // times mma.sync's rate, which matrix_rate is
constexpr double kBwdScore = 170.0;      // a score's exponential and its neighbours, in flops
constexpr double kBwdDropout = 500.0;    // 0.74 of the plain rate at head_dim 128, 0.63 at 64
// The forward pass's, which has the same instructions for a score: not measured in this one.
constexpr double kBwdSoftcap = 190.0, kBwdBias = 230.0, kBwdOwnBias = 1000.0, kBwdFunction = 400.0;
constexpr double kBwdOfMemoryRate = 0.7;
constexpr double kHalfBytes = 2.0, kFloatBytes = 4.0;

double gradients_us(const Problem& p, const device::HopperBwdConfig& c, std::int64_t splits,
                    const core::DeviceDescription& device) {
  const operations::attention::Extent extent = operations::attention::typical_extent(p);
  const double group = f(portable::group_of(p) / head_shares(p, c, device));
  const double bias = c.bias_type == device::kBiasNone ? 0.0 : c.bias_boxes ? kBwdBias : kBwdOwnBias;
  const double function = p.score_mod.empty() ? 0.0 : kBwdFunction;
  const double score = kBwdScore + c.softcap * kBwdSoftcap + c.dropout * kBwdDropout + bias + function;
  const double flops = f(c.block_m) * c.block_n() * (6.0 * c.head_dim + 4.0 * c.head_dim_v + score);
  const double of_peak = c.shares_keys ? kOfPeakSharing : c.own_dq ? kOfPeakOwnDq : kBwdOfPeak;
  const double step_us = flops / (of_peak * kBwdWgmma * 2.0 * device.matrix_rate * device.gigahertz * 1e3);
  const double all = f(key_blocks(p, c, device));
  const double longest = f(p.batch_size) * f(p.seqlen_k);
  const double parts = f(splits);
  const double blocks = parts * all * (longest > 0.0 ? std::min(1.0, extent.total_k / longest) : 1.0);
  const double of_part = group / parts;
  const double most = std::ceil(operations::attention::most_queries_seen(p, c.block_n()) / c.block_m) * of_part;
  const double seen =
      std::min(most, std::max(1.0, operations::attention::queries_seen(p, c.block_n()) / c.block_m) * of_part);
  const double rounds = std::max(1.0, blocks / device.multiprocessors);
  const bool even = seen >= most;  // then the last round takes as long as the others
  const double busy_us = (even ? std::ceil(rounds) : rounds) * (seen * step_us + kBlockUs);
  const double alone_us = most * step_us + kBlockUs;
  const double rows_q = extent.total_q * f(p.num_heads_q), rows_k = extent.total_k * f(p.num_heads_k);
  const double bytes =
      (kHalfBytes * (rows_q + 2.0 * rows_k)) * f(p.head_dim + p.head_dim_v) + kFloatBytes * rows_q * c.head_dim;
  const double memory_us = bytes / (kBwdOfMemoryRate * device.memory_gigabytes_per_second * 1e3);
  return kBwdStartUs + std::max({busy_us, alone_us, memory_us});
}

}  // namespace

double backward_us(const Problem& p, const device::HopperBwdConfig& c, std::int64_t splits,
                   const core::DeviceDescription& device) {
  const portable::DeviceTraits traits = portable::traits_of(device, gpu::Family::sm80);
  const portable::Estimator around(p, traits);
  // Who has no tile of keys left rounds, while the last ones are worked on.
  const double launch_us = c.rounds ? 0.0 : portable::Estimator::kLaunchUs;
  const double after_us = p.dq && !c.last_rounds ? launch_us + around.convert_dq_us() : 0.0;
  const double sink_us = p.dsink ? portable::Estimator::kLaunchUs + around.dsink_us() : 0.0;
  const double sums_us = splits > 1 ? portable::Estimator::kLaunchUs + around.convert_dkdv_us(splits) : 0.0;
  double dbias_us = 0.0;
  if (p.dbias) {
    const device::BwdDbiasConfig dbias = portable::bwd_dbias_config(p, traits);
    dbias_us = portable::Estimator::kLaunchUs + around.dbias_us(dbias, portable::dbias_blocks(p, dbias));
  }
  return portable::Estimator::kLaunchUs + around.preprocess_us(true) + gradients_us(p, c, splits, device) + sums_us +
         after_us + dbias_us + sink_us;
}

}  // namespace tilewise::backends::hopper
