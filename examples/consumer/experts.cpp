// A mixture of experts through the C++ interface: which experts each token goes to, and all of them in one call.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewise/moe.hpp"
#include "tilewise/route.hpp"

int main() {
  constexpr std::int64_t kTokens = 10, kHidden = 32, kIntermediate = 16, kExperts = 4, kTopK = 2;
  std::vector<float> logits(kTokens * kExperts), x(kTokens * kHidden, 1.0f), out(x.size());
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = std::sin(static_cast<float>(i));
  std::vector<std::int32_t> ids(kTokens * kTopK);
  std::vector<float> weights(kTokens * kTopK);
  // Every product of the first weights is 1, and every one of the second: an expert makes relu(1) * 1 = 1 of its token.
  std::vector<float> gate_up(kExperts * 2 * kIntermediate * kHidden, 1.0f / kHidden);
  std::vector<float> down(kExperts * kHidden * kIntermediate, 1.0f / kIntermediate);

  using tilewise::DType;
  tilewise::RouteArguments route;
  route.logits = {logits.data(), DType::f32, {kTokens, kExperts}};
  route.topk_ids = {ids.data(), DType::i32, {kTokens, kTopK}};
  route.topk_weights = {weights.data(), DType::f32, {kTokens, kTopK}};
  route.normalise = tilewise::RouteNormalise::sum_plus_epsilon;  // a token's weights sum to 1

  tilewise::MoeArguments moe;
  moe.x = {x.data(), DType::f32, {kTokens, kHidden}};
  moe.topk_ids = route.topk_ids;
  moe.topk_weights = route.topk_weights;
  moe.gate_up = {gate_up.data(), DType::f32, {kExperts, 2 * kIntermediate, kHidden}};
  moe.down = {down.data(), DType::f32, {kExperts, kHidden, kIntermediate}};
  moe.out = {out.data(), DType::f32, {kTokens, kHidden}};
  moe.activation = tilewise::Activation::relu;

  try {
    tilewise::route(route);
    tilewise::moe(moe);
    const tilewise::Plan plan = tilewise::plan(tilewise::describe(moe));
    std::printf("%s ran on %s\n", to_string(plan.problem()).c_str(), std::string(plan.implementation()).c_str());
  } catch (const tilewise::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }

  for (const float value : out) {
    if (!(std::abs(value - 1.0f) < 1e-5f)) {
      std::fprintf(stderr, "out must be 1 (got %g)\n", static_cast<double>(value));
      return 1;
    }
  }
  std::puts("every token is 1, as it must be");
  return 0;
}
