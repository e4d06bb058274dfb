// AnyProblem: a problem of whatever operation, as planning, explaining and problem text see it.
// Each operation's own header has the struct behind it (AttentionProblem, MergeProblem).
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "tilewise/cxx20.hpp"
#include "tilewise/error.hpp"
#include "tilewise/export.h"
#include "tilewise/tensor.hpp"

namespace tilewise {

namespace core {
class OperationInterface;
[[noreturn]] TILEWISE_EXPORT void refuse_operation(const OperationInterface& actual,
                                                   const OperationInterface& expected);
}  // namespace core

/// A struct that an operation declares as its problem, by a function operation_of() beside it.
template <typename Type>
concept ProblemType = requires(const Type* problem) {
  { operation_of(problem) } -> std::same_as<const core::OperationInterface&>;
};

/// An immutable value: comparable, hashable, printable as one line and parsed back from it. Converts to and from the
/// problem of an operation.
class AnyProblem {
 public:
  template <ProblemType Problem>
  AnyProblem(Problem problem)  // NOLINT(google-explicit-constructor): a problem is one of any operation
      : operation_(&operation_of(&problem)), value_(std::make_shared<const Problem>(std::move(problem))) {}
  AnyProblem(const core::OperationInterface& operation, std::shared_ptr<const void> value) noexcept
      : operation_(&operation), value_(std::move(value)) {}

  [[nodiscard]] const core::OperationInterface& operation() const noexcept { return *operation_; }
  [[nodiscard]] const void* value() const noexcept { return value_.get(); }
  /// Where the tensors are.
  [[nodiscard]] TILEWISE_EXPORT DeviceType device() const noexcept;

  /// Null where the problem is another operation's.
  template <ProblemType Problem>
  [[nodiscard]] const Problem* get_if() const noexcept {
    constexpr const Problem* kTag = nullptr;
    return operation_ == &operation_of(kTag) ? static_cast<const Problem*>(value_.get()) : nullptr;
  }
  /// Throws Error(invalid_type) where the problem is another operation's.
  template <ProblemType Problem>
  [[nodiscard]] const Problem& get() const {
    constexpr const Problem* kTag = nullptr;
    if (const Problem* problem = get_if<Problem>()) return *problem;
    core::refuse_operation(*operation_, operation_of(kTag));
  }
  template <ProblemType Problem>
  operator Problem() const {  // NOLINT(google-explicit-constructor): as above; throws as get() does
    return get<Problem>();
  }

  template <ProblemType Problem>
  friend bool operator==(const AnyProblem& a, const Problem& b) noexcept {
    const Problem* own = a.get_if<Problem>();
    return own != nullptr && *own == b;
  }

 private:
  const core::OperationInterface* operation_;
  std::shared_ptr<const void> value_;
};

[[nodiscard]] TILEWISE_EXPORT bool operator==(const AnyProblem& a, const AnyProblem& b) noexcept;
[[nodiscard]] TILEWISE_EXPORT std::size_t hash_value(const AnyProblem& problem) noexcept;

/// One line: the operation, then key=value in a fixed order, defaults left out.
[[nodiscard]] TILEWISE_EXPORT std::string to_string(const AnyProblem& problem);

/// Parses to_string()'s form (keys in any order). Throws Error(invalid_argument) that quotes
/// the word it could not read. The result is validated and in its normal form.
[[nodiscard]] TILEWISE_EXPORT AnyProblem parse_problem(std::string_view text);

/// Throws Error naming the first field that is out of range or contradicts another.
TILEWISE_EXPORT void validate(const AnyProblem& problem);

}  // namespace tilewise
