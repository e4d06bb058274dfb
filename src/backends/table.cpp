// The dispatch table: the one place that knows every backend.
#include <span>
#include <vector>

#include "backends/cpu/cpu_backend.hpp"
#include "backends/reference/reference_backend.hpp"
#include "core/implementation.hpp"

namespace tilewise::core {

std::span<const Implementation* const> implementation_table() {
  static const std::vector<const Implementation*> table = [] {
    std::vector<const Implementation*> rows;
    for (const Implementation* row : backends::cpu_implementations()) rows.push_back(row);
    rows.push_back(&backends::reference_implementation());
    return rows;
  }();
  return table;
}

}  // namespace tilewise::core
