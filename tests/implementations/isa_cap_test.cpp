// TILEWISE_CPU_ISA caps the CPU implementations. CTest runs this program once per value; without
// one nothing is capped.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>

#include "backends/cpu/cpu_features.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {
namespace {

#if defined(__aarch64__)
constexpr std::array<std::string_view, 3> kIsas{"generic", "neon", "neon_bf16"};
#else
constexpr std::array<std::string_view, 5> kIsas{"generic", "avx2", "avx512", "avx512_bf16", "amx_bf16"};
#endif

const backends::cpu::IsaStatus& machine_status(std::string_view isa) {
  return *std::ranges::find(backends::cpu::machine_isas(), isa,
                            [](const auto& status) { return to_string(status.isa); });
}

std::string cap() {
  const char* value = std::getenv("TILEWISE_CPU_ISA");
  return value ? value : "";
}

std::size_t rank_of(std::string_view isa) {
  for (std::size_t i = 0; i < kIsas.size(); ++i)
    if (kIsas[i] == isa) return i;
  return kIsas.size();
}

ExplainRow row_of(const Problem& problem, const std::string& implementation) {
  for (const ExplainRow& row : explain(problem).rows)
    if (row.implementation == implementation) return row;
  return {};
}

/// Both kinds of problem, so that every instruction set has one it could take.
Problem problem_of(std::string_view isa) {
  const bool bf16 = isa.ends_with("bf16");
  return parse_problem(std::string("attention_forward dtype=") + (bf16 ? "bf16" : "f32") +
                       " seqlen_q=40 num_heads_q=2 head_dim=32 mask=causal");
}

TEST(IsaCap, RefusesEverythingAboveItAndNamesTheVariable) {
  if (cap().empty()) GTEST_SKIP() << "TILEWISE_CPU_ISA is not set";
  for (const std::string_view isa : kIsas) {
    const ExplainRow row = row_of(problem_of(isa), "cpu." + std::string(isa));
    ASSERT_FALSE(row.implementation.empty()) << isa;
    if (rank_of(isa) <= rank_of(cap())) continue;
    EXPECT_FALSE(row.accepted) << isa;
    const bool machine_has_it = machine_status(isa).available;
    if (machine_has_it) {
      EXPECT_NE(row.reason.find("TILEWISE_CPU_ISA"), std::string::npos) << row.reason;
    }
  }
}

TEST(IsaCap, LeavesWhatTheMachineHasUpToIt) {
  for (const std::string_view isa : kIsas) {
    const backends::cpu::IsaStatus& machine = machine_status(isa);
    if (rank_of(isa) > rank_of(cap())) continue;
    const ExplainRow row = row_of(problem_of(isa), "cpu." + std::string(isa));
    EXPECT_EQ(row.accepted, machine.available) << isa << ": " << row.reason;
    if (!row.accepted) {
      EXPECT_EQ(row.reason, machine.reason) << isa;
    }
  }
}

TEST(IsaCap, ACpuImplementationIsChosenAndRight) {
  for (const std::string_view isa : {kIsas.front(), kIsas.back()}) {
    const Problem problem = problem_of(isa);
    const std::string chosen(plan(problem).implementation());
    ASSERT_TRUE(chosen.starts_with("cpu.")) << chosen;
    EXPECT_LE(rank_of(chosen.substr(4)), rank_of(cap())) << chosen;
    EXPECT_EQ(verify::check_implementation(problem, chosen, 1).to_string(), "ok");
  }
}

TEST(IsaCap, AnUnknownNameIsAnError) {
  const std::string kept = cap();
  setenv("TILEWISE_CPU_ISA", "avx1024", 1);
  try {
    (void)explain(problem_of("generic"));
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("TILEWISE_CPU_ISA"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("avx1024"), std::string::npos) << error.what();
  }
  kept.empty() ? unsetenv("TILEWISE_CPU_ISA") : setenv("TILEWISE_CPU_ISA", kept.c_str(), 1);
}

}  // namespace
}  // namespace tilewise::test
