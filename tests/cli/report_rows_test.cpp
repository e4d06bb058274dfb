// What rows of `tilewise verify --report` come to: refusals that another implementation makes up for are no failures.
#include "report_rows.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "operations/kv_cache/features.hpp"
#include "report_features.hpp"

namespace tilewise::tools {
namespace {

ReportRow row(const char* implementation, DeviceType device, bool backward, RowResult result) {
  return {implementation, device, "causal", backward ? "backward" : "forward", result, "a reason", false};
}

constexpr DeviceType kCuda = DeviceType::cuda, kHip = DeviceType::hip;

TEST(ReportRows, ARefusalThatAnotherMakesUpForIsShownAndNoFailure) {
  const std::vector<ReportRow> rows{
      row("cuda.hopper", kCuda, false, RowResult::pass), row("cuda.hopper", kCuda, true, RowResult::refused),
      row("cuda.sm80", kCuda, false, RowResult::pass), row("cuda.sm80", kCuda, true, RowResult::pass)};
  const ReportSummary summary = summarize(rows);
  EXPECT_TRUE(summary.good);
  EXPECT_EQ(summary.text, "3 passed, 1 refused, 0 failed\n");
}

TEST(ReportRows, AFeatureThatEveryImplementationRefusesIsAFailure) {
  const std::vector<ReportRow> rows{row("cuda.hopper", kCuda, false, RowResult::pass),
                                    row("cuda.hopper", kCuda, true, RowResult::refused),
                                    row("cuda.sm80", kCuda, true, RowResult::refused)};
  const ReportSummary summary = summarize(rows);
  EXPECT_FALSE(summary.good);
  EXPECT_EQ(summary.text,
            "1 passed, 2 refused, 0 failed\n"
            "every implementation on cuda refused causal, backward\n");
}

/// fp8 on an A100, say.
TEST(ReportRows, AFeatureThatOnlySomeGpusHaveMayBeRefused) {
  std::vector<ReportRow> rows{row("cuda.sm80", kCuda, true, RowResult::pass),
                              row("cuda.sm80", kCuda, false, RowResult::refused)};
  EXPECT_FALSE(summarize(rows).good);
  rows[1].some_gpus = true;
  EXPECT_TRUE(summarize(rows).good);
  EXPECT_EQ(summarize(rows).text, "1 passed, 1 refused, 0 failed\n");
  rows[1].result = RowResult::fail;
  EXPECT_FALSE(summarize(rows).good);
}

/// An AMD card is no help to a call whose tensors are on NVIDIA's.
TEST(ReportRows, ImplementationsOfAnotherKindOfDeviceMakeUpForNothing) {
  const std::vector<ReportRow> rows{row("cuda.sm80", kCuda, true, RowResult::pass),
                                    row("hip.cdna", kHip, true, RowResult::refused)};
  const ReportSummary summary = summarize(rows);
  EXPECT_FALSE(summary.good);
  EXPECT_EQ(summary.text,
            "1 passed, 1 refused, 0 failed\n"
            "every implementation on hip refused causal, backward\n");
}

TEST(ReportRows, AWrongResultIsAFailureWhateverOthersDo) {
  for (const RowResult result : {RowResult::fail, RowResult::crash}) {
    const std::vector<ReportRow> rows{row("cuda.hopper", kCuda, false, result),
                                      row("cuda.sm80", kCuda, false, RowResult::pass)};
    const ReportSummary summary = summarize(rows);
    EXPECT_FALSE(summary.good) << to_string(result);
    EXPECT_EQ(summary.text, "1 passed, 0 refused, 1 failed\n") << to_string(result);
  }
}

/// Each row's problem stands for what the row says; together those of the KV cache step ask for everything it has but
/// f32, which GPUs don't compute. The texts themselves are given to parse_problem() here, so that
/// none is wrong.
TEST(ReportFeatures, CoverTheKvCacheStep) {
  using operations::kv_cache::Feature, operations::kv_cache::FeatureSet;
  FeatureSet reached;
  std::set<std::pair<std::string, std::string>> names;
  for (const FeatureProblem& row : feature_table()) {
    EXPECT_TRUE(names.insert({row.feature, row.pass}).second) << row.feature;
    const AnyProblem problem = parse_problem(row.problem);
    if (const auto* attention = problem.get_if<Problem>()) {
      EXPECT_EQ(row.some_gpus, attention->dtype == DType::fp8_e4m3) << row.problem;
    }
    const auto* step = problem.get_if<KvCacheProblem>();
    EXPECT_EQ(step == nullptr, row.pass == "forward" || row.pass == "backward") << row.problem;
    if (step == nullptr) continue;
    EXPECT_EQ(step->call == KvCacheCall::append_kv, row.pass == "append") << row.problem;
    reached = FeatureSet::from_bits(reached.bits() | operations::kv_cache::required_features(*step).bits());
  }
  EXPECT_EQ(to_string(FeatureSet::all().minus(reached)), "f32");
}

TEST(ReportRows, NothingIsNotGood) { EXPECT_FALSE(summarize({}).good); }

TEST(ReportRows, OneLineSaysWhatAGpuIs) {
  core::DeviceDescription device;
  device.architecture = "gfx942";
  device.multiprocessors = 304;
  device.gigahertz = 2.1;
  device.shared_bytes = 64 << 10;
  device.memory_gigabytes_per_second = 5300.0;
  EXPECT_EQ(gpu_line(device, "clang 22.1"),
            "gfx942: 304 multiprocessors at 2.1 GHz, 64 KiB of shared memory a block, 5300 GB/s; kernels compiled by "
            "clang 22.1\n");
  EXPECT_NE(gpu_line(device, "").find("compiled by nothing that is here"), std::string::npos);
}

TEST(ReportRows, DetailsTellNobodysHome) {
  EXPECT_EQ(without_home("/home/ann/a.cpp:3: see /home/ann/b", "/home/ann/"), "~/a.cpp:3: see ~/b");
  EXPECT_EQ(without_home("/tmp/x", ""), "/tmp/x");
  EXPECT_EQ(without_home("/tmp/x", "/"), "/tmp/x");
}

}  // namespace
}  // namespace tilewise::tools
