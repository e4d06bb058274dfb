// What core/operation.hpp and core/run.hpp ask of an operation, as far as it follows from a schema. An operation's
// traits inherit this and add Feature, Params, validate(), canonical(), describe(), required_features(), make_params()
// and check_device_values().
#pragma once

#include <cstddef>
#include <string_view>

#include "core/problem_text.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/fields.hpp"

namespace tilewise::operations::schema {

template <const auto& kOf>
struct Derived {
  static constexpr const auto& kSchema = kOf;
  using Schema = std::remove_cvref_t<decltype(kOf)>;
  using Problem = typename Schema::Problem;
  using Call = CallOf<kOf>;
  using LastCall = LastCallOf<kOf>;

  static constexpr std::string_view kName = kOf.name;
  static constexpr auto kProblemNames = core::kNamesOf<typename Schema::Names>;

  static std::size_t problem_name(const Problem& problem) { return static_cast<std::size_t>(problem.*Schema::kKind); }
  static void select_name(Problem& problem, std::size_t index) {
    problem.*Schema::kKind = static_cast<typename Schema::Names>(index);
  }
  template <typename Visit>
  static void for_each_field(Problem& problem, const Visit& visit) {
    schema::for_each_field<kOf>(problem, visit);
  }
  static void expand(core::Words&) {}  // there are no short forms
  [[noreturn]] static void refuse_key(std::string_view key, const Problem& problem) {
    schema::refuse_key<kOf>(key, problem);
  }

  static std::size_t kind(const Call& call) { return call.index(); }
  static Device device(const Call& call) { return call.one_at(call.anchor()).device; }
  template <typename Visit>
  static void for_each_tensor(const Call& call, Visit&& visit) {
    schema::for_each_tensor(call, visit);
  }
};

}  // namespace tilewise::operations::schema
