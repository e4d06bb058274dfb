// The environment variables that Tilewise reads, in one list for whoever speaks of them.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/visibility.hpp"

namespace tilewise::core {

struct EnvironmentVariable {
  std::string_view name, meaning;
};

/// Those of the Python package among them, in the order in which they are shown.
[[nodiscard]] TILEWISE_INTERNAL std::span<const EnvironmentVariable> environment_variables();

/// A sentence about each variable that is set under a TILEWISE_ name and that nobody reads: a typing error, most
/// likely, which must not pass for a setting.
[[nodiscard]] TILEWISE_INTERNAL std::vector<std::string> unknown_variables();

}  // namespace tilewise::core
