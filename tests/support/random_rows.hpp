// What tests of random problems share: the rows they are for, how many problems, and how the cases are called.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "core/implementation.hpp"
#include "emulated_machines.hpp"

namespace tilewise {

/// The rows of an operation that this machine's CPU may run, without those: under emulation no random problem of a test
/// has products.
template <typename Problem>
[[nodiscard]] std::vector<std::string> cpu_rows_of() {
  constexpr const Problem* kTag = nullptr;
  std::vector<std::string> names;
  for (const core::Implementation* row : core::implementation_table()) {
    if (&row->operation() != &operation_of(kTag) || row->device() != DeviceType::cpu) continue;
    if (differs_in_products_alone(row->name())) continue;
    names.emplace_back(row->name());
  }
  return names;
}

/// Those without emulated ones, which compile kernels for nearly every problem that is drawn: tests/emulation has
/// theirs.
template <typename Problem>
[[nodiscard]] std::vector<std::string> native_rows_of() {
  std::vector<std::string> names = cpu_rows_of<Problem>();
  std::erase_if(names, [](const std::string& name) { return name.starts_with("emulation."); });
  return names;
}

/// As many problems, or the part of them that TILEWISE_TEST_PERCENT asks for.
[[nodiscard]] inline int problems_of(int count) {
  const char* const percent = std::getenv("TILEWISE_TEST_PERCENT");
  return percent == nullptr ? count : std::max(1, static_cast<int>(count * std::strtod(percent, nullptr) / 100));
}

/// "cpu_generic".
[[nodiscard]] inline std::string case_of_row(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::ranges::replace(name, '.', '_');
  return name;
}

}  // namespace tilewise
