// Attention as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "device/common/params.h"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/features.hpp"
#include "operations/attention/fields.hpp"
#include "operations/attention/last_call.hpp"
#include "operations/attention/lengths.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/schema.hpp"
#include "operations/attention/tensors.hpp"
#include "operations/attention/validate.hpp"
#include "operations/derived/operation.hpp"

namespace tilewise::operations {

struct Attention : schema::Derived<attention::kSchema> {
  using Feature = attention::Feature;
  using Call = attention::Call;
  using LastCall = attention::LastCall;
  using Params = device::AttentionParams;
  static constexpr auto kFeatureNames = attention::kFeatureNames;

  static void expand(core::Words& words) { attention::expand(words); }
  [[noreturn]] static void refuse_key(std::string_view key, const Problem& problem) {
    attention::refuse_key(key, problem);
  }
  static void validate(const Problem& problem) { attention::validate(problem); }
  static Problem canonical(const Problem& problem) { return attention::canonical(problem); }
  static attention::FeatureSet required_features(const Problem& problem) {
    return attention::required_features(problem);
  }
  static Problem describe(const Call& call) { return attention::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return attention::make_params(call, problem); }
  template <typename Visit>
  static void for_each_tensor(const Call& call, const Visit& visit) {
    attention::for_each_tensor(call, visit);
  }
  static void check_device_values(const Call& call, const Problem& problem, void* stream) {
    attention::check_device_lengths(call, problem, stream);
    attention::check_device_block_mask(call, problem, stream);
  }
};

}  // namespace tilewise::operations

namespace tilewise::core {

// Compiled in attention.cpp alone: it has most of what follows from a schema within, two seconds of a compiler.
extern template void run_call<operations::Attention>(const operations::Attention::Call&, const SelectOptions&, void*,
                                                     WorkspaceSource*);

}  // namespace tilewise::core

namespace tilewise::operations {
namespace attention {

using Kernel = core::KernelOf<device::AttentionParams>;
using Implementation = core::ImplementationOf<Attention>;

/// The features of a row of the table, which must be attention's.
[[nodiscard]] inline FeatureSet features_of(const core::Implementation& row) {
  return FeatureSet::from_bits(row.supported_features());
}

/// As in core/run.hpp.
inline void run_call(const Call& call, const SelectOptions& select, void* stream, core::WorkspaceSource* workspace) {
  core::run_call<Attention>(call, select, stream, workspace);
}
inline void prepare_call(const Call& call, const SelectOptions& select) { core::prepare_call<Attention>(call, select); }

}  // namespace attention
}  // namespace tilewise::operations
