// What the framework asks of an operation: a handful of pure functions on its problem. OperationOf<> makes them of
// an operation's traits, and what the traits lack does not compile.
#pragma once

#include <concepts>
#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "core/hasher.hpp"
#include "core/message.hpp"
#include "core/problem_text.hpp"
#include "core/visibility.hpp"
#include "tilewise/any_problem.hpp"

namespace tilewise::core {

/// Every `problem` below points at this operation's own type.
class OperationInterface {
 public:
  /// The folder under src/operations.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  /// First words of problem texts: a forward and a backward pass, say.
  [[nodiscard]] virtual std::span<const std::string_view> problem_names() const noexcept = 0;
  /// In the order of the bits of required_features().
  [[nodiscard]] virtual std::span<const std::string_view> feature_names() const noexcept = 0;

  [[nodiscard]] virtual DeviceType device(const void* problem) const noexcept = 0;
  virtual void validate(const void* problem) const = 0;
  [[nodiscard]] virtual FeatureBits required_features(const void* problem) const = 0;
  [[nodiscard]] virtual bool equal(const void* a, const void* b) const noexcept = 0;
  [[nodiscard]] virtual std::size_t hash(const void* problem) const noexcept = 0;
  [[nodiscard]] virtual std::string text(const void* problem) const = 0;
  /// Of the words of a text that begins with one of problem_names(); validated, in its normal form.
  [[nodiscard]] virtual AnyProblem parse(Words& words) const = 0;
  /// The one form of all problems that mean the same computation.
  [[nodiscard]] virtual AnyProblem canonical(const void* problem) const = 0;

 protected:
  constexpr OperationInterface() = default;
  ~OperationInterface() = default;
};

/// Every operation there is. Defined by src/operations/table.cpp, the one list of them.
[[nodiscard]] TILEWISE_INTERNAL std::span<const OperationInterface* const> operation_table();

/// A problem of any operation, borrowed: what lookups take, so that none of them allocates.
struct ProblemView {
  const OperationInterface* operation;
  const void* value;

  template <ProblemType Problem>
  ProblemView(const Problem& problem) noexcept  // NOLINT(google-explicit-constructor): a view of its argument
      : operation(&operation_of(&problem)), value(&problem) {}
  ProblemView(const AnyProblem& problem) noexcept  // NOLINT(google-explicit-constructor): likewise
      : operation(&problem.operation()), value(problem.value()) {}

  [[nodiscard]] DeviceType device() const noexcept { return operation->device(value); }
  /// The view's problem, which must be of this type.
  template <ProblemType Problem>
  [[nodiscard]] const Problem& as() const noexcept {
    return *static_cast<const Problem*>(value);
  }
  friend bool operator==(const ProblemView& a, const ProblemView& b) noexcept {
    return a.operation == b.operation && (a.value == b.value || a.operation->equal(a.value, b.value));
  }
};

/// Traits are a struct of the operation:
///   Problem, Feature               types
///   kName, kProblemNames, kFeatureNames
///   problem_name(problem)          index into kProblemNames; select_name(problem, index) sets it
///   for_each_field(problem, visit) the one list of fields; see problem_text.hpp
///   expand(words)                  rewrites short forms among the words of a text
///   refuse_key(key, problem)       throws, for a key that is no field of such a problem
///   validate, canonical, required_features, device: of a problem
template <typename Traits>
class OperationOf final : public OperationInterface {
 public:
  using Problem = typename Traits::Problem;
  constexpr OperationOf() = default;

  [[nodiscard]] std::string_view name() const noexcept override { return Traits::kName; }
  [[nodiscard]] std::span<const std::string_view> problem_names() const noexcept override {
    return Traits::kProblemNames;
  }
  [[nodiscard]] std::span<const std::string_view> feature_names() const noexcept override {
    return Traits::kFeatureNames;
  }
  [[nodiscard]] DeviceType device(const void* problem) const noexcept override { return of(problem).device; }
  void validate(const void* problem) const override { Traits::validate(of(problem)); }
  [[nodiscard]] FeatureBits required_features(const void* problem) const override {
    return Traits::required_features(of(problem)).bits();
  }
  [[nodiscard]] bool equal(const void* a, const void* b) const noexcept override { return of(a) == of(b); }
  [[nodiscard]] std::size_t hash(const void* problem) const noexcept override {
    Hasher hasher;
    hasher.add(static_cast<std::int64_t>(Traits::problem_name(of(problem))));
    Problem copy = of(problem);  // the list of fields serves reading too and so wants to write
    Traits::for_each_field(copy,
                           [&hasher](std::string_view, const auto& field, const auto&) { add_to(hasher, field); });
    return hasher.value();
  }
  [[nodiscard]] std::string text(const void* problem) const override {
    std::string text{Traits::kProblemNames[Traits::problem_name(of(problem))]};
    Problem copy = of(problem);
    Traits::for_each_field(copy,
                           [&text]<typename Field>(std::string_view key, const Field& field, const auto& by_default) {
                             if constexpr (std::is_assignable_v<Field&, decltype(by_default)>) {
                               if (field == by_default) return;
                             }
                             print_word(text, key, field);
                           });
    return text;
  }
  [[nodiscard]] AnyProblem parse(Words& words) const override {
    Problem problem;
    Traits::select_name(problem, index_of(words.operation()));
    Traits::expand(words);
    std::string_view missing;
    Traits::for_each_field(problem, [&](std::string_view key, auto& field, const auto& by_default) {
      if (!read_field(words, key, field, by_default) && missing.empty()) missing = key;
    });
    // A key that is mistyped first: it may be the one that is missing.
    if (!words.left().empty()) Traits::refuse_key(words.left(), problem);
    if (!missing.empty()) invalid_argument(missing, ": must be given (got no such word)");
    Traits::validate(problem);
    return Traits::canonical(problem);
  }
  [[nodiscard]] AnyProblem canonical(const void* problem) const override { return Traits::canonical(of(problem)); }

 private:
  [[nodiscard]] static const Problem& of(const void* problem) { return *static_cast<const Problem*>(problem); }
  [[nodiscard]] static std::size_t index_of(std::string_view name) {
    std::size_t index = 0;
    while (Traits::kProblemNames[index] != name) ++index;
    return index;
  }
};

}  // namespace tilewise::core
