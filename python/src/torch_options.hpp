// Options of a call as torch's operators take them: their words in a schema of torch's, and what its stack holds of
// them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>

#include "core/message.hpp"
#include "core/names.hpp"
#include "schema_options.hpp"
#include "torch_shim.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {

/// "float? softmax_scale"
template <typename Option>
[[nodiscard]] std::string option_text(const Option& option) {
  using Value = typename Option::Value;
  std::string_view type = "SymInt";
  if constexpr (std::is_same_v<Value, TensorView>)
    type = "Tensor?";
  else if constexpr (std::is_same_v<Value, std::optional<double>>)
    type = "float?";
  else if constexpr (std::is_same_v<Value, std::optional<std::int64_t>>)
    type = "SymInt?";
  else if constexpr (std::is_same_v<Value, Layout>)
    type = "str";
  else if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>)
    type = "bool";
  else if constexpr (std::is_same_v<Value, double>)
    type = "float";
  return core::concat(type, ' ', option.name);
}

/// "=None", from fresh options.
template <typename Options, typename Value>
[[nodiscard]] std::string default_text(const Option<Options, Value>& option) {
  const auto fresh = Options().*option.member;
  if constexpr (std::is_same_v<Value, Layout>)
    return core::concat("=\"", core::name_of(fresh), '"');
  else if constexpr (std::is_same_v<Value, bool>)
    return fresh ? "=True" : "=False";
  else if constexpr (std::is_same_v<Value, double>)
    return core::concat('=', fresh, ".0");
  else if constexpr (std::is_integral_v<Value>)
    return core::concat('=', fresh);
  else
    return "=None";
}
template <typename Options, typename Enum>
[[nodiscard]] std::string default_text(const FlagOption<Options, Enum>&) {
  return "=False";
}

/// What torch's stack holds of an option, owned until the kernel returns.
template <typename Option>
[[nodiscard]] auto read_option(torch_shim::StackReader& stack, const Option&) {
  using Value = typename Option::Value;
  if constexpr (std::is_same_v<Value, TensorView>)
    return stack.optional_tensor();
  else if constexpr (std::is_same_v<Value, std::optional<double>>)
    return stack.optional_number();
  else if constexpr (std::is_same_v<Value, std::optional<std::int64_t>>)
    return stack.optional_integer();
  else if constexpr (std::is_same_v<Value, Layout>)
    return stack.string();
  else if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>)
    return stack.boolean();
  else if constexpr (std::is_same_v<Value, double>)
    return stack.number();
  else
    return stack.integer();
}

/// Options that lie on the stack one after another: `kOptions` is a tuple of them.
template <const auto& kOptions>
class OptionsOnStack {
 public:
  explicit OptionsOnStack(torch_shim::StackReader& stack) : values_(std::apply(Reader{stack}, kOptions)) {}

  template <typename Options>
  void set(Options& options) const {
    [&]<std::size_t... places>(std::index_sequence<places...>) {
      (set_one(options, std::get<places>(kOptions), std::get<places>(values_)), ...);
    }(std::make_index_sequence<std::tuple_size_v<Values>>());
  }

 private:
  struct Reader {
    torch_shim::StackReader& stack;
    /// Braces evaluate in order.
    template <typename... Each>
    auto operator()(const Each&... each) const {
      return std::tuple<decltype(read_option(stack, each))...>{read_option(stack, each)...};
    }
  };
  using Values = decltype(std::apply(std::declval<Reader>(), kOptions));

  template <typename Options, typename Option, typename Value>
  static void set_one(Options& options, const Option& option, const Value& value) {
    if constexpr (std::is_same_v<typename Option::Value, TensorView>)
      options.*option.member = value.view(option.name == "seed_and_offset" ? "seed" : option.name);
    else if constexpr (std::is_same_v<typename Option::Value, Layout>)
      set_option(options, option, value.view());
    else
      set_option(options, option, value);
  }

  Values values_;
};

}  // namespace tilewise::python
