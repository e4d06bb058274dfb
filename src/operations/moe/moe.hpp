// Experts as the framework sees them: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/derived/operation.hpp"
#include "operations/moe/call.hpp"
#include "operations/moe/features.hpp"
#include "operations/moe/rules.hpp"

namespace tilewise::operations {

struct Moe : schema::Derived<moe::kSchema> {
  using Feature = moe::Feature;
  using Params = moe::MoeParams;
  static constexpr auto kFeatureNames = moe::kFeatureNames;

  static void validate(const Problem& problem) { moe::validate(problem); }
  static Problem canonical(const Problem& problem) { return moe::canonical(problem); }
  static moe::FeatureSet required_features(const Problem& problem) { return moe::required_features(problem); }
  static Problem describe(const Call& call) { return moe::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return moe::make_params(call, problem); }
  static void check_device_values(const Call&, const Problem&, void*) {}  // any id has a meaning
};

namespace moe {

using Kernel = core::KernelOf<MoeParams>;
using Implementation = core::ImplementationOf<Moe>;

}  // namespace moe
}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in moe.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::Moe>(const operations::Moe::Call&, const SelectOptions&, void*,
                                               WorkspaceSource*);

}  // namespace tilewise::core
