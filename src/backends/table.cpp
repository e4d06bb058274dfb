// The dispatch table: the one place that knows every backend.
#include <span>
#include <vector>

#ifdef TILEWISE_HAS_CPU
#include "backends/cpu/cpu_backend.hpp"
#endif
#include "backends/reference/reference_backend.hpp"
#include "core/implementation.hpp"

namespace tilewise::core {

std::span<const Implementation* const> implementation_table() {
  static const std::vector<const Implementation*> table = [] {
    std::vector<const Implementation*> rows;
#ifdef TILEWISE_HAS_CPU
    for (const Implementation* row : backends::cpu_implementations()) rows.push_back(row);
#endif
    rows.push_back(&backends::reference_implementation());
    return rows;
  }();
  return table;
}

}  // namespace tilewise::core
