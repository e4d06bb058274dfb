// Merge as the framework sees it: see OperationOf<> in core/operation.hpp and the functions of core/run.hpp.
#pragma once

#include "core/implementation.hpp"
#include "core/run.hpp"
#include "operations/merge/call.hpp"
#include "operations/merge/features.hpp"
#include "operations/merge/fields.hpp"
#include "operations/merge/last_call.hpp"
#include "operations/merge/rules.hpp"
#include "operations/merge/tensors.hpp"
#include "operations/merge/validate.hpp"

namespace tilewise::operations {

struct Merge {
  using Problem = MergeProblem;
  using Feature = merge::Feature;
  using Call = merge::Call;
  using LastCall = merge::LastCall;
  using Params = merge::MergeParams;

  static constexpr std::string_view kName = "merge";
  static constexpr auto kProblemNames = core::kNamesOf<MergePass>;
  static constexpr auto kFeatureNames = merge::kFeatureNames;

  static std::size_t problem_name(const Problem& problem) { return static_cast<std::size_t>(problem.pass); }
  static void select_name(Problem& problem, std::size_t index) { problem.pass = static_cast<MergePass>(index); }
  template <typename Visit>
  static void for_each_field(Problem& problem, Visit&& visit) {
    merge::for_each_field(problem, visit);
  }
  static void expand(core::Words&) {}  // there are no short forms
  static void validate(const Problem& problem) { merge::validate(problem); }
  static Problem canonical(const Problem& problem) { return merge::canonical(problem); }
  static merge::FeatureSet required_features(const Problem& problem) { return merge::required_features(problem); }
  [[noreturn]] static void refuse_key(std::string_view key, const Problem& problem) { merge::refuse_key(key, problem); }

  static std::size_t kind(const Call& call) { return static_cast<std::size_t>(call.pass); }
  static Device device(const Call& call) { return (call.backward() ? call.dout : call.out).device; }
  static Problem describe(const Call& call) { return merge::describe(call); }
  static Params make_params(const Call& call, const Problem& problem) { return merge::make_params(call, problem); }
  template <typename Visit>
  static void for_each_tensor(const Call& call, Visit&& visit) {
    merge::for_each_tensor(call, visit);
  }
  static void check_device_values(const Call&, const Problem&, void*) {}  // nothing that kernels read can lead astray
};

namespace merge {

using Kernel = core::KernelOf<MergeParams>;
using Implementation = core::ImplementationOf<Merge>;

}  // namespace merge
}  // namespace tilewise::operations
