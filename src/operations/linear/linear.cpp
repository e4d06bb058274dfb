// The public functions of linear layers.
#include "operations/linear/linear.hpp"

#include "tilewise/linear.hpp"

namespace tilewise {

using operations::Linear;

const core::OperationInterface& operation_of(const LinearProblem*) noexcept {
  static constexpr core::OperationOf<Linear> kOperation;
  return kOperation;
}

std::size_t hash_value(const LinearProblem& problem) noexcept { return operation_of(&problem).hash(&problem); }
std::string to_string(const LinearProblem& problem) { return operation_of(&problem).text(&problem); }
void validate(const LinearProblem& problem) { operations::linear::validate(problem); }

namespace {

/// Unlike Linear::describe() this tells everything that is wrong with a call.
LinearProblem describe_whole(const Linear::Call& call) {
  LinearProblem problem = Linear::describe(call);
  core::check_call_apart<Linear>(call, nullptr, 0);
  return problem;
}

}  // namespace

LinearProblem describe(const LinearArguments& arguments) { return describe_whole(Linear::Call(arguments)); }
LinearProblem describe(const LinearBackwardArguments& arguments) { return describe_whole(Linear::Call(arguments)); }

void run(const Plan& plan, const LinearArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Linear>(plan, Linear::Call(arguments), workspace, stream);
}

void run(const Plan& plan, const LinearBackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned<Linear>(plan, Linear::Call(arguments), workspace, stream);
}

void linear(const LinearArguments& arguments, const SelectOptions& select, void* stream) {
  for (const auto& [name, view] : {std::pair{"offsets", arguments.offsets}, std::pair{"counts", arguments.counts}})
    if (view.defined()) core::invalid_argument(name, ": belongs to grouped_linear (got it in linear)");
  core::run_call<Linear>(Linear::Call(arguments), select, stream, nullptr);
}

void grouped_linear(const LinearArguments& arguments, const SelectOptions& select, void* stream) {
  if (!arguments.offsets.defined() && !arguments.counts.defined())
    core::invalid_argument("offsets: must be given, or counts (got neither)");
  core::run_call<Linear>(Linear::Call(arguments), select, stream, nullptr);
}

void linear_backward(const LinearBackwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call<Linear>(Linear::Call(arguments), select, stream, nullptr);
}

template void core::run_call<operations::Linear>(const operations::Linear::Call&, const SelectOptions&, void*,
                                                 WorkspaceSource*);

}  // namespace tilewise
