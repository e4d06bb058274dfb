// Problems as text, lowered for Hopper.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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
/// Of its launches, in order, with a blank behind each.
[[nodiscard]] inline std::string kernels_of(const gpu::Lowering& lowering) {
  std::string names;
  for (const gpu::Launch* launch : lowering.launches()) core::append(names, core::concat(launch->key.body->name, " "));
  return names;
}

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

/// Of its kernels, each with a space behind it.
inline std::string names_of(const gpu::Lowering& lowering) {
  std::string text;
  for (const gpu::Launch* launch : lowering.launches()) text += core::concat(launch->key.body->name, " ");
  return text;
}

/// Of the kernel that makes the gradients.
inline auto gradients_config(const gpu::Lowering& lowering) {
  return gpu::config_of<Bwd>(lowering.launches().at(1)->key);
}

/// That device, for which one schedule was tuned.
inline core::DeviceDescription tuned_h200(const Problem& problem, std::string name) {
  core::DeviceDescription device = h200();
  device.tuned = std::make_shared<const core::TunedSchedules>(
      core::TunedSchedules{{core::tuning_key(kImplementationName, tuning_text(problem)), std::move(name)}});
  return device;
}

/// Of schedules that `tilewise tune` chooses from: they fit the device, and each has a name of its own, by which
/// tuned(name) finds it.
template <class Body, class Schedule, class Tuned>
void expect_candidates(const std::vector<Schedule>& candidates, const Schedule& untuned, const Tuned& tuned) {
  EXPECT_GT(candidates.size(), 1U);
  EXPECT_EQ(name_of(candidates[0]), name_of(untuned));
  std::set<std::string> names;
  for (const Schedule& candidate : candidates) {
    EXPECT_TRUE(names.insert(name_of(candidate)).second) << name_of(candidate);
    EXPECT_LE(Body::shared_bytes(candidate.config, gpu::Family::sm90), h200().shared_bytes) << name_of(candidate);
    const Schedule found = tuned(name_of(candidate));
    EXPECT_EQ(name_of(found), name_of(candidate));
    EXPECT_EQ(found.splits, candidate.splits);
  }
}

template <class Body = Forward>
typename Body::Params params_of(const gpu::Launch& launch) {
  EXPECT_TRUE(gpu::is_kernel<Body>(launch.key)) << launch.key.body->name;
  typename Body::Params params;
  std::memcpy(static_cast<void*>(&params), launch.params.data(), sizeof params);
  return params;
}

}  // namespace tilewise::backends::hopper
