// Problems as text, lowered for Hopper.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <string_view>

#include "backends/cuda/hopper/kv_cache.hpp"
#include "backends/cuda/hopper/lowering.hpp"
#include "backends/cuda/hopper/schedule.hpp"
#include "core/message.hpp"
#include "gpu/architectures.hpp"
#include "tilewise/kv_cache.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::backends::hopper {

inline constexpr std::string_view kCausal =
    "dtype=bf16 batch_size=2 seqlen_q=4096 num_heads_q=16 head_dim=128 mask=causal";

inline core::DeviceDescription h200() { return gpu::describe(gpu::named_architecture("sm_90a")); }

inline Problem problem_of(std::string_view text) {
  return parse_problem(core::concat("attention_forward device=cuda ", text));
}

/// Lowers what must not be refused.
inline gpu::Lowering lowered(std::string_view text) {
  Outcome outcome = lower(problem_of(text), h200());
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

inline gpu::Lowering lowered_backward(std::string_view text) {
  const Problem problem = parse_problem(core::concat("attention_backward device=cuda ", text));
  Outcome outcome = lower(problem, h200());
  EXPECT_EQ(outcome.refusal, "") << text;
  return std::move(outcome.lowering);
}

template <class Body = Forward>
typename Body::Params params_of(const gpu::Launch& launch) {
  EXPECT_TRUE(gpu::is_kernel<Body>(launch.key)) << launch.key.body->name;
  typename Body::Params params;
  std::memcpy(static_cast<void*>(&params), launch.params.data(), sizeof params);
  return params;
}

}  // namespace tilewise::backends::hopper
