// Causal attention of two sequences through the C++ interface: the short way, and a plan that
// is made once and run again.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "tilewise/attention.hpp"

int main() {
  constexpr std::int64_t kBatch = 2, kSeqlen = 128, kHeadsQ = 8, kHeadsK = 2, kHeadDim = 64;
  std::vector<float> q(kBatch * kSeqlen * kHeadsQ * kHeadDim), k(kBatch * kSeqlen * kHeadsK * kHeadDim);
  std::vector<float> v(k.size()), out(q.size()), lse(kBatch * kHeadsQ * kSeqlen);
  for (std::size_t i = 0; i < q.size(); ++i) q[i] = std::sin(0.1f * static_cast<float>(i));
  for (std::size_t i = 0; i < k.size(); ++i) k[i] = std::cos(0.1f * static_cast<float>(i));
  // Rows of a softmax sum to 1, so values of 1 must come out as 1.
  for (float& value : v) value = 1.0f;

  using tilewise::DType;
  tilewise::ForwardArguments arguments;
  arguments.q = {q.data(), DType::f32, {kBatch, kSeqlen, kHeadsQ, kHeadDim}};
  arguments.k = {k.data(), DType::f32, {kBatch, kSeqlen, kHeadsK, kHeadDim}};
  arguments.v = {v.data(), DType::f32, {kBatch, kSeqlen, kHeadsK, kHeadDim}};
  arguments.out = {out.data(), DType::f32, {kBatch, kSeqlen, kHeadsQ, kHeadDim}};
  arguments.softmax_lse = {lse.data(), DType::f32, {kBatch, kHeadsQ, kSeqlen}};
  arguments.options.mask = tilewise::Mask::causal;

  try {
    tilewise::attention_forward(arguments);
    const tilewise::Plan plan = tilewise::plan(tilewise::describe(arguments));
    std::printf("tilewise %s ran %s\n  on %s\n", std::string(tilewise::version()).c_str(),
                to_string(plan.problem()).c_str(), std::string(plan.implementation()).c_str());
    tilewise::run(plan, arguments);
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
  std::puts("every row of out is 1, as it must be");
  return 0;
}
