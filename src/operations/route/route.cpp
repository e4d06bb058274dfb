// The public functions of route.
#include "operations/route/route.hpp"

#include "tilewise/route.hpp"

namespace tilewise {

using operations::Route;

const core::OperationInterface& operation_of(const RouteProblem*) noexcept {
  static constexpr core::OperationOf<Route> kOperation;
  return kOperation;
}

std::size_t hash_value(const RouteProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const RouteProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const RouteProblem& problem) { operations::route::validate(problem); }

namespace {

/// Unlike Route::describe() this tells everything that is wrong with a call.
RouteProblem describe_whole(const Route::Call& call) {
  RouteProblem problem = Route::describe(call);
  core::check_call_apart<Route>(call, nullptr, 0);
  return problem;
}

}  // namespace

RouteProblem describe(const RouteArguments& arguments) { return describe_whole(Route::Call(arguments)); }
RouteProblem describe(const RouteBackwardArguments& arguments) { return describe_whole(Route::Call(arguments)); }

void run(const Plan& plan, const RouteArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Route>(plan, Route::Call(arguments), workspace, stream);
}

void run(const Plan& plan, const RouteBackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Route>(plan, Route::Call(arguments), workspace, stream);
}

void route(const RouteArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Route>(Route::Call(arguments), select, stream, nullptr);
}

void route_backward(const RouteBackwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Route>(Route::Call(arguments), select, stream, nullptr);
}

template void core::run_call<operations::Route>(const operations::Route::Call&, const SelectOptions&, void*,
                                                WorkspaceSource*);

}  // namespace tilewise
