// From structs of the C interface to arguments, by the schema that lists the members of both.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "core/c_api.hpp"
#include "core/names.hpp"
#include "operations/derived/call.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

// What C's values mean: -1 is no integer and 0 no number where there may be none, NULL no text, and not 0 true.
inline void take_c_value(std::string_view /*key*/, bool& value, std::int32_t given) { value = given != 0; }
inline void take_c_value(std::string_view /*key*/, double& value, double given) { value = given; }
inline void take_c_value(std::string_view /*key*/, std::int64_t& value, std::int64_t given) { value = given; }
inline void take_c_value(std::string_view /*key*/, std::optional<std::int64_t>& value, std::int64_t given) {
  value = given == -1 ? std::nullopt : std::optional(given);
}
inline void take_c_value(std::string_view /*key*/, std::optional<double>& value, double given) {
  value = given == 0.0 ? std::nullopt : std::optional(given);
}
inline void take_c_value(std::string_view /*key*/, std::string& value, const char* given) {
  if (given != nullptr) value = given;
}
template <typename Enum>
  requires std::is_enum_v<Enum>
void take_c_value(std::string_view key, Enum& value, std::int32_t given) {
  value = core::value_at<Enum>(key, given);
}

/// Sets the tensors and fields of which both structs have a member.
template <const auto& kSchema, typename Struct, typename Arguments>
void take_c(const Struct& c, Arguments& arguments) {
  /// Calls take(of arguments, of the struct) where both have one of the members.
  const auto with_both = [&](const auto& members, const auto& take) {
    const auto own = member_in<Arguments>(members);
    const auto given = member_in<Struct>(members);
    if constexpr (kLengthOf<decltype(own)> > 0 && kLengthOf<decltype(given)> > 0)
      take(held(arguments, get<0>(own)), c.*get<0>(given));
  };
  const auto take_argument = [&](const auto& row) {
    const std::string_view name = row.tensor.name;
    with_both(row.members, [name](TensorView& view, const DLTensor* given) { view = core::c::view_of(given, name); });
    with_both(row.numbers, [name](auto& number, auto given) { take_c_value(name, number, given); });
  };
  const auto take_field = [&](const auto& row) {
    with_both(row.members, [&row](auto& value, const auto& given) { take_c_value(row.key, value, given); });
  };
  apply([&](const auto&... rows) { (take_argument(rows), ...); }, kSchema.arguments);
  apply([&](const auto&... rows) { (take_field(rows), ...); }, kSchema.fields);
}

}  // namespace tilewise::operations::schema
