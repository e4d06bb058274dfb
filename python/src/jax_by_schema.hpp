// XLA's handlers by an operation's schema, and the check that JAX makes of a call while it traces. Arrays go by the
// names of the schema's tensors, fields by their own.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "array.hpp"
#include "core/names.hpp"
#include "core/problem_text.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/outputs.hpp"
#include "operations/derived/stored.hpp"
#include "operations/run_call.hpp"
#include "tilewise/error.hpp"
#include "tilewise/plan.hpp"
#include "xla_call.hpp"

namespace tilewise::python {

/// Puts an array where a call keeps that of its name.
template <const auto& kSchema, typename Arguments>
void put_array(Arguments& arguments, std::string_view name, const TensorView& view) {
  bool found = false;
  operations::schema::for_each_member<kSchema>(arguments, [&](std::size_t place, TensorView& member) {
    if (operations::schema::kTensors<kSchema>[place].name != name) return;
    member = view;
    found = true;
  });
  if (!found) throw Error(ErrorCode::runtime, "unknown array '" + std::string(name) + "' of an XLA call");
}

/// Calls put(name, view) for each buffer with the name that stands at its place in attributes, where blanks separate
/// them.
template <typename Put>
void for_each_buffer(const xla::Call& call, const Put& put) {
  const auto put_all = [&](std::string_view names, std::int64_t count, const auto& view_of) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::string_view name = names.substr(0, names.find(' '));
      names.remove_prefix(name.size() < names.size() ? name.size() + 1 : names.size());
      put(name, view_of(i, name));
    }
  };
  put_all(call.text("arguments"), call.num_arguments(),
          [&](std::int64_t i, std::string_view name) { return call.argument(i, name); });
  put_all(call.text("results"), call.num_results(),
          [&](std::int64_t i, std::string_view name) { return call.result(i, name); });
}

template <typename Op, typename Arguments>
class JaxBinding {
  static constexpr const auto& kSchema = Op::kSchema;
  static constexpr auto kStated = operations::schema::stated_members<kSchema, Arguments>();

 public:
  /// Of problem text, and of the target behind "tilewise_".
  static constexpr std::string_view kName = Op::kProblemNames[operations::schema::call_index<Arguments>(kSchema)];
  /// Whether every tensor is a single one: XLA's arrays are not in lists.
  static constexpr bool kIsServed = [] {
    for (const auto& tensor : operations::schema::kTensors<kSchema>)
      if (tensor.list.count != nullptr) return false;
    return true;
  }();

  static void run(const xla::Call& call) {
    Arguments arguments;
    for_each_buffer(call,
                    [&](std::string_view name, const TensorView& view) { put_array<kSchema>(arguments, name, view); });
    state_all(arguments, [&call](auto& value, std::string_view name) {
      using core::read_word;
      using Value = std::remove_cvref_t<decltype(value)>;
      if constexpr (std::is_same_v<Value, bool>)
        value = call.flag(name);
      else if constexpr (std::is_integral_v<Value>)
        value = static_cast<Value>(call.integer(name));
      else if constexpr (std::is_floating_point_v<Value>)
        value = static_cast<Value>(call.number(name));
      else
        read_word(name, call.text(name), value);
    });
    operations::schema::read_bytes<kSchema>(arguments);
    operations::run_call<Op>(typename Op::Call(arguments), {std::string(call.text("implementation"))}, call.stream(),
                             nullptr);
  }

  /// NAME_check: throws what the call would throw of its arrays' shapes and dtypes, and of its options.
  static void define_check(nb::module_& module) {
    const auto check = [](const nb::dict& arrays, const nb::dict& fields, const std::string& implementation) {
      Arguments arguments;
      for (const auto& [name, array] : arrays)
        put_array<kSchema>(arguments, nb::cast<std::string>(name), nb::cast<const Array&>(array).view());
      state_all(arguments, [&fields](auto& value, std::string_view name) {
        using core::read_word;
        using Value = std::remove_cvref_t<decltype(value)>;
        const nb::object given = fields[nb::str(name.data(), name.size())];
        if constexpr (std::is_arithmetic_v<Value>)
          value = nb::cast<Value>(given);
        else
          read_word(name, nb::cast<std::string>(given), value);
      });
      operations::schema::read_bytes<kSchema>(arguments);
      const auto problem = Op::describe(typename Op::Call(arguments));
      if (!implementation.empty()) (void)explain(problem, {implementation});
    };
    module.def((std::string(kName) + "_check").c_str(), check, nb::arg("arrays"), nb::arg("fields"),
               nb::arg("implementation") = "",
               "Raises what a call on such arrays would raise before it runs. Arrays and fields by name.");
  }

 private:
  template <typename State>
  static void state_all(Arguments& arguments, const State& state) {
    operations::schema::apply([&](const auto&... field) { (state(arguments.*field.second, field.first), ...); },
                              kStated);
  }
};

}  // namespace tilewise::python
