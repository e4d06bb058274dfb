// Merge as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/derived/operation.hpp"
#include "operations/merge/features.hpp"
#include "operations/merge/params.hpp"
#include "operations/merge/rules.hpp"
#include "operations/merge/schema.hpp"

namespace tilewise::operations {

struct Merge : schema::Derived<merge::kSchema> {
  using Feature = merge::Feature;
  using Params = merge::MergeParams;
  static constexpr auto kFeatureNames = merge::kFeatureNames;

  static void validate(const Problem& problem) { merge::validate(problem); }
  static Problem canonical(const Problem& problem) { return merge::canonical(problem); }
  static merge::FeatureSet required_features(const Problem& problem) { return merge::required_features(problem); }
  static Problem describe(const Call& call) { return merge::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return merge::make_params(call, problem); }
  static void check_device_values(const Call&, const Problem&, void*) {}  // nothing that kernels read can lead astray
};

namespace merge {

using Kernel = core::KernelOf<MergeParams>;
using Implementation = core::ImplementationOf<Merge>;

}  // namespace merge
}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in merge.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::Merge>(const operations::Merge::Call&, const SelectOptions&, void*,
                                                 WorkspaceSource*);

}  // namespace tilewise::core
