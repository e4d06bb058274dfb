// A test that runs once per row of the implementation table, or says why this machine can't.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "backends/emulation/emulation_backend.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {

inline const core::Implementation& implementation_named(const std::string& name) {
  for (const core::Implementation* row : core::implementation_table())
    if (row->name() == name) return *row;
  throw Error(ErrorCode::invalid_argument, "no implementation named " + name);
}

/// The dtypes of q, k and v that an implementation declares.
inline std::vector<DType> dtypes_of(const core::Implementation& implementation) {
  std::vector<DType> dtypes;
  for (const auto& [dtype, feature] : {std::pair{DType::f32, operations::attention::Feature::f32},
                                       {DType::bf16, operations::attention::Feature::bf16},
                                       {DType::f16, operations::attention::Feature::f16},
                                       {DType::f64, operations::attention::Feature::f64}})
    if (operations::attention::features_of(implementation).contains(feature)) dtypes.push_back(dtype);
  return dtypes;
}

/// Empty, or why the machine (or TILEWISE_CPU_ISA) rules the implementation out altogether.
inline std::string refusal_of(const std::string& name) {
  Problem problem = parse_problem("attention_forward seqlen_q=8 head_dim=16");
  problem.dtype = dtypes_of(implementation_named(name)).front();
  for (const ExplainRow& row : explain(problem, {name}).rows)
    if (row.implementation == name) return row.accepted ? "" : row.reason;
  return "not in the table";
}

class ImplementationTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = refusal_of(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }
  void TearDown() override { set_num_threads(0); }

  [[nodiscard]] const core::Implementation& implementation() const { return implementation_named(GetParam()); }
  [[nodiscard]] std::vector<DType> dtypes() const { return dtypes_of(implementation()); }
  [[nodiscard]] operations::attention::FeatureSet supported_features() const {
    return operations::attention::features_of(implementation());
  }
  /// Different seeds for different implementations: more problems seen.
  [[nodiscard]] std::uint64_t seed_base() const {
    const std::vector<std::string> names = verify::implementation_names();
    return 100000u * static_cast<std::uint64_t>(std::ranges::find(names, GetParam()) - names.begin());
  }
};

/// The table without the emulations: tests/emulation draws problems of few kernels for them.
inline std::vector<std::string> names_but_emulations() {
  std::vector<std::string> names = verify::implementation_names();
  std::erase_if(names, [](const std::string& name) { return backends::is_emulation(name); });
  return names;
}

/// The same without the reference, for suites that compare with it at length.
inline std::vector<std::string> names_but_reference() {
  std::vector<std::string> names = names_but_emulations();
  std::erase(names, "reference");
  return names;
}

/// "cpu.avx2" as part of a test's name.
inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
}

}  // namespace tilewise::test

/// Instantiates a suite over the table (emulations aside), or all of it but the reference.
#define TILEWISE_FOR_EVERY_IMPLEMENTATION(suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(Table, suite, testing::ValuesIn(::tilewise::test::names_but_emulations()), \
                           ::tilewise::test::test_name)
#define TILEWISE_FOR_EVERY_OTHER_IMPLEMENTATION(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(Table, suite, testing::ValuesIn(::tilewise::test::names_but_reference()), \
                           ::tilewise::test::test_name)
