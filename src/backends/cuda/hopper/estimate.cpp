// The kernel takes as long as the longest of: its tiles of queries one after the other on each multiprocessor; the
// longest of them alone; and the way of its tensors to memory and back.
#include "backends/cuda/hopper/estimate.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "backends/cuda/hopper/schedule.hpp"
#include "backends/portable/attention/estimate.hpp"

namespace tilewise::backends::hopper {
namespace {

using portable::f;

constexpr double kStartUs = 6.0, kTileUs = 2.5;  // of the launch, and of a tile of queries beside its keys
constexpr double kLatencyUs = 0.9;               // of a tile of keys, at least
constexpr double kOfPeak = 0.72;                 // the products' rate, of wgmma's peak
constexpr double kWgmma = 2.0;                   // times mma.sync's rate, which matrix_rate is
constexpr double kScore = 48.0;                  // a score's exponential and its neighbours, in flops
constexpr double kSoftcap = 190.0, kDropoutDraw = 480.0, kBias = 230.0, kOwnBias = 1000.0, kAlibi = 160.0;
constexpr double kFunction = 150.0;  // of a few terms, as ALiBi's are; with look-ups of each score twice as much
constexpr double kPartUs = 2.2;      // of keys in parts, beside merging them: fp32 sums stored by every block
constexpr double kOfMemoryRate = 0.7;
constexpr double kNearlyAll = 0.8;  // of the most steps: where the mean tile beside a window has them, most have all
/// What one, two, ... consumer warpgroups reach of that rate: they hide each other's softmax.
constexpr std::array<double, 4> kOfConsumers{0.6, 0.95, 1.0, 1.0};

}  // namespace

Estimator::Estimator(const Problem& p, const core::DeviceDescription& device)
    : p_(p), device_(device), extent_(operations::attention::typical_extent(p)) {}

double Estimator::step_us(const device::HopperForwardConfig& c) const {
  const double bias = c.bias_type == device::kBiasNone ? 0.0 : c.bias_boxes ? kBias : kOwnBias;
  const double function = p_.score_mod.empty() ? 0.0 : kFunction;
  const double modified = function + c.softcap * kSoftcap + c.dropout * kDropoutDraw + c.alibi * kAlibi + bias;
  // Products in fp8 take half the time, what is done for a score takes as long.
  const double flops =
      f(c.block_m()) * c.block_n * (f(c.element_bytes()) * (c.head_dim + c.head_dim_v) + kScore + modified);
  const double share = kOfConsumers[static_cast<std::size_t>(c.consumers() - 1)];
  return flops / (share * kOfPeak * kWgmma * 2.0 * device_.matrix_rate * device_.gigahertz * 1e3);
}

/// Parts come from the cache; the kernel that reads them is on its way before the one that writes them has ended.
double Estimator::merge_us(std::int64_t splits) const {
  if (splits == 1) return 0.0;
  const portable::DeviceTraits traits = portable::traits_of(device_, gpu::Family::sm80);
  return kPartUs + portable::Estimator::kLaunchUs + portable::Estimator(p_, traits).combine_us(splits);
}

std::int64_t Estimator::steps(const device::HopperForwardConfig& c) const {
  const double seen = operations::attention::most_keys_seen(p_, f(queries_of_block(p_, c)));
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(seen / c.block_n)));
}

double Estimator::forward_us(const device::HopperForwardConfig& c, std::int64_t splits) const {
  const std::int64_t queries = queries_of_block(p_, c), most = steps(c);
  const double parts = f(tiles_of(p_, c) * splits) * operations::attention::share_of_tiles(p_, f(queries));
  const double seen = std::min(f(most), std::max(1.0, operations::attention::keys_seen(p_, f(queries)) / c.block_n));
  // Parts of equal length end together: the last round takes as long as the others. Beside a window most of them are.
  const bool even = !c.lengths && std::ceil(seen) >= f(most) * (c.windowed ? kNearlyAll : 1.0);
  const double a_part = even ? std::ceil(f(most) / f(splits)) : seen / f(splits);
  const double rounds = std::max(1.0, parts / device_.multiprocessors);
  const double tile_us = step_us(c);
  const double busy_us = (even ? std::ceil(rounds) : rounds) * (a_part * tile_us + kTileUs);
  const double alone_us = std::ceil(f(most) / f(splits)) * std::max(tile_us, kLatencyUs) + kTileUs;
  const double bytes = f(c.element_bytes()) * f(p_.head_dim + p_.head_dim_v) *
                       (extent_.total_q * f(p_.num_heads_q) + extent_.total_k * f(p_.num_heads_k));
  const double memory_us = bytes / (kOfMemoryRate * device_.memory_gigabytes_per_second * 1e3);
  return kStartUs + std::max({busy_us, alone_us, memory_us}) + merge_us(splits);
}

}  // namespace tilewise::backends::hopper
