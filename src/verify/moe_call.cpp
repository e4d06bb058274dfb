// What the inputs of a call of experts hold.
#include "verify/moe_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace tilewise::verify {
namespace {

/// Of a weight, so that sums of so many are of the order of 1.
double deviation(std::int64_t summed) {
  return 1.0 / std::sqrt(static_cast<double>(std::max<std::int64_t>(summed, 1)));
}

bool is_narrow(DType dtype) { return dtype == DType::fp8_e4m3 || dtype == DType::fp4_e2m1; }

}  // namespace

MoeCall::MoeCall(const MoeProblem& problem, std::uint64_t seed, Values values)
    : SchemaCall(problem, seed), special_rng_(seed + 0x30EA9u) {
  draw_numbers("x", 1.0);
  draw_numbers("gate_up", deviation(problem.hidden));
  draw_numbers("down", deviation(problem.intermediate));
  for (const Role role : {Role("gate_up_bias"), Role("down_bias")}) draw_numbers(role, 0.5);
  for (const Role role : {Role("topk_weights"), Role("norm_weight"), Role("dout")}) draw_numbers(role, 1.0);
  draw_numbers("gate_up_out", 1.0);
  // Of nvfp4 the factor of the whole does what the scales of others do.
  const double gate_up = 0.5 * deviation(problem.hidden), down = 0.5 * deviation(problem.intermediate);
  const bool global = problem.w_format.global;
  draw_scales("x_scale", 1.0);
  draw_scales("gate_up_scale", global ? 4.0 : gate_up);
  draw_scales("down_scale", global ? 4.0 : down);
  draw_scales("gate_up_global_scale", 0.25 * gate_up);
  draw_scales("down_global_scale", 0.25 * down);
  draw_ids();
  if (values == Values::special) plant_special_values();
  if (values == Values::large) draw_large_values();
  seal();
}

void MoeCall::draw_numbers(Role role, double deviation) {
  constexpr double kNarrow = 2.0;  // elements are near their own 1, and their scales do the rest
  for (const TensorView& view : input(role)) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      store_at(view, offset, (is_narrow(view.dtype) ? kNarrow : deviation) * rng().normal());
    });
  }
}

/// Up to `largest`, of blocks that differ.
void MoeCall::draw_scales(Role role, double largest) {
  constexpr double kSpread = 4.0;
  for (const TensorView& view : input(role)) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      store_at(view, offset, largest * std::exp2(rng().uniform(-kSpread, 0.0)));
    });
  }
}

/// One that is nobody's here, in every spelling.
std::int64_t MoeCall::wrong_id(DType dtype) {
  const std::int64_t far = dtype == DType::i64 ? std::numeric_limits<std::int64_t>::max()
                                               : std::int64_t{std::numeric_limits<std::int32_t>::max()};
  const std::int64_t end = problem().first_expert + problem().num_experts;
  return rng().pick<std::int64_t>({-1, -1, end, end + 1, problem().first_expert - 1, far, -far - 1,
                                   dtype == DType::i64 ? std::int64_t{1} << 32 : -7});
}

/// Evenly, of a few experts alone, or all of one; the same expert may stand twice. Of a third of the calls some are
/// nobody's.
void MoeCall::draw_ids() {
  const std::int64_t experts = problem().num_experts;
  const std::int64_t popular = rng().chance(0.5) ? experts : rng().integer(std::min<std::int64_t>(1, experts), experts);
  const double wrong = rng().pick({0.0, 0.0, 0.1, 0.5, 1.0, 0.0});
  for (const TensorView& view : input("topk_ids")) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      const bool nobody = popular == 0 || rng().chance(wrong);
      const std::int64_t id = nobody ? wrong_id(view.dtype) : problem().first_expert + rng().integer(0, popular - 1);
      operations::store_integer(view.dtype, view.data, offset, id);
    });
  }
}

/// Tokens and gradients of any size whose powers (a gate's activation times up, once more through a gradient, squared
/// by a norm) are finite in every dtype that they are rounded to.
void MoeCall::draw_large_values() {
  if (problem().x_format.defined() || problem().w_format.defined()) return;
  const double terms = 64.0 * static_cast<double>(std::max({problem().hidden, problem().intermediate,
                                                            problem().tokens * problem().top_k, std::int64_t{1}}));
  const double most =
      std::min({largest_finite(problem().dtype), largest_finite(problem().out_dtype),
                problem().dtype == DType::f64 ? largest_finite(DType::f64) : largest_finite(DType::f32)});
  const double largest = std::pow(most / terms, problem().norm == MoeVector::none ? 0.2 : 0.125);
  for (const Role role : {Role("x"), Role("dout")}) {
    for (const TensorView& view : input(role)) {
      const double factor = std::min(std::abs(large_value(view.dtype, special_rng_)), largest);
      for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
        if (special_rng_.chance(0.3)) store_at(view, offset, factor * value_at(view, offset));
      });
    }
  }
}

/// Up to three of them, in any numbers. Where anything is quantised NaNs alone: an infinity may saturate as an
/// intermediate value, and an infinite scale is NaN times an element of 0 and infinite times a sum of them.
void MoeCall::plant_special_values() {
  std::vector<TensorView> places;
  for (const std::vector<TensorView>& views : all_inputs())
    for (const TensorView& view : views)
      if (view.dtype != DType::i32 && view.dtype != DType::i64 && view.dtype != DType::fp4_e2m1) places.push_back(view);
  const std::int64_t count = special_rng_.integer(1, 3);
  for (std::int64_t n = 0; n < count; ++n) {
    const TensorView& view =
        places[static_cast<std::size_t>(special_rng_.integer(0, static_cast<std::int64_t>(places.size()) - 1))];
    std::int64_t offset = 0;
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
      if (view.shape[axis] == 0) return;
      offset += special_rng_.integer(0, view.shape[axis] - 1) * view.strides[axis];
    }
    const double value = special_value(special_rng_);
    store_at(view, offset, problem().w_format.defined() ? std::numeric_limits<double>::quiet_NaN() : value);
  }
}

std::vector<ErrorBounds> MoeCall::bounds(const std::vector<Output>& expected, double /*tanh_error*/) const {
  return moe_bounds(params_of(expected), problem(), expected);
}

}  // namespace tilewise::verify
