// The fields of a schema as problem text, hash, comparison and drawing walk over them; see core/problem_text.hpp.
#pragma once

#include <algorithm>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <vector>

#include "core/spelling.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

template <typename Problem, typename Value, typename Default, typename... Members, typename Visit>
void visit_field(const Field<Problem, Value, Default, Members...>& field, Problem& problem, const Visit& visit) {
  const bool packed = is_packed(problem);
  if (packed && field.unpacked_only) return;
  const std::string_view key = packed ? field.packed_key : field.key;
  if constexpr (std::is_same_v<Default, Fresh>) {
    constexpr Problem kFresh;
    visit(key, problem.*field.value, kFresh.*field.value);
  } else if constexpr (std::is_invocable_v<Default, const Problem&>) {
    visit(key, problem.*field.value, field.by_default(problem));
  } else {
    visit(key, problem.*field.value, field.by_default);
  }
}

/// Calls visit(key, field, default) in the order of printing.
template <const auto& kSchema, typename Problem, typename Visit>
void for_each_field(Problem& problem, const Visit& visit) {
  std::apply([&](const auto&... fields) { (visit_field(fields, problem, visit), ...); }, kSchema.fields);
}

/// Gives an element type the default of its field, which may depend on the fields before it.
template <const auto& kSchema, typename Problem>
void set_default(Problem& problem, DType Problem::* dtype) {
  const auto look_at = [&](const auto& field) {
    if constexpr (std::is_same_v<decltype(field.value), DType Problem::*>) {
      if (field.value != dtype) return;
      visit_field(field, problem, [](std::string_view, auto& value, const auto& by_default) {
        if constexpr (std::is_assignable_v<decltype(value), decltype(by_default)>) value = by_default;
      });
    }
  };
  std::apply([&](const auto&... fields) { (look_at(fields), ...); }, kSchema.fields);
}

template <const auto& kSchema, typename Problem>
[[nodiscard]] std::vector<std::string_view> keys_of(Problem problem) {
  std::vector<std::string_view> keys;
  for_each_field<kSchema>(problem, [&keys](std::string_view key, const auto&, const auto&) { keys.push_back(key); });
  return keys;
}

/// Throws for a word that is no key of problems like `problem`, with what was probably meant.
template <const auto& kSchema, typename Problem>
[[noreturn]] void refuse_key(std::string_view key, const Problem& problem) {
  const std::vector<std::string_view> keys = keys_of<kSchema>(problem);
  if constexpr (requires { problem.layout; }) {
    Problem other;
    other.layout = is_packed(problem) ? Layout::bshd : Layout::thd;
    const std::vector<std::string_view> other_keys = keys_of<kSchema>(other);
    if (std::ranges::find(other_keys, key) != other_keys.end()) {  // and not among `keys`
      core::invalid_argument(key, is_packed(problem) ? ": excludes layout=thd" : ": requires layout=thd",
                             " (got layout=", core::name_of(problem.layout), ")");
    }
  }
  core::invalid_argument("problem: unknown key", core::did_you_mean(key, keys), " (got ", core::quoted(key), ")");
}

}  // namespace tilewise::operations::schema
