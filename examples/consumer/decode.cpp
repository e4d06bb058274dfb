// Two sequences of a serving engine through the C++ interface: append_kv puts their prompts into a paged cache, then a
// plan that is made once decodes, with other lengths at each step.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewise/kv_cache.hpp"

namespace {

constexpr std::int64_t kBatch = 2, kHeadsQ = 8, kHeadsK = 2, kHeadDim = 32, kPageSize = 16, kPages = 8, kMaxPages = 4;
constexpr std::int64_t kPrompt = 20, kSteps = 30, kToken = kHeadsK * kHeadDim;

int run() {
  using tilewise::DType;
  std::vector<float> k_cache(kPages * kPageSize * kToken), v_cache(k_cache.size());
  std::vector<float> k(kBatch * kPrompt * kToken, 0.5f), v(k.size(), 1.0f);
  std::vector<float> q(kBatch * kHeadsQ * kHeadDim, 0.25f), out(q.size());
  std::vector<std::int32_t> lengths{0, 0}, table{7, 2, 4, 0, 1, 6, 3, 5};  // pages in any order

  tilewise::KvCacheArguments step;
  step.k_cache = {k_cache.data(), DType::f32, {kPages, kPageSize, kHeadsK, kHeadDim}};
  step.v_cache = {v_cache.data(), DType::f32, {kPages, kPageSize, kHeadsK, kHeadDim}};
  step.k = {k.data(), DType::f32, {kBatch, kPrompt, kHeadsK, kHeadDim}};
  step.v = {v.data(), DType::f32, {kBatch, kPrompt, kHeadsK, kHeadDim}};
  step.options.cache_seqlens = {lengths.data(), DType::i32, {kBatch}};
  step.options.block_table = {table.data(), DType::i32, {kBatch, kMaxPages}};
  tilewise::append_kv({step.k_cache, step.v_cache, step.k, step.v, step.options});

  // One new token of each sequence a step. The plan does not depend on what lengths and tables hold.
  step.q = {q.data(), DType::f32, {kBatch, 1, kHeadsQ, kHeadDim}};
  step.out = {out.data(), DType::f32, {kBatch, 1, kHeadsQ, kHeadDim}};
  step.k = {k.data(), DType::f32, {kBatch, 1, kHeadsK, kHeadDim}};
  step.v = {v.data(), DType::f32, {kBatch, 1, kHeadsK, kHeadDim}};
  step.options.mask = tilewise::Mask::causal;
  lengths = {kPrompt, kPrompt};
  const tilewise::Plan plan = tilewise::plan(tilewise::describe(step));
  for (std::int64_t n = 0; n < kSteps; ++n) {
    for (float& value : v) value = static_cast<float>(n + 2);  // the prompt's values are 1, the tokens' 2, 3, ...
    tilewise::run(plan, step);
    for (std::int32_t& length : lengths) ++length;
    const auto tokens = static_cast<float>(n + 1);
    const float mean = (kPrompt + tokens * (tokens + 3) / 2) / (kPrompt + tokens);  // all keys are alike
    for (const float value : out) {
      if (std::abs(value - mean) < 1e-4f) continue;
      std::fprintf(stderr, "out must be %g (got %g)\n", static_cast<double>(mean), static_cast<double>(value));
      return 1;
    }
  }
  std::printf("%s\n  on %s, %d steps\n", to_string(plan.problem()).c_str(), std::string(plan.implementation()).c_str(),
              static_cast<int>(kSteps));
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const tilewise::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
