// What a merge call's inputs hold.
#include "verify/merge_call.hpp"

#include <cmath>
#include <limits>

#include "operations/layout.hpp"
#include "operations/merge/params.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {

using operations::merge::part_of;

MergeCall::MergeCall(const MergeProblem& problem, std::uint64_t seed, Values values)
    : SchemaCall(problem, seed), special_rng_(seed + 0x5EC1A150u) {
  for (std::int64_t n = 0; n < problem.parts; ++n) draw_part(n);
  for (const auto* views : {&input("sink"), &input("dout"), &input("dlse")}) {
    for (const TensorView& view : *views)
      for_each_element(
          view, [&](std::span<const std::int64_t>, std::int64_t offset) { store_at(view, offset, rng().normal()); });
  }
  if (values == Values::special) plant_special_values();
  if (values == Values::large) draw_large_values();
  seal();
}

/// A row that saw nothing holds what must not reach a result. No poison: that would look like one never written, once
/// a special value lets the row count.
void MergeCall::draw_part(std::int64_t n) {
  const TensorView out = part_of(input("outs"), static_cast<std::size_t>(n), problem().stacked);
  const TensorView lse = part_of(input("lses"), static_cast<std::size_t>(n), problem().stacked);
  const operations::Axes axes = operations::axes_of(problem().layout);
  const double center = rng().chance(0.2) ? rng().uniform(-60.0, 60.0) : rng().normal();
  const double blind = rng().pick({0.0, 0.0, 0.1, 0.5, 1.0});
  for_each_element(lse, [&](std::span<const std::int64_t> position, std::int64_t offset) {
    const bool seen = !rng().chance(blind);
    const double unseen = rng().pick({std::numeric_limits<double>::quiet_NaN(), kInfinity, 6e4});
    store_at(lse, offset, seen ? center + 2.0 * rng().normal() : -kInfinity);
    const std::size_t heads = position.size() - 2;
    std::int64_t first =
        position[heads] * core::stride_at(out, axes.head) + position[heads + 1] * core::stride_at(out, axes.seq);
    if (axes.batch >= 0) first += position[0] * core::stride_at(out, axes.batch);
    for (std::int64_t d = 0; d < problem().head_dim_v; ++d)
      store_at(out, first + d * core::stride_at(out, axes.dim), seen ? rng().normal() : unseen);
  });
}

/// All of a part's log-sum-exps, so that parts of a row are equal, or one is all that counts. What many parts are
/// merged to in groups loses its logarithm beside a large number: they stay as they are.
void MergeCall::draw_large_values() {
  constexpr std::int64_t kMostParts = 8;
  const auto fill_some = [&](const TensorView& view, double value, double chance) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      if (std::isfinite(value_at(view, offset)) && special_rng_.chance(chance)) store_at(view, offset, value);
    });
  };
  const double common = large_value(operations::statistics_dtype(problem().dtype), special_rng_);
  for (std::int64_t n = 0; problem().parts <= kMostParts && n < problem().parts; ++n) {
    const TensorView lse = part_of(input("lses"), static_cast<std::size_t>(n), problem().stacked);
    if (special_rng_.chance(0.7)) fill_some(lse, common, special_rng_.pick({0.5, 1.0}));
  }
  for (const TensorView& sink : input("sink")) fill_some(sink, large_value(sink.dtype, special_rng_), 0.5);
}

/// Up to three of them, anywhere.
void MergeCall::plant_special_values() {
  std::vector<TensorView> places;
  for (const std::vector<TensorView>& views : all_inputs()) places.insert(places.end(), views.begin(), views.end());
  const std::int64_t count = special_rng_.integer(1, 3);
  for (std::int64_t n = 0; n < count; ++n) {
    const TensorView& view =
        places[static_cast<std::size_t>(special_rng_.integer(0, static_cast<std::int64_t>(places.size()) - 1))];
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      if (view.shape[axis] == 0) return;
      offset += special_rng_.integer(0, view.shape[axis] - 1) * view.strides[axis];
    }
    store_at(view, offset, special_value(special_rng_));
  }
}

std::vector<Output> MergeCall::make_outputs(std::uint64_t seed) const {
  std::vector<Output> outputs = SchemaCall::make_outputs(seed);
  for (Output& output : outputs) output.is_log_sum = output.name == "softmax_lse";
  return outputs;
}

std::vector<ErrorBounds> MergeCall::bounds(const std::vector<Output>& expected, double /*tanh_error*/) const {
  return merge_bounds(params_of(expected), problem(), expected);
}

}  // namespace tilewise::verify
