// A struct of options from Python's keywords, with the arrays it borrows kept alive, and the class of the module that
// makes it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstddef>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.hpp"
#include "core/names.hpp"
#include "schema_options.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {

template <typename Value>
struct OptionsOf {
  Value value;
  std::vector<Array> arrays;  ///< what the views in `value` borrow from
};
using Options = OptionsOf<AttentionOptions>;

/// Binds a class of keywords by a tuple of options; and of `tables`, `dtables` and a block mask, where there
/// are some. Ranges and
/// combinations are the core's to judge.
template <const auto& kOptions, typename Value>
class OptionsBinding {
 public:
  static void define(nb::module_& module, const char* name, const char* doc) {
    nb::class_<OptionsOf<Value>> bound(module, name, doc);
    bound.def_static("keywords", &keywords, "What a call of the class takes.");
    define_init(bound, kOptions,
                std::make_index_sequence<std::tuple_size_v<std::remove_cvref_t<decltype(kOptions)>>>());
  }

 private:
  using Made = OptionsOf<Value>;

  static std::vector<std::string> keywords() {
    std::vector<std::string> names;
    std::apply([&names](const auto&... options) { (names.emplace_back(options.name), ...); }, kOptions);
    if constexpr (requires(Value value) { value.tables; }) names.emplace_back("tables");
    if constexpr (requires(Value value) { value.dtables; }) names.emplace_back("dtables");
    if constexpr (requires(Value value) { value.block_mask; })
      names.insert(names.end(), {"block_mask", "block_rows", "block_keys"});
    return names;
  }

  /// What Python gives for an option.
  template <typename Option, typename Member = typename Option::Value>
  using Given = std::conditional_t<
      std::is_same_v<Member, TensorView>, std::optional<Array>,
      std::conditional_t<Option::kIsFlag, bool, std::conditional_t<std::is_enum_v<Member>, std::string, Member>>>;

  /// Its name and default.
  template <typename Option>
  static auto argument(const Option& option) {
    using Member = typename Option::Value;
    const nb::arg name(option.name.data());
    if constexpr (std::is_same_v<Given<Option>, bool>)
      return name = false;
    else if constexpr (std::is_enum_v<Member>)
      return name = std::string(core::name_of(Value().*option.member));
    else if constexpr (std::is_same_v<Member, std::string>)
      return name = "";
    else if constexpr (std::is_arithmetic_v<Member>)
      return name = Value().*option.member;
    else
      return name = nb::none();
  }

  template <typename Option>
  static void take(Made& options, const Option& option, Given<Option>& given) {
    if constexpr (std::is_same_v<typename Option::Value, TensorView>) {
      if (!given) return;
      options.value.*option.member = given->view();
      options.arrays.push_back(std::move(*given));
    } else {
      set_option(options.value, option, given);
    }
  }
  static void take_tables(Made& options, std::vector<Array>& tables) {
    for (Array& table : tables) {
      options.value.tables.push_back(table.view());
      options.arrays.push_back(std::move(table));
    }
  }

  /// Gradients are none where nobody wants them.
  static void take_table_gradients(Made& options, std::vector<std::optional<Array>>& gradients) {
    for (std::optional<Array>& gradient : gradients) {
      options.value.dtables.push_back(gradient ? gradient->view() : TensorView{});
      if (gradient) options.arrays.push_back(std::move(*gradient));
    }
  }

  static void take_block_mask(Made& options, std::vector<Array>& lists, std::int64_t rows, std::int64_t keys) {
    options.value.block_rows = rows;
    options.value.block_keys = keys;
    for (Array& list : lists) {
      options.value.block_mask.push_back(list.view());
      options.arrays.push_back(std::move(list));
    }
  }

  template <typename... Each, std::size_t... places>
  static void define_init(nb::class_<Made>& bound, const std::tuple<Each...>& all, std::index_sequence<places...>) {
    const auto signature = nb::sig("def __init__(self, **options: object) -> None");
    if constexpr (requires(Value value) { value.dtables; }) {
      bound.def(
          "__init__",
          [](Made* self, Given<Each>... given, std::vector<Array> tables, std::vector<std::optional<Array>> dtables,
             std::vector<Array> block_mask, std::int64_t block_rows, std::int64_t block_keys) {
            Made options;
            (take(options, std::get<places>(kOptions), given), ...);
            take_tables(options, tables);
            take_table_gradients(options, dtables);
            take_block_mask(options, block_mask, block_rows, block_keys);
            new (self) Made(std::move(options));
          },
          signature, nb::kw_only(), argument(std::get<places>(all))..., nb::arg("tables") = std::vector<Array>(),
          nb::arg("dtables") = std::vector<std::optional<Array>>(), nb::arg("block_mask") = std::vector<Array>(),
          nb::arg("block_rows") = Value().block_rows, nb::arg("block_keys") = Value().block_keys);
    } else if constexpr (requires(Value value) { value.tables; }) {
      bound.def(
          "__init__",
          [](Made* self, Given<Each>... given, std::vector<Array> tables, std::vector<Array> block_mask,
             std::int64_t block_rows, std::int64_t block_keys) {
            Made options;
            (take(options, std::get<places>(kOptions), given), ...);
            take_tables(options, tables);
            take_block_mask(options, block_mask, block_rows, block_keys);
            new (self) Made(std::move(options));
          },
          signature, nb::kw_only(), argument(std::get<places>(all))..., nb::arg("tables") = std::vector<Array>(),
          nb::arg("block_mask") = std::vector<Array>(), nb::arg("block_rows") = Value().block_rows,
          nb::arg("block_keys") = Value().block_keys);
    } else {
      bound.def(
          "__init__",
          [](Made* self, Given<Each>... given) {
            Made options;
            (take(options, std::get<places>(kOptions), given), ...);
            new (self) Made(std::move(options));
          },
          signature, nb::kw_only(), argument(std::get<places>(all))...);
    }
  }
};

}  // namespace tilewise::python
