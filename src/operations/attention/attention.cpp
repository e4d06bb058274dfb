// The public functions of attention.
#include "operations/attention/attention.hpp"

#include "tilewise/attention.hpp"

namespace tilewise {

using operations::Attention;
using operations::attention::call_of;

const core::OperationInterface& operation_of(const AttentionProblem*) noexcept {
  static constexpr core::OperationOf<Attention> kOperation;
  return kOperation;
}

std::size_t hash_value(const AttentionProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const AttentionProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const AttentionProblem& problem) { operations::attention::validate(problem); }

namespace {

/// Unlike attention::describe(), which plans that have no memory yet go by, this tells everything that is wrong with a
/// call.
AttentionProblem describe_whole(const operations::attention::Call& call) {
  AttentionProblem problem = Attention::describe(call);
  core::check_call_apart<Attention>(call, nullptr, 0);
  return problem;
}

}  // namespace

AttentionProblem describe(const ForwardArguments& arguments) { return describe_whole(call_of(arguments)); }
AttentionProblem describe(const BackwardArguments& arguments) { return describe_whole(call_of(arguments)); }

void run(const Plan& plan, const ForwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Attention>(plan, call_of(arguments), workspace, stream);
}

void run(const Plan& plan, const BackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Attention>(plan, call_of(arguments), workspace, stream);
}

void attention_forward(const ForwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Attention>(call_of(arguments), select, stream, nullptr);
}

void attention_backward(const BackwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Attention>(call_of(arguments), select, stream, nullptr);
}

template void core::run_call<operations::Attention>(const operations::Attention::Call&, const SelectOptions&, void*,
                                                    WorkspaceSource*);

}  // namespace tilewise
