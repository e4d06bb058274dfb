// AnyProblem, through the interface of whatever operation it belongs to.
#include "core/operation.hpp"

#include <vector>

#include "core/message.hpp"
#include "core/spelling.hpp"

namespace tilewise {
namespace core {
namespace {

const OperationInterface& operation_named(std::string_view name) {
  std::vector<std::string_view> names;
  for (const OperationInterface* operation : operation_table()) {
    for (const std::string_view known : operation->problem_names()) {
      if (known == name) return *operation;
      names.push_back(known);
    }
  }
  refuse_word("operation", name, names);
}

}  // namespace

void refuse_operation(const OperationInterface& actual, const OperationInterface& expected) {
  invalid_type("problem: must be one of ", expected.name(), " (got one of ", actual.name(), ")");
}

}  // namespace core

DeviceType AnyProblem::device() const noexcept { return operation_->device(value_.get()); }

bool operator==(const AnyProblem& a, const AnyProblem& b) noexcept {
  return core::ProblemView(a) == core::ProblemView(b);
}

std::size_t hash_value(const AnyProblem& problem) noexcept { return problem.operation().hash(problem.value()); }

std::string to_string(const AnyProblem& problem) { return problem.operation().text(problem.value()); }

AnyProblem parse_problem(std::string_view text) {
  core::Words words(text);
  return core::operation_named(words.operation()).parse(words);
}

void validate(const AnyProblem& problem) { problem.operation().validate(problem.value()); }

}  // namespace tilewise
