// A call of Hopper's backward kernel on its emulated machine, with or without a fault planted in it, beside the
// reference.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "../support/dense_call.hpp"
#include "backends/cuda/hopper/bwd_config.hpp"
#include "backends/cuda/hopper/bwd_lowering.hpp"
#include "backends/cuda/hopper/kernels.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "described_call.hpp"
#include "device/hopper/bwd.h"
#include "device/hopper/bwd_preprocess.h"
#include "emulated.hpp"
#include "emulated_maps.hpp"
#include "hopper_bwd_faults.hpp"

namespace tilewise::test {

inline constexpr std::int64_t kQueries = 300, kRows = 384;

/// A causal call of lengths that no tile divides. Of wide heads no query sees the last keys, in front of which nobody
/// waits for products.
template <HopperBwdConfig C = kNarrow>
class BwdCall {
  using Machine = FaultyBwdSm90<C>;
  static constexpr std::int64_t kDim = C.head_dim, kDimV = C.head_dim_v, kHeads = C.grouped ? 4 : 2,
                                kHeadsK = C.grouped ? 1 : kHeads,
                                kKeys = !C.loader_schedules() && !C.shares_keys ? 200
                                        : C.grouped                             ? 600  // in a share for each head
                                                                                : 500;
  /// Where one tile of keys comes after the other, one has them all; two where they wait for each other.
  static constexpr int kBlocks = !C.persistent ? 4 : C.ordered || C.rounds ? 2 : 1;

 public:
  BwdCall()
      : expected_(sizes()),
        call_(sizes()),
        lse2_(kHeads * kRows, INFINITY),
        delta_(kHeads * kRows),
        dq_accum_(kHeads * kRows * kDim),
        turns_(kHeads * (kRows / C.block_m) * 4),
        dk_accum_(C.grouped ? kKeyTiles * C.block_n() * C.head_dim : 0),
        dv_accum_(C.grouped ? kKeyTiles * C.block_n() * C.head_dim_v : 0),
        dkdv_turns_(C.grouped ? kKeyTiles * kGradientWarps : 0) {
    for (DenseCall* c : {&expected_, &call_}) {
      if (C.ranged) c->options.mask = Mask::causal;
      if (C.windowed) c->options.window_left = 150;
      if (C.shares_keys) c->options.alignment = Alignment::top_left;
      c->options.deterministic = C.ordered != 0;
      if (C.dropout) c->options.dropout_p = 0.25;
      if (C.softcap) c->options.softcap = 2.0;
      if (C.bias_boxes) c->bias = c->normal(DType::bf16, {1, kHeads, kQueries, kKeys});
      c->forward();
      c->prepare_backward();
    }
    expected_.backward();
    draw_statistics();
    std::ranges::fill(preprocess_done_, 1U);
    const auto [problem, params] = described_call(call_.backward_arguments());
    params_of_call_ = params;
    core::DeviceDescription device;
    device.shared_bytes = 227 << 10;
    device.multiprocessors = kBlocks;
    if (C.ordered || C.rounds) {  // as `tilewise tune` may have chosen
      device.tuned = std::make_shared<const core::TunedSchedules>(core::TunedSchedules{
          {core::tuning_key(backends::hopper::kImplementationName, backends::hopper::tuning_text(problem)),
           backends::hopper::name_of(backends::hopper::BwdSchedule{C})}});
    }
    launch_ = *backends::hopper::lower_backward(problem, device).lowering.launches().at(1);
    bind_params(launch_, &params_of_call_, params_);
    params_.lse2 = lse2_.data();
    params_.delta = delta_.data();
    params_.dq_accum = dq_accum_.data();
    if (C.ordered || C.rounds) params_.turns = turns_.data();
    // Tiles of 128 queries each have one that sees a key, by which their sums begin.
    if (C.ordered && C.block_m == 128) std::ranges::fill(dq_accum_, NAN);
    if (C.persistent) params_.tile_counter = tile_counters_;
    params_.preprocess_done = C.late_preprocess ? preprocess_done_ : nullptr;
    params_.preprocess_tiles = C.late_preprocess ? kPreprocessTiles : 0;
    if (params_.shares > 1) {
      params_.dk_accum = dk_accum_.data(), params_.dv_accum = dv_accum_.data();
      params_.dkdv_turns = dkdv_turns_.data();
    }
  }

  /// The last head is never preprocessed.
  void forget_last_head() { preprocess_done_[kHeads * kPreprocessTiles - 1] = 0; }

  /// What went wrong in a run with that fault, or empty.
  std::string run(BwdFault fault = BwdFault::none, std::uint64_t seed = 0) {
    using Kernel = HopperBwd<Sm90Ops<Machine>, C>;
    g_bwd_fault = fault;
    std::ranges::fill(tile_counters_, 0U);
    write_maps(launch_, &params_of_call_, params_);
    memory_ = backends::emulation::memory_of(gpu::body_of<backends::hopper::Bwd>(), &params_);
    return fault_of(host_kernel<Kernel, Machine>(), C.threads(), static_cast<int>(launch_.grid.x), seed, memory_,
                    &params_, 1, C.persistent ? kBlocks : 1);
  }

  /// Largest difference to the reference, of any gradient.
  [[nodiscard]] double error() const {
    double largest = std::max(largest_difference(call_.dk, expected_.dk), largest_difference(call_.dv, expected_.dv));
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        for (std::int64_t d = 0; d < kDim; ++d) {
          const double rounded = C.rounds || C.last_rounds ? call_.dq.get({0, i, h, d}) : dq(h, i, d);
          const double difference = std::abs(rounded - expected_.dq.get({0, i, h, d}));
          largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
        }
      }
    }
    return largest;
  }

 private:
  static Sizes sizes() {
    return {.seqlen_q = kQueries,
            .seqlen_k = kKeys,
            .heads_q = kHeads,
            .heads_k = kHeadsK,
            .dim = kDim,
            .dim_v = kDimV,
            .dtype = DType::bf16};
  }

  void draw_statistics() {
    for (std::int64_t h = 0; h < kHeads; ++h) {
      for (std::int64_t i = 0; i < kQueries; ++i) {
        const auto at = static_cast<std::size_t>(h * kRows + statistic_place(i));
        const double lse = call_.lse.get({0, h, i});
        double delta = 0.0;
        for (std::int64_t d = 0; d < kDimV; ++d) delta += call_.out.get({0, i, h, d}) * call_.dout.get({0, i, h, d});
        lse2_[at] = std::isinf(lse) ? INFINITY : static_cast<float>(C.natural_lse() ? lse : lse / std::log(2.0));
        delta_[at] = with_marks(static_cast<float>(delta), false, false);
      }
    }
  }

  /// The sums lie by 16 queries and 8 columns, as a warp's lanes hold them.
  using Places = DqPlaces<C>;
  [[nodiscard]] double dq(std::int64_t h, std::int64_t i, std::int64_t d) const {
    const std::int64_t lane = i % 8 * 4 + d % 8 / 2, reg = i % 16 / 8 * 2 + d % 2;
    const std::int64_t at = h * kRows * kDim + Places::of_rows(static_cast<std::int32_t>(i / 16 * 16)) +
                            Places::of_columns(static_cast<std::int32_t>(d / Places::kCols)) +
                            d % Places::kCols / 8 * 128 + lane * 4 + reg;
    return dq_accum_[static_cast<std::size_t>(at)] * params_of_call_.softmax_scale;
  }

  DenseCall expected_, call_;
  std::vector<float> lse2_, delta_, dq_accum_;
  std::vector<std::uint32_t> turns_;
  static constexpr std::int64_t kKeyTiles = (kKeys + C.block_n() - 1) / C.block_n();
  std::vector<float> dk_accum_, dv_accum_;
  std::vector<std::uint32_t> dkdv_turns_;
  std::uint32_t tile_counters_[2] = {};
  static constexpr std::int32_t kPreprocessTiles = 3;
  std::uint32_t preprocess_done_[kHeads * kPreprocessTiles];
  AttentionParams params_of_call_{};
  HopperBwdParams params_{};
  gpu::Launch launch_;
  backends::emulation::GlobalMemory memory_;
};

/// Gradients of some units, rounded to bf16 up to four times on their way.
inline constexpr double kFine = 0.05, kWrong = 0.3;

template <HopperBwdConfig... C>
void expect_right(std::uint64_t seed) {
  const auto expect_one = [&](auto call) {
    EXPECT_EQ(call.run(BwdFault::none, seed), "");
    EXPECT_LT(call.error(), kFine);
  };
  (expect_one(BwdCall<C>()), ...);
}

}  // namespace tilewise::test
