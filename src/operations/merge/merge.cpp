// The public functions of merge.
#include "operations/merge/merge.hpp"

#include "tilewise/merge.hpp"

namespace tilewise {

using operations::Merge;

const core::OperationInterface& operation_of(const MergeProblem*) noexcept {
  static constexpr core::OperationOf<Merge> kOperation;
  return kOperation;
}

std::size_t hash_value(const MergeProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const MergeProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const MergeProblem& problem) { operations::merge::validate(problem); }

namespace {

/// Unlike Merge::describe() this tells everything that is wrong with a call.
MergeProblem describe_whole(const Merge::Call& call) {
  MergeProblem problem = Merge::describe(call);
  core::check_call_apart<Merge>(call, nullptr, 0);
  return problem;
}

}  // namespace

MergeProblem describe(const MergeArguments& arguments) { return describe_whole(Merge::Call(arguments)); }
MergeProblem describe(const MergeBackwardArguments& arguments) { return describe_whole(Merge::Call(arguments)); }

void run(const Plan& plan, const MergeArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Merge>(plan, Merge::Call(arguments), workspace, stream);
}

void run(const Plan& plan, const MergeBackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Merge>(plan, Merge::Call(arguments), workspace, stream);
}

void merge(const MergeArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Merge>(Merge::Call(arguments), select, stream, nullptr);
}

void merge_backward(const MergeBackwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Merge>(Merge::Call(arguments), select, stream, nullptr);
}

void merge(std::span<const TensorView> outs, std::span<const TensorView> lses, const TensorView& sink,
           const TensorView& out, const TensorView& softmax_lse, Layout layout) {
  MergeProblem stated;
  stated.layout = layout;
  const auto one = [](const TensorView& view) { return std::span(&view, 1); };
  const Merge::Call call(
      static_cast<std::size_t>(MergePass::merge), stated,
      {{"outs", outs}, {"lses", lses}, {"sink", one(sink)}, {"out", one(out)}, {"softmax_lse", one(softmax_lse)}});
  core::run_call<Merge>(call, {}, nullptr, nullptr);
}

template void core::run_call<operations::Merge>(const operations::Merge::Call&, const SelectOptions&, void*,
                                                WorkspaceSource*);

}  // namespace tilewise
