// Quantising as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/derived/operation.hpp"
#include "operations/quantize/call.hpp"
#include "operations/quantize/features.hpp"
#include "operations/quantize/rules.hpp"

namespace tilewise::operations {

struct Quantize : schema::Derived<quantize::kSchema> {
  using Feature = quantize::Feature;
  using Params = quantize::QuantizeParams;
  static constexpr auto kFeatureNames = quantize::kFeatureNames;

  static void validate(const Problem& problem) { quantize::validate(problem); }
  static Problem canonical(const Problem& problem) { return quantize::canonical(problem); }
  static quantize::FeatureSet required_features(const Problem& problem) { return quantize::required_features(problem); }
  static Problem describe(const Call& call) { return quantize::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return quantize::make_params(call, problem); }
  static void check_device_values(const Call&, const Problem&, void*) {}  // nothing that kernels read can lead astray
};

namespace quantize {

using Kernel = core::KernelOf<QuantizeParams>;
using Implementation = core::ImplementationOf<Quantize>;

}  // namespace quantize
}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in quantize.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::Quantize>(const operations::Quantize::Call&, const SelectOptions&, void*,
                                                    WorkspaceSource*);

}  // namespace tilewise::core
