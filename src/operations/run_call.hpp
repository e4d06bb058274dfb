// core::run_call() of every operation, out of the library: what finds a call's plan and launches it is compiled there
// once, and the module has no copies of it.
#pragma once

#include <cstddef>
#include <type_traits>

#include "core/run.hpp"
#include "core/visibility.hpp"
#include "operations/list.hpp"

namespace tilewise::operations {

/// `call` is a Call of the operation at that place of All.
TILEWISE_INTERNAL void run_call_at(std::size_t place, const void* call, const SelectOptions& select, void* stream,
                                   core::WorkspaceSource* workspace);

/// How many operations of the list stand before it.
template <typename Op, typename... Traits>
[[nodiscard]] constexpr std::size_t place_in(List<Traits...> /*operations*/) {
  std::size_t before = 0;
  (void)((std::is_same_v<Op, Traits> || (++before, false)) || ...);
  return before;
}

/// As in core/run.hpp.
template <typename Op>
void run_call(const typename Op::Call& call, const SelectOptions& select, void* stream,
              core::WorkspaceSource* workspace) {
  constexpr std::size_t kPlace = place_in<Op>(All());
  static_assert(kPlace < All::kSize, "an operation of the list");
  run_call_at(kPlace, &call, select, stream, workspace);
}

}  // namespace tilewise::operations
