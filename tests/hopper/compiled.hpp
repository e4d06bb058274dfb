// Hopper's kernels, compiled by NVRTC, and what of them lies outside of registers.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <exception>
#include <string>
#include <string_view>
#include <vector>

#include "backends/cuda/hopper/linear.hpp"
#include "backends/cuda/hopper/moe.hpp"
#include "gpu/compile_ahead.hpp"
#include "jit/kernel_cache.hpp"
#include "jit/search_paths.hpp"
#include "register_problems.hpp"
#include "support.hpp"
#include "tilewise/linear.hpp"
#include "tilewise/moe.hpp"

namespace tilewise::backends::hopper {

class HopperCompiled : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (const char* name : {"TILEWISE_BUNDLE", "TILEWISE_KEEP_SOURCE"}) unsetenv(name);
    jit::add_package_folders({PACKAGE_FOLDER});
  }
  void SetUp() override {
    if (const std::string reason = jit::compiler_reason(target_); !reason.empty()) GTEST_SKIP() << reason;
  }

  void add(const gpu::Lowering& lowering) { gpu::add_builds(lowering.launches(), target_, builds_); }

  /// Problems of one operation, whose text begins so.
  template <typename AnyProblem>
  void add_each(std::string_view operation, const std::vector<std::string>& problems) {
    for (const std::string& problem : problems) {
      const gpu::Outcome outcome = lower(AnyProblem(parse_problem(core::concat(operation, problem))), h200());
      ASSERT_EQ(outcome.refusal, "");
      add(outcome.lowering);
    }
  }

  /// One failure for each kernel that does not compile, passes the limit, or whose products wait for one another.
  void expect_few_spills(std::int64_t most) {
    ASSERT_FALSE(builds_.empty());
    gpu::compile_ahead(builds_);
    for (const gpu::KernelBuild& build : builds_) {
      try {
        if (build.error) std::rethrow_exception(build.error);
      } catch (const std::exception& thrown) {
        ADD_FAILURE() << thrown.what() << "\n" << build.source.stub;
        continue;
      }
      EXPECT_GT(build.compiled->resources.registers, 0) << build.source.stub;
      EXPECT_LE(build.compiled->resources.spill_bytes, most) << build.source.stub;
      // ptxas says so where each product waits for the one before, at a third of the speed.
      EXPECT_EQ(build.compiled->log.find("wgmma.mma_async instructions are serialized"), std::string::npos)
          << build.compiled->log << build.source.stub;
    }
  }

  void attention_keeps_to_registers(Registers registers) {
    // Most of a kernel at its limit are of what only rows whose scores are huge have use for, outside the loops.
    constexpr std::int64_t kMostSpilled = 112;
    for (const std::string& problem : forward_problems(registers)) add(lowered(problem + " num_heads_q=32"));
    for (const std::string& problem : backward_problems(registers)) add(lowered_backward(problem + " num_heads_q=32"));
    add_each<KvCacheProblem>("kv_cache_attention device=cuda cache_seqlens=1 ", step_problems(registers));
    expect_few_spills(kMostSpilled);
  }

  /// Accumulators of 256 columns leave little: most is spilled with eight experts' columns held, 388 bytes, and the
  /// speeds of docs/hopper.md include it.
  void expert_layers_keep_to_registers(Registers registers) {
    constexpr std::int64_t kMostSpilled = 400;
    add_each<MoeProblem>("moe device=cuda ", expert_problems(registers));
    expect_few_spills(kMostSpilled);
  }

  /// Likewise: 316 bytes of products whose sides are swapped, and 24 of slopes.
  void expert_gradients_keep_to_registers(Registers registers) {
    constexpr std::int64_t kMostSpilled = 400;
    add_each<MoeProblem>("moe_backward device=cuda ", expert_backward_problems(registers));
    expect_few_spills(kMostSpilled);
  }

  /// Their accumulators fill the registers that their warpgroups take.
  void linear_layers_keep_to_registers(Registers registers) {
    add_each<LinearProblem>("linear device=cuda ", linear_problems(registers));
    expect_few_spills(0);
  }

  /// Their tiles are found by numbers that lanes hold beside them, outside of the loops.
  void grouped_layers_keep_to_registers() {
    constexpr std::int64_t kMostSpilled = 320;
    add_each<LinearProblem>("linear device=cuda ", grouped_problems());
    expect_few_spills(kMostSpilled);
  }

  jit::Target target_ = jit::parse_target("sm_90a");

 private:
  std::vector<gpu::KernelBuild> builds_;
};

}  // namespace tilewise::backends::hopper
