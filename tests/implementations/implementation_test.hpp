// A test that runs once per row that attends in the implementation table, or says why this machine can't. Rows that
// compile a kernel for each configuration, emulations and GPUs, get samples that share configurations.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <vector>

#include "../support/emulated_machines.hpp"
#include "backends/emulation/emulation_backend.hpp"
#include "core/device.hpp"
#include "operations/attention/attention.hpp"
#include "tilewise/attention.hpp"
#include "verify/verify.hpp"

namespace tilewise::test {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

/// Attention's rows of the table: rows of other operations may share their names.
inline std::vector<const core::Implementation*> attention_rows() {
  constexpr const Problem* kTag = nullptr;
  std::vector<const core::Implementation*> rows;
  for (const core::Implementation* row : core::implementation_table())
    if (&row->operation() == &operation_of(kTag)) rows.push_back(row);
  return rows;
}

inline const core::Implementation& implementation_named(const std::string& name) {
  for (const core::Implementation* row : attention_rows())
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
  problem.device = implementation_named(name).device();
  for (const ExplainRow& row : explain(problem, {name}).rows)
    if (row.implementation == name) return row.accepted ? "" : row.reason;
  return "not in the table";
}

/// Whether a configuration of its own costs a compiler's run, of half a second or more: emulations and GPUs.
inline bool compiles_kernels(const core::Implementation& row) {
  return backends::is_emulation(row.name()) || row.device() != DeviceType::cpu;
}

class ImplementationTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const std::string reason = refusal_of(GetParam()); !reason.empty()) GTEST_SKIP() << reason;
  }
  void TearDown() override { set_num_threads(0); }

  [[nodiscard]] const core::Implementation& implementation() const { return implementation_named(GetParam()); }
  /// Of rows that compile for each of them, the first.
  [[nodiscard]] std::vector<DType> dtypes() const {
    std::vector<DType> dtypes = dtypes_of(implementation());
    if (is_compiled()) dtypes.resize(1);
    return dtypes;
  }
  [[nodiscard]] bool is_compiled() const { return compiles_kernels(implementation()); }
  [[nodiscard]] operations::attention::FeatureSet supported_features() const {
    return operations::attention::features_of(implementation());
  }
  /// Different seeds for different implementations: more problems seen.
  [[nodiscard]] std::uint64_t seed_base() const {
    const std::vector<std::string> names = verify::implementation_names();
    return 100000u * static_cast<std::uint64_t>(std::ranges::find(names, GetParam()) - names.begin());
  }
};

/// The reference and the CPU's rows.
inline std::vector<std::string> names_but_compiled() {
  std::vector<std::string> names;
  for (const core::Implementation* row : attention_rows())
    if (!compiles_kernels(*row)) names.emplace_back(row->name());
  return names;
}

/// The same without the reference, for suites that compare with it at length.
inline std::vector<std::string> names_but_reference() {
  std::vector<std::string> names = names_but_compiled();
  std::erase(names, "reference");
  return names;
}

/// The emulations, and rows of GPUs that are here: those of a test run, or what is left to the night. Not Hopper's
/// kernels, which leave odd dims to the portable ones and are tested by tests/emulation/hopper_paths_test.cpp and
/// hopper_bwd_paths_test.cpp; nor the emulations that differ from others in their operations alone, which
/// rdna4_test.cpp there tests.
inline std::vector<std::string> names_of_compiled(bool by_night) {
  std::vector<std::string> names;
  for (const core::Implementation* row : attention_rows()) {
    if (!compiles_kernels(*row)) continue;
    if (row->name() == "cuda.hopper" || row->name() == "emulation.sm90") continue;
    if (differs_in_products_alone(row->name())) continue;
    if (by_night != (row->name() == "emulation.sm80" || row->name() == "emulation.rdna")) continue;
    const core::DeviceSystem* device = core::device_system(row->device());
    if (device == nullptr || device->device_count() > 0) names.emplace_back(row->name());
  }
  return names;
}

/// "cpu.avx2" as part of a test's name.
inline std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
}

}  // namespace tilewise::test

/// Instantiates a suite over the reference and the CPU's rows, over the latter, or over those that compile kernels.
#define TILEWISE_FOR_EVERY_IMPLEMENTATION(suite)                                                    \
  INSTANTIATE_TEST_SUITE_P(Table, suite, testing::ValuesIn(::tilewise::test::names_but_compiled()), \
                           ::tilewise::test::test_name)
#define TILEWISE_FOR_EVERY_OTHER_IMPLEMENTATION(suite)                                               \
  INSTANTIATE_TEST_SUITE_P(Table, suite, testing::ValuesIn(::tilewise::test::names_but_reference()), \
                           ::tilewise::test::test_name)
#define TILEWISE_FOR_EVERY_COMPILED_IMPLEMENTATION(suite)                                                        \
  INSTANTIATE_TEST_SUITE_P(Compiled, suite, testing::ValuesIn(::tilewise::test::names_of_compiled(false)),       \
                           ::tilewise::test::test_name);                                                         \
  INSTANTIATE_TEST_SUITE_P(CompiledByNight, suite, testing::ValuesIn(::tilewise::test::names_of_compiled(true)), \
                           ::tilewise::test::test_name)
