// The dispatch table: the one place that knows every backend.
#include <span>
#include <vector>

#include "backends/cpu/cpu_backend.hpp"
#include "backends/cpu/kv_cache/kv_cache_backend.hpp"
#include "backends/cpu/linear/linear_backend.hpp"
#include "backends/cpu/merge/merge_backend.hpp"
#include "backends/cpu/moe/moe_backend.hpp"
#include "backends/cpu/quantize/quantize_backend.hpp"
#include "backends/cpu/route/route_backend.hpp"
#include "backends/cuda/cuda_backend.hpp"
#include "backends/emulation/emulation_backend.hpp"
#include "backends/hip/hip_backend.hpp"
#include "backends/reference/kv_cache/reference_kv_cache.hpp"
#include "backends/reference/linear/linear_backend.hpp"
#include "backends/reference/merge/reference_merge.hpp"
#include "backends/reference/moe/moe_backend.hpp"
#include "backends/reference/quantize/quantize_backend.hpp"
#include "backends/reference/reference_backend.hpp"
#include "backends/reference/route/reference_route.hpp"
#include "core/implementation.hpp"

namespace tilewise::core {

std::span<const Implementation* const> implementation_table() {
  static const std::vector<const Implementation*> table = [] {
    std::vector<const Implementation*> rows;
    for (const auto& backend : {backends::cuda_implementations(), backends::hip_implementations(),
                                backends::cpu_implementations(&backends::check_look_ups)}) {
      rows.insert(rows.end(), backend.begin(), backend.end());
    }
    rows.push_back(&backends::reference_implementation());
    for (const Implementation* row : backends::emulation_implementations()) rows.push_back(row);
    for (const Implementation* row : backends::cpu_kv_cache_implementations(&backends::check_cache_look_ups))
      rows.push_back(row);
    rows.push_back(&backends::reference_kv_cache_implementation());
    rows.push_back(&backends::cpu_merge_implementation());
    rows.push_back(&backends::reference_merge_implementation());
    for (const Implementation* row : backends::cpu_linear_implementations()) rows.push_back(row);
    rows.push_back(&backends::reference_linear_implementation());
    rows.push_back(&backends::cpu_route_implementation());
    rows.push_back(&backends::reference_route_implementation());
    for (const Implementation* row : backends::cpu_moe_implementations()) rows.push_back(row);
    rows.push_back(&backends::reference_moe_implementation());
    for (const Implementation* row : backends::cpu_quantize_implementations()) rows.push_back(row);
    rows.push_back(&backends::reference_quantize_implementation());
    return rows;
  }();
  return table;
}

}  // namespace tilewise::core
