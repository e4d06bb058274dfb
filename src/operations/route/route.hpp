// Route as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/derived/operation.hpp"
#include "operations/route/features.hpp"
#include "operations/route/params.hpp"
#include "operations/route/rules.hpp"
#include "operations/route/schema.hpp"

namespace tilewise::operations {

struct Route : schema::Derived<route::kSchema> {
  using Feature = route::Feature;
  using Params = route::RouteParams;
  static constexpr auto kFeatureNames = route::kFeatureNames;

  static void validate(const Problem& problem) { route::validate(problem); }
  static Problem canonical(const Problem& problem) { return route::canonical(problem); }
  static route::FeatureSet required_features(const Problem& problem) { return route::required_features(problem); }
  static Problem describe(const Call& call) { return route::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return route::make_params(call, problem); }
  static void check_device_values(const Call&, const Problem&, void*) {
  }  // an id that is no expert's counts for nothing
};

namespace route {

using Kernel = core::KernelOf<RouteParams>;
using Implementation = core::ImplementationOf<Route>;

}  // namespace route
}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in route.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::Route>(const operations::Route::Call&, const SelectOptions&, void*,
                                                 WorkspaceSource*);

}  // namespace tilewise::core
