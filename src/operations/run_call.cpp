// A table of core::run_call(), made over the list of operations.
#include "operations/run_call.hpp"

#include <array>

namespace tilewise::operations {
namespace {

using Run = void (*)(const void* call, const SelectOptions& select, void* stream, core::WorkspaceSource* workspace);

template <typename Op>
void run(const void* call, const SelectOptions& select, void* stream, core::WorkspaceSource* workspace) {
  core::run_call<Op>(*static_cast<const typename Op::Call*>(call), select, stream, workspace);
}

template <typename... Traits>
constexpr std::array<Run, sizeof...(Traits)> runs_of(List<Traits...> /*operations*/) {
  return {&run<Traits>...};
}

constexpr auto kRuns = runs_of(All());

}  // namespace

void run_call_at(std::size_t place, const void* call, const SelectOptions& select, void* stream,
                 core::WorkspaceSource* workspace) {
  kRuns[place](call, select, stream, workspace);
}

}  // namespace tilewise::operations
