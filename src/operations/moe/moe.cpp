// The public functions of experts.
#include "operations/moe/moe.hpp"

#include "tilewise/moe.hpp"

namespace tilewise {

using operations::Moe;

const core::OperationInterface& operation_of(const MoeProblem*) noexcept {
  static constexpr core::OperationOf<Moe> kOperation;
  return kOperation;
}

std::size_t hash_value(const MoeProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const MoeProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const MoeProblem& problem) { operations::moe::validate(problem); }

namespace {

/// Unlike Moe::describe() this tells everything that is wrong with a call.
MoeProblem describe_whole(const Moe::Call& call) {
  MoeProblem problem = Moe::describe(call);
  core::check_call_apart<Moe>(call, nullptr, 0);
  return problem;
}

}  // namespace

MoeProblem describe(const MoeArguments& arguments) { return describe_whole(Moe::Call(arguments)); }
MoeProblem describe(const MoeBackwardArguments& arguments) { return describe_whole(Moe::Call(arguments)); }

void run(const Plan& plan, const MoeArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Moe>(plan, Moe::Call(arguments), workspace, stream);
}

void run(const Plan& plan, const MoeBackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Moe>(plan, Moe::Call(arguments), workspace, stream);
}

void moe(const MoeArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Moe>(Moe::Call(arguments), select, stream, nullptr);
}

void moe_backward(const MoeBackwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Moe>(Moe::Call(arguments), select, stream, nullptr);
}

template void core::run_call<operations::Moe>(const operations::Moe::Call&, const SelectOptions&, void*,
                                              WorkspaceSource*);

}  // namespace tilewise
