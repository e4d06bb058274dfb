// What a route call's inputs hold, and how far its results may be from the reference's.
#include "verify/route_call.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "core/message.hpp"
#include "operations/matrices.hpp"
#include "tilewise/error.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kAttempts = 40;

std::int64_t offset_at(const TensorView& view, std::int64_t row, std::int64_t column) {
  return row * view.strides[0] + column * view.strides[1];
}

RouteToken::Numbers row_of(const TensorView& view, std::int64_t row) {
  RouteToken::Numbers numbers;
  for (std::int64_t i = 0; i < view.shape[1]; ++i) numbers.push_back(value_at(view, offset_at(view, row, i)));
  return numbers;
}

}  // namespace

RouteCall::RouteCall(const RouteProblem& problem, std::uint64_t seed, Values values)
    : SchemaCall(problem, seed), values_(values), special_rng_(seed + 0x5EC1A150u) {
  draw_vectors();
  for (const TensorView& view : input("dtopk_weights")) {
    for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
      const bool special = values == Values::special && special_rng_.chance(0.02);
      store_at(view, offset, special ? special_value(special_rng_) : rng().normal());
    });
  }
  for (std::int64_t token = 0; token < problem.tokens; ++token) {
    if (!input("topk_ids").empty()) draw_ids(token);
    draw_token(token);
  }
  seal();
}

/// Biases are multiples of 2^-8: between two there are none or many roundings.
void RouteCall::draw_vectors() {
  const auto fill = [&](const std::vector<TensorView>& views, RouteToken::Numbers& numbers, const auto& draw) {
    for (const TensorView& view : views) {
      for_each_element(view, [&](std::span<const std::int64_t>, std::int64_t offset) {
        const bool special = values_ == Values::special && special_rng_.chance(0.02);
        store_at(view, offset, special ? special_value(special_rng_) : draw());
        numbers.push_back(value_at(view, offset));
      });
    }
  };
  const double spread = rng().pick({0.1, 1.0, 1.0});
  fill(input("bias"), bias_, [&] { return std::round(256.0 * spread * rng().normal()) / 256.0; });
  fill(input("scale_of_expert"), scale_, [&] { return rng().normal(); });
}

void RouteCall::draw_token(std::int64_t token) {
  const TensorView& view = input("logits").front();
  for (std::int64_t attempt = 0; attempt <= kAttempts; ++attempt) {
    const std::vector<double> logits = draw_logits(attempt);
    for (std::int64_t e = 0; e < view.shape[1]; ++e)
      store_at(view, offset_at(view, token, e), logits[static_cast<std::size_t>(e)]);
    if (is_clear(token)) return;
  }
  throw Error(ErrorCode::runtime, core::concat("logits: found none whose choice is clear for ", to_string(problem())));
}

/// The last attempts give all experts the same logit, or each its own far from the others'.
std::vector<double> RouteCall::draw_logits(std::int64_t attempt) {
  std::vector<double> logits(static_cast<std::size_t>(problem().num_experts));
  if (attempt >= kAttempts - 4 || rng().chance(0.02)) {
    std::ranges::fill(logits, attempt % 2 == 0 ? 0.5 : 0.25);
    return logits;
  }
  const double spread = rng().pick({0.3, 1.0, 3.0}), ties = rng().pick({0.0, 0.0, 0.2, 1.0});
  for (double& logit : logits) {
    logit = spread * rng().normal();
    if (rng().chance(ties)) logit = std::round(4.0 * logit) / 4.0;
  }
  if (values_ == Values::special && special_rng_.chance(0.4)) plant_special_values(logits);
  if (values_ == Values::large && special_rng_.chance(0.6)) {
    const double most = special_rng_.pick({1e4, 1e9, 1e20, 1e30}), chance = special_rng_.pick({0.1, 0.5, 1.0});
    const double large = std::min(most, largest_finite(problem().dtype)) * special_rng_.pick({1.0, -1.0});
    for (double& logit : logits)
      if (special_rng_.chance(chance)) logit = large;
  }
  return logits;
}

void RouteCall::plant_special_values(std::vector<double>& logits) {
  const std::int64_t kind = special_rng_.integer(0, 7);
  const double chance = kind <= 1 ? 1.0 : kind == 2 ? 0.7 : 0.1;
  for (double& logit : logits) {
    if (!special_rng_.chance(chance)) continue;
    logit = kind == 1 ? kNan : kind <= 4 ? -kInfinity : special_value(special_rng_);
  }
}

/// Of a backward pass: any experts, now and then one that is none, or one twice.
void RouteCall::draw_ids(std::int64_t token) {
  const TensorView& view = input("topk_ids").front();
  std::vector<std::int64_t> experts(static_cast<std::size_t>(problem().num_experts));
  std::iota(experts.begin(), experts.end(), 0);
  const double nobody = rng().pick({0.0, 0.0, 0.0, 0.3, 1.0}), again = rng().pick({0.0, 0.0, 0.0, 0.2});
  for (std::int64_t j = 0; j < problem().top_k; ++j) {
    const auto place = static_cast<std::size_t>(j);
    std::swap(experts[place], experts[static_cast<std::size_t>(rng().integer(j, problem().num_experts - 1))]);
    std::int64_t id = experts[place];
    if (j > 0 && rng().chance(again)) id = experts[place - 1];
    if (rng().chance(nobody)) id = rng().pick<std::int64_t>({-1, problem().num_experts, -0x80000000ll, 0x7FFFFFFF});
    operations::store_integer(view.dtype, view.data, offset_at(view, token, j), id);
  }
}

RouteCall::Chosen RouteCall::read_ids(const TensorView& ids, std::int64_t token, std::int64_t num_experts) {
  Chosen chosen;
  for (std::int64_t j = 0; j < ids.shape[1]; ++j) {
    const std::int64_t id = operations::load_integer(ids.dtype, ids.data, offset_at(ids, token, j));
    if (id < 0 || id >= num_experts) continue;
    chosen.ids.push_back(id);
    chosen.places.push_back(j);
  }
  return chosen;
}

bool RouteCall::is_clear(std::int64_t token) const {
  const RouteToken errors(problem(), row_of(input("logits").front(), token));
  if (problem().pass == RoutePass::route)
    return errors.choice_is_clear(bias_) && errors.divisor_is_clear(errors.chosen(bias_));
  const Chosen chosen = read_ids(input("topk_ids").front(), token, problem().num_experts);
  return chosen.ids.empty() || errors.divisor_is_clear(chosen.ids);
}

std::vector<Output> RouteCall::make_outputs(std::uint64_t seed) const {
  std::vector<Output> outputs = SchemaCall::make_outputs(seed);
  for (Output& output : outputs)
    if (output.name == "topk_ids") output.model = Model::bits;
  return outputs;
}

/// A handful of elements may be all that is not exact, so that no average is predicted: sigma allows each its limit.
std::vector<ErrorBounds> RouteCall::bounds(const std::vector<Output>& expected, double /*tanh_error*/) const {
  std::vector<ErrorBounds> all;
  for (const Output& output : expected) {
    ErrorBounds bounds{output.name, {}, {}, {}};
    for (std::int64_t token = 0; output.model == Model::bounded && token < problem().tokens; ++token) {
      const RouteToken errors(problem(), row_of(input("logits").front(), token));
      RouteToken::Numbers limits;
      if (problem().pass == RoutePass::route) {
        const TensorView& ids = find_output(expected, "topk_ids")->buffer.view();
        limits = errors.weight_errors(read_ids(ids, token, problem().num_experts).ids, scale_);
      } else {
        const Chosen chosen = read_ids(input("topk_ids").front(), token, problem().num_experts);
        const RouteToken::Numbers row = row_of(input("dtopk_weights").front(), token);
        RouteToken::Numbers d;
        for (const std::int64_t place : chosen.places) d.push_back(row[static_cast<std::size_t>(place)]);
        limits = errors.gradient_errors(chosen.ids, d, scale_);
      }
      const RouteToken::Numbers results = row_of(output.buffer.view(), token);
      for (std::size_t i = 0; i < limits.size(); ++i) {
        bounds.limit.push_back(std::isfinite(limits[i]) ? limits[i] : 0.0);
        const double roundings = 2.0 * unit_roundoff(output.buffer.view().dtype) * std::abs(results[i]);
        bounds.sigma.push_back(bounds.limit.back() + (std::isfinite(roundings) ? roundings : 0.0));
      }
    }
    all.push_back(std::move(bounds));
  }
  return all;
}

}  // namespace tilewise::verify
