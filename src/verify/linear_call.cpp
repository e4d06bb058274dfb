// What the inputs of a linear layer's call hold.
#include "verify/linear_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tilewise::verify {

LinearCall::LinearCall(const LinearProblem& problem, std::uint64_t seed, Values values)
    : SchemaCall(problem, seed), special_rng_(seed + 0x11EA9u) {
  draw_numbers("x", 1.0);
  draw_numbers("w", 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(problem.k, 1))));
  draw_numbers("bias", 0.5);
  draw_numbers("dout", 1.0);
  draw_scales("x_scale");
  draw_scales("w_scale");
  draw_scales("w_global_scale");
  draw_groups();
  if (values == Values::special) plant_special_values();
  if (values == Values::large) draw_large_values();
  seal();
}

void LinearCall::draw_numbers(Role role, double deviation) {
  for (const TensorView& view : input(role)) {
    // Narrow elements are near their own 1, and their scales do the rest.
    const bool quantised = view.dtype == DType::fp8_e4m3 || view.dtype == DType::fp4_e2m1;
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      store_at(view, offset, (quantised ? 2.0 : deviation) * rng().normal());
    });
  }
}

/// Any finite ones, of blocks that differ.
void LinearCall::draw_scales(Role role) {
  constexpr double kLargestExponent = 3.0;
  for (const TensorView& view : input(role)) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      store_at(view, offset, std::exp2(rng().uniform(-kLargestExponent, kLargestExponent)));
    });
  }
}

/// Ends of groups in order, some of them empty; of a fifth of the calls they fall, or lie anywhere.
void LinearCall::draw_groups() {
  const bool counted = operations::linear::is_counted(problem()), wrong = rng().chance(0.2);
  const std::int64_t tokens = problem().tokens, experts = problem().num_experts;
  std::vector<std::int64_t> ends(static_cast<std::size_t>(experts + 1));
  for (std::int64_t& end : ends) end = rng().integer(0, tokens);
  ends.front() = rng().chance(0.7) ? 0 : ends.front();
  ends.back() = rng().chance(0.7) ? tokens : ends.back();
  for (std::size_t e = 1; e < ends.size(); ++e)
    if (rng().chance(0.2)) ends[e] = ends[e - 1];
  std::ranges::sort(ends);
  for (const TensorView& view : input(counted ? Role("counts") : Role("offsets"))) {
    for_each_element(view, [&](std::span<const std::int64_t> position, std::int64_t offset) {
      const auto e = static_cast<std::size_t>(position[0]);
      std::int64_t value = counted ? ends[e + 1] - ends[e] : ends[e];
      if (wrong && rng().chance(0.4)) {
        const std::int64_t far = view.dtype == DType::i64 ? std::int64_t{1} << 62 : (std::int64_t{1} << 31) - 1;
        value = rng().pick<std::int64_t>({-1, -far, far, rng().integer(-2, tokens + 3)});
      }
      store_at(view, offset, static_cast<double>(value));
    });
  }
}

/// Rows and gradients of any size whose sums are finite in every dtype that they are rounded to. Squares of
/// these sums are taken here and in the reference, and f64 must hold them.
void LinearCall::draw_large_values() {
  if (problem().x_format.defined() || problem().w_format.defined()) return;
  const double terms =
      64.0 * static_cast<double>(std::max({problem().k, problem().n, problem().tokens, std::int64_t{1}}));
  double most = std::min({largest_finite(problem().dtype), largest_finite(problem().out_dtype),
                          problem().dtype == DType::f64 ? largest_finite(DType::f64) : largest_finite(DType::f32)});
  // Large factors of one term: x in a sum and in its gradient, dout.
  const double factors = 1.0 + (problem().activation == Activation::relu_squared ? 1.0 : 0.0) +
                         (problem().pass == LinearPass::linear_backward ? 1.0 : 0.0);
  most = std::pow(most, 1.0 / (problem().dtype == DType::f64 ? 2.0 * factors : factors));
  for (const auto* views : {&input("x"), &input("dout")}) {
    for (const TensorView& view : *views) {
      const double factor = std::min(std::abs(large_value(view.dtype, special_rng_)), most / terms);
      for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
        if (special_rng_.chance(0.3)) store_at(view, offset, factor * value_at(view, offset));
      });
    }
  }
}

/// Up to three of them, in any numbers. A scale becomes NaN: an infinite one times a sum is an infinity, times its
/// terms may be NaN, and both are right.
void LinearCall::plant_special_values() {
  struct Place {
    TensorView view;
    bool scale;
  };
  std::vector<Place> places;
  const auto add = [&](Role role, bool scale) {
    for (const TensorView& view : input(role))
      if (view.dtype != DType::fp4_e2m1 && view.numel() > 0) places.push_back({view, scale});
  };
  add("x", false), add("w", false), add("bias", false), add("dout", false);
  add("x_scale", true), add("w_scale", true), add("w_global_scale", true);
  const std::int64_t count = places.empty() ? 0 : special_rng_.integer(1, 3);
  for (std::int64_t n = 0; n < count; ++n) {
    const auto& [view, scale] =
        places[static_cast<std::size_t>(special_rng_.integer(0, static_cast<std::int64_t>(places.size()) - 1))];
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis)
      offset += special_rng_.integer(0, view.shape[axis] - 1) * view.strides[axis];
    const double value = special_value(special_rng_);
    store_at(view, offset, scale ? std::numeric_limits<double>::quiet_NaN() : value);
  }
}

std::vector<ErrorBounds> LinearCall::bounds(const std::vector<Output>& expected, double /*tanh_error*/) const {
  return linear_bounds(params_of(expected), problem(), expected);
}

}  // namespace tilewise::verify
