// The fields of a schema as problem text, hash, comparison and drawing walk over them; see core/problem_text.hpp.
#pragma once

#include <algorithm>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/spelling.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

template <typename Problem, typename Value, typename Default, typename... Members, typename Visit>
[[gnu::always_inline]] inline void visit_field(const Field<Problem, Value, Default, Members...>& field,
                                               Problem& problem, const Visit& visit) {
  if (!field.is_in(problem)) return;
  const std::string_view key = is_packed(problem) ? field.packed_key : field.key;
  if constexpr (std::is_same_v<Default, Fresh> && std::is_trivially_copyable_v<Problem>) {
    constexpr Problem kFresh;
    visit(key, problem.*field.value, kFresh.*field.value);
  } else if constexpr (std::is_same_v<Default, Fresh>) {  // of text, which no constant holds
    static const Problem kFresh;
    visit(key, problem.*field.value, kFresh.*field.value);
  } else if constexpr (std::is_invocable_v<Default, const Problem&>) {
    visit(key, problem.*field.value, field.by_default(problem));
  } else {
    visit(key, problem.*field.value, field.by_default);
  }
}

template <typename Problem, typename Value, typename Visit>
void visit_field(const WordField<Problem, Value>& field, Problem& problem, const Visit& visit) {
  Value word = field.value(problem);
  visit(field.key, word, Value());
  field.put(problem, word);
}

/// Calls visit(key, field, default) in the order of printing.
template <const auto& kSchema, typename Problem, typename Visit>
void for_each_field(Problem& problem, const Visit& visit) {
  // Each as a constant: what it says of the problem is written out, not called by address.
  [&]<std::size_t... n>(std::index_sequence<n...>) {
    const auto visit_one = [&]<std::size_t i>(std::integral_constant<std::size_t, i>) {
      constexpr auto kField = get<i>(kSchema.fields);
      visit_field(kField, problem, visit);
    };
    (visit_one(std::integral_constant<std::size_t, n>()), ...);
  }(std::make_index_sequence<kLengthOf<decltype(kSchema.fields)>>());
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
  apply([&](const auto&... fields) { (look_at(fields), ...); }, kSchema.fields);
}

template <const auto& kSchema, typename Problem>
[[nodiscard]] std::vector<std::string_view> keys_of(Problem problem) {
  std::vector<std::string_view> keys;
  for_each_field<kSchema>(problem, [&keys](std::string_view key, const auto&, const auto&) { keys.push_back(key); });
  return keys;
}

template <const auto& kSchema, typename Problem>
[[nodiscard]] bool has_key(const Problem& problem, std::string_view key) {
  const std::vector<std::string_view> keys = keys_of<kSchema>(problem);
  return std::ranges::find(keys, key) != keys.end();
}

/// What makes problems like this one have a key that it has not, in words; "" where no field says so.
template <const auto& kSchema, typename Problem>
[[nodiscard]] std::string_view what_a_key_needs(std::string_view key, const Problem& problem) {
  std::string_view words;
  const auto look_at = [&](const auto& field) {
    if ((is_packed(problem) ? field.packed_key : field.key) == key && !field.is_in(problem)) words = field.exists_with;
  };
  apply([&](const auto&... fields) { (look_at(fields), ...); }, kSchema.fields);
  return words;
}

/// Throws for a word that is no key of problems like `problem`, with what was probably meant.
template <const auto& kSchema, typename Problem>
[[noreturn]] void refuse_key(std::string_view key, const Problem& problem) {
  using Schema = std::remove_cvref_t<decltype(kSchema)>;
  if constexpr (requires { problem.layout; }) {
    Problem other = problem;
    other.layout = is_packed(problem) ? Layout::bshd : Layout::thd;
    if (has_key<kSchema>(other, key)) {
      core::invalid_argument(key, is_packed(problem) ? ": excludes layout=thd" : ": requires layout=thd",
                             " (got layout=", core::name_of(problem.layout), ")");
    }
  }
  if (const std::string_view words = what_a_key_needs<kSchema>(key, problem); !words.empty())
    core::invalid_argument(key, ": requires ", words, " (got a problem without)");
  for (std::size_t call = 0; call < Schema::kCalls; ++call) {
    Problem other = problem;
    other.*Schema::kKind = static_cast<typename Schema::Names>(call);
    if (has_key<kSchema>(other, key)) {
      core::invalid_argument(key, ": belongs to ", core::name_of(other.*Schema::kKind), " (got it in ",
                             core::name_of(problem.*Schema::kKind), ")");
    }
  }
  core::invalid_argument("problem: unknown key", core::did_you_mean(key, keys_of<kSchema>(problem)), " (got ",
                         core::quoted(key), ")");
}

}  // namespace tilewise::operations::schema
