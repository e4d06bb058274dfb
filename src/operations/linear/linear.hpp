// Linear layers as the framework sees them: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/derived/operation.hpp"
#include "operations/linear/call.hpp"
#include "operations/linear/features.hpp"
#include "operations/linear/rules.hpp"

namespace tilewise::operations {

struct Linear : schema::Derived<linear::kSchema> {
  using Feature = linear::Feature;
  using Params = linear::LinearParams;
  static constexpr auto kFeatureNames = linear::kFeatureNames;

  static void validate(const Problem& problem) { linear::validate(problem); }
  static Problem canonical(const Problem& problem) { return linear::canonical(problem); }
  static linear::FeatureSet required_features(const Problem& problem) { return linear::required_features(problem); }
  static Problem describe(const Call& call) { return linear::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return linear::make_params(call, problem); }
  static void check_device_values(const Call&, const Problem&, void*) {}  // kernels clamp offsets and counts
};

namespace linear {

using Kernel = core::KernelOf<LinearParams>;
using Implementation = core::ImplementationOf<Linear>;

}  // namespace linear
}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in linear.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::Linear>(const operations::Linear::Call&, const SelectOptions&, void*,
                                                  WorkspaceSource*);

}  // namespace tilewise::core
