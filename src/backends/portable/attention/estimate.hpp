// How long each attention kernel takes on a GPU: a model of its launch, fitted to an H200.
#pragma once

#include <cstdint>

#include "backends/portable/traits.hpp"
#include "device/attention/config.h"
#include "operations/attention/work.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::portable {

/// A count, among rates.
[[nodiscard]] constexpr double f(std::int64_t n) { return static_cast<double>(n); }

/// Microseconds of launches of `blocks` blocks, the launch itself aside: pure functions, for devices that need not be
/// here.
class Estimator {
 public:
  static constexpr double kLaunchUs = 2.5;

  /// Refers to both.
  Estimator(const Problem& problem, const DeviceTraits& traits);

  /// With keys and values of so many bytes an element.
  [[nodiscard]] double forward_us(const device::ForwardConfig& config, std::int64_t blocks, std::int64_t splits,
                                  double key_bytes = 2.0) const;
  /// Of mask_mod asked for every pair of a query and a key of so many entries.
  [[nodiscard]] double mask_tiles_us(std::int64_t entries) const;
  [[nodiscard]] double combine_us(std::int64_t splits) const;
  [[nodiscard]] double preprocess_us(bool clears_dq_accum) const;
  [[nodiscard]] double bwd_us(const device::BwdConfig& config, std::int64_t blocks, std::int64_t splits) const;
  [[nodiscard]] double convert_dq_us() const;
  [[nodiscard]] double convert_dkdv_us(std::int64_t splits) const;
  [[nodiscard]] double dkdv_us(const device::BwdDkdvConfig& config, std::int64_t blocks) const;
  [[nodiscard]] double dq_us(const device::BwdDqConfig& config, std::int64_t blocks) const;
  [[nodiscard]] double dbias_us(const device::BwdDbiasConfig& config, std::int64_t blocks) const;
  [[nodiscard]] double dsink_us() const;

 private:
  struct Blocks;

  /// Rows of all heads.
  [[nodiscard]] double rows_q() const;
  [[nodiscard]] double rows_k() const;
  [[nodiscard]] double dims() const;
  [[nodiscard]] double group() const;
  [[nodiscard]] double dq_accum_bytes() const;

  [[nodiscard]] double stream_us(double bytes) const;
  /// Of a block's own rows, on the share of the bandwidth that its multiprocessor has.
  [[nodiscard]] double own_us(double bytes) const;
  /// The blocks that a launch has for the sequences as they are: packed ones have fewer rows than the longest.
  [[nodiscard]] double used_blocks(std::int64_t blocks, double total, std::int64_t longest) const;
  [[nodiscard]] double blocks_us(const Blocks& b) const;
  [[nodiscard]] double added_us(const Blocks& b, const device::BwdConfig& config) const;
  [[nodiscard]] Blocks key_blocks(const device::ScoreConfig& config, std::int64_t blocks, std::int32_t block_n,
                                  std::int32_t block_m, double products, double flop, double splits) const;

  const Problem& p_;
  const DeviceTraits& traits_;
  operations::attention::Extent extent_;
  double flops_a_us_, bytes_a_us_;  // of one multiprocessor; of the device
};

}  // namespace tilewise::backends::portable
