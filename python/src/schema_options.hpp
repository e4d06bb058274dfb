// A struct of options as Python's bindings state it, by the schema of the operation whose calls hold it: which options
// are tensors, numbers instead of one, text of functions of scores, or other values, each with the name that it has in
// Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "core/names.hpp"
#include "operations/derived/call.hpp"
#include "operations/schema.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::python {

/// A member of a struct of options by the name that it has in Python.
template <typename Options_, typename Value_>
struct Option {
  using Options = Options_;
  using Value = Value_;
  static constexpr bool kIsFlag = false;
  std::string_view name;
  Value Options::* member;
};
/// One that comes as a flag: whether it has this value of an enumeration, else its default.
template <typename Options_, typename Enum>
struct FlagOption {
  using Options = Options_;
  using Value = Enum;
  static constexpr bool kIsFlag = true;
  std::string_view name;
  Enum Options::* member;
  Enum flagged;
};

/// Sets an option to what a caller gave: a flag for what is one, a name for an enumeration, else its value.
template <typename Options, typename Enum>
void set_option(Options& options, const FlagOption<Options, Enum>& option, bool given) {
  if (given) options.*option.member = option.flagged;
}
template <typename Options, typename Value, typename Given>
void set_option(Options& options, const Option<Options, Value>& option, const Given& given) {
  if constexpr (std::is_enum_v<Value>)
    options.*option.member = core::value_of<Value>(option.name, given);
  else
    options.*option.member = static_cast<Value>(given);
}

template <const auto& kSchema, typename Arguments>
class OptionsBySchema {
 public:
  enum class Kind : std::uint8_t { tensor, number, function, value };
  /// Tensors and fields that are left out, by their names, the latter where sequences are packed.
  using Without = bool (*)(std::string_view key);
  [[nodiscard]] static constexpr bool none(std::string_view) { return false; }

  /// Those of a kind, as a tuple in the order of the schema.
  template <Kind kind, Without without = none>
  [[nodiscard]] static constexpr auto of_kind() {
    constexpr bool kIsField = kind == Kind::function || kind == Kind::value;
    const auto pick = []<std::size_t place>(std::integral_constant<std::size_t, place>) {
      if constexpr (kIsField)
        return field_option<kind, without, place>();
      else
        return argument_option<kind, without, place>();
    };
    using Schema = std::remove_cvref_t<decltype(kSchema)>;
    using Rows = std::conditional_t<kIsField, decltype(Schema::fields), decltype(Schema::arguments)>;
    return [&pick]<std::size_t... places>(std::index_sequence<places...>) {
      return std::tuple_cat(pick(std::integral_constant<std::size_t, places>())...);
    }(std::make_index_sequence<operations::schema::kLengthOf<Rows>>());
  }

 private:
  template <typename Value, typename Options, typename Member>
  [[nodiscard]] static constexpr auto one(std::string_view name, Member Options::* member) {
    return std::tuple(Option<Options, Value>{name, member});
  }
  /// The member among those of a row that is in a struct within the arguments, as its only one; or none.
  template <typename Members>
  [[nodiscard]] static constexpr auto inner_member(const Members& members) {
    const auto found = operations::schema::member_in<Arguments>(members);
    if constexpr (operations::schema::kLengthOf<decltype(found)> == 0)
      return std::tuple<>();
    else if constexpr (requires { operations::schema::get<0>(found).inner; })
      return std::tuple(operations::schema::get<0>(found).inner);
    else
      return std::tuple<>();
  }

  /// Of the number instead of a tensor: "k_scale_value", and of an integer instead of "cache_seqlens" "cache_seqlen".
  template <std::size_t place, bool integer>
  static constexpr auto kNumberName = [] {
    constexpr std::string_view kTensor = operations::schema::get<place>(kSchema.arguments).tensor.name;
    constexpr std::string_view kStem = kTensor.substr(0, kTensor.size() - (integer ? 1 : 0));
    constexpr std::string_view kEnd = integer ? "" : "_value";
    std::array<char, kStem.size() + kEnd.size() + 1> name{};
    std::ranges::copy(kEnd, std::ranges::copy(kStem, name.begin()).out);
    return name;
  }();

  template <Kind kind, Without without, std::size_t place>
  [[nodiscard]] static constexpr auto argument_option() {
    constexpr auto kRow = operations::schema::get<place>(kSchema.arguments);
    constexpr auto kMember = [&] {
      if constexpr (kind == Kind::number)
        return inner_member(kRow.numbers);
      else
        return inner_member(kRow.members);
    }();
    if constexpr (std::tuple_size_v<std::remove_const_t<decltype(kMember)>> == 0) {
      return std::tuple<>();
    } else {
      constexpr auto kInner = std::get<0>(kMember);
      using Value = typename operations::schema::MemberOf<std::remove_const_t<decltype(kInner)>>::Value;
      constexpr bool kInteger = std::is_same_v<Value, std::optional<std::int64_t>>;
      if constexpr (kind == Kind::number)
        return one<Value>(kNumberName<place, kInteger>.data(), kInner);
      else if constexpr (std::is_same_v<Value, TensorView> && !without(kRow.tensor.name))
        return one<Value>(kRow.tensor.name, kInner);
      else  // left out, or a list: OptionsBinding takes that by itself
        return std::tuple<>();
    }
  }
  template <Kind kind, Without without, std::size_t place>
  [[nodiscard]] static constexpr auto field_option() {
    constexpr auto kRow = operations::schema::get<place>(kSchema.fields);
    constexpr auto kMember = inner_member(kRow.members);
    if constexpr (std::tuple_size_v<std::remove_const_t<decltype(kMember)>> == 0) {
      return std::tuple<>();
    } else {
      constexpr auto kInner = std::get<0>(kMember);
      using Value = typename operations::schema::MemberOf<std::remove_const_t<decltype(kInner)>>::Value;
      using Options = typename operations::schema::MemberOf<std::remove_const_t<decltype(kInner)>>::Class;
      constexpr bool kFunction = std::is_same_v<Value, std::string>;
      if constexpr (kFunction != (kind == Kind::function) || without(kRow.packed_key))
        return std::tuple<>();
      else if constexpr (std::is_same_v<Value, Mask>)
        return std::tuple(FlagOption<Options, Mask>{"causal", kInner, Mask::causal});
      else if constexpr (std::is_same_v<Value, Alignment>)
        return std::tuple(FlagOption<Options, Alignment>{"top_left", kInner, Alignment::top_left});
      else
        return one<Value>(kRow.packed_key, kInner);
    }
  }
};

}  // namespace tilewise::python
