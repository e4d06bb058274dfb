// Torch operators by an operation's schema, for each kind of call: NAME, which makes its outputs, and NAME_out, which
// is given those that every call has. Where a kind of call has none of these, as gradients, flags say which are needed.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/problem_text.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/description.hpp"
#include "operations/derived/outputs.hpp"
#include "operations/derived/stored.hpp"
#include "outputs.hpp"
#include "torch_kernel.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {

template <typename Op, typename Arguments>
class TorchBinding {
 public:
  static void add_to(std::vector<TorchOperator>& operators) {
    operators.push_back(one<false>());
    if (kAlwaysMakesSome) operators.push_back(one<true>());
    if constexpr (kMayBePacked)
      operators.push_back({name() + ".packed",
                           name() + ".packed(Tensor[] tensors, int given, str stated) -> " + returns_text<false>(),
                           &packed_kernel});
  }

 private:
  static constexpr const auto& kSchema = Op::kSchema;
  static constexpr const auto& kTensors = operations::schema::kTensors<kSchema>;
  static constexpr std::size_t kCall = operations::schema::call_index<Arguments>(kSchema);
  static constexpr const auto& kHas = operations::schema::kRoles<kSchema>[kCall];
  static constexpr auto kStated = operations::schema::stated_members<kSchema, Arguments>();
  /// Sizes, then element types.
  static constexpr auto kAllChoices = operations::schema::output_choices<kSchema, Arguments>();
  static constexpr std::span kChoices = std::span(kAllChoices).first(operations::schema::count_of(kAllChoices));

  [[nodiscard]] static constexpr bool is_list(std::size_t place) { return kTensors[place].is_list(); }
  [[nodiscard]] static constexpr bool is_output(std::size_t place) {
    return kHas[place] && kTensors[place].access_in(kCall) == core::Access::write;
  }
  static constexpr bool kAlwaysMakesSome = [] {
    for (std::size_t place = 0; place < kTensors.size(); ++place)
      if (is_output(place) && !kTensors[place].may_be_absent()) return true;
    return false;
  }();
  /// Of many single tensors and fields: torch takes a quarter of a microsecond for every argument, and each such kernel
  /// some kilobytes.
  static constexpr bool kMayBePacked = kAlwaysMakesSome && operations::schema::kLists<kSchema> == 0 &&
                                       kTensors.size() + operations::schema::kLengthOf<decltype(kStated)> > 25;
  /// Outputs that come as arguments where `into`.
  template <bool into>
  [[nodiscard]] static constexpr bool is_given(std::size_t place) {
    return kHas[place] && (!is_output(place) || (into && !kTensors[place].may_be_absent()));
  }

  template <typename Value>
  using Raw = std::conditional_t<std::is_arithmetic_v<Value>, Value, torch_shim::String>;
  template <typename... Members>
  static auto raw_of(const operations::schema::Pack<std::pair<std::string_view, Members>...>&)
      -> std::tuple<Raw<typename operations::schema::MemberOf<Members>::Value>...>;
  using RawValues = decltype(raw_of(kStated));

  /// The stack's values, owned before anything throws; then the outputs too.
  struct Values {
    std::array<torch_shim::Tensor, kTensors.size()> one;
    std::array<std::vector<torch_shim::Tensor>, kTensors.size()> lists;
    std::array<bool, kTensors.size()> needed{};
    RawValues stated;
    operations::schema::ChosenOutputs chosen;
    std::array<torch_shim::String, kAllChoices.size()> dtypes;  // of `chosen`, by name
    torch_shim::String implementation;
  };

  static std::string name() { return std::string(core::kNamesOf<typename Op::Schema::Names>[kCall]); }
  template <bool into>
  static TorchOperator one() {
    const std::string own = name() + (into ? "_out" : "");
    return {own, own + arguments_text<into>() + " -> " + returns_text<into>(), &kernel<into>};
  }

  template <bool into>
  static std::string arguments_text() {
    std::string text = "(";
    char alias = 'a';
    const auto add = [&](std::size_t place) {
      const auto& tensor = kTensors[place];
      const std::string written = tensor.access_in(kCall) == core::Access::read ? "" : core::concat('(', alias++, "!)");
      text += core::concat("Tensor", written,
                           is_list(place)           ? "[]"
                           : tensor.may_be_absent() ? "?"
                                                    : "",
                           ' ', tensor.name, ", ");
    };
    for (const bool outputs : {false, true})
      for (std::size_t place = 0; place < kTensors.size(); ++place)
        if (is_given<into>(place) && is_output(place) == outputs) add(place);
    for (std::size_t place = 0; place < kTensors.size(); ++place)
      if (is_output(place) && !kAlwaysMakesSome) text += core::concat("bool need_", kTensors[place].name, ", ");
    for (const auto& choice : kChoices)
      if (!into && choice.dimension >= 0) text += core::concat("int ", choice.name, ", ");
    for (const auto& field : operations::schema::Describing<kSchema>::template call<Arguments>().fields) {
      const bool quotes = field.type == "str";
      const std::string value = field.type != "bool" ? field.by_default : field.by_default == "1" ? "True" : "False";
      text += core::concat(field.type, ' ', field.name);
      if (!field.required) text += core::concat('=', quotes ? "\"" : "", value, quotes ? "\"" : "");
      text += ", ";
    }
    for (const auto& choice : kChoices)
      if (!into && choice.dimension < 0) text += core::concat("str? ", choice.name, "=None, ");
    return text + "str? implementation=None)";
  }
  template <bool into>
  static std::string returns_text() {
    std::string text;
    std::size_t count = 0;
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      if (!kHas[place] || is_given<into>(place)) continue;
      text += core::concat(count++ > 0 ? ", " : "", is_list(place) ? "Tensor[]" : "Tensor");
    }
    return count == 1 ? text : "(" + text + ")";
  }

  template <typename Value>
  static Value read(torch_shim::StackReader& stack) {
    if constexpr (std::is_same_v<Value, bool>)
      return stack.boolean();
    else if constexpr (std::is_integral_v<Value>)
      return static_cast<Value>(stack.integer());
    else if constexpr (std::is_floating_point_v<Value>)
      return static_cast<Value>(stack.number());
    else
      return stack.string();
  }
  template <typename... Value>
  static std::tuple<Value...> read_all(torch_shim::StackReader& stack, std::type_identity<std::tuple<Value...>>) {
    return std::tuple<Value...>{read<Value>(stack)...};  // braces evaluate in order
  }

  template <bool into>
  static Values take(torch_shim::StackReader& stack) {
    Values values{};
    for (const bool outputs : {false, true}) {
      for (std::size_t place = 0; place < kTensors.size(); ++place) {
        if (!is_given<into>(place) || is_output(place) != outputs) continue;
        if (is_list(place))
          values.lists[place] = stack.tensors();
        else if (kTensors[place].may_be_absent())
          values.one[place] = stack.optional_tensor();
        else
          values.one[place] = stack.tensor();
      }
    }
    for (std::size_t place = 0; place < kTensors.size(); ++place)
      if (is_output(place)) values.needed[place] = kAlwaysMakesSome || stack.boolean();
    for (std::size_t i = 0; i < kChoices.size(); ++i)
      if (!into && kChoices[i].dimension >= 0) values.chosen.sizes[i] = stack.integer();
    values.stated = read_all(stack, std::type_identity<RawValues>());
    for (std::size_t i = 0; i < kChoices.size(); ++i)
      if (!into && kChoices[i].dimension < 0) values.dtypes[i] = stack.optional_string();
    values.implementation = stack.optional_string();
    return values;
  }

  template <typename Value, typename From>
  static void state(Value& value, std::string_view key, const From& from) {
    using core::read_word;
    if constexpr (std::is_arithmetic_v<Value>)
      value = from;
    else
      read_word(key, from.view(), value);
  }
  template <bool into>
  static Arguments arguments_of(Values& values) {
    Arguments arguments;
    [&]<std::size_t... n>(std::index_sequence<n...>) {
      (state(arguments.*operations::schema::get<n>(kStated).second, operations::schema::get<n>(kStated).first,
             std::get<n>(values.stated)),
       ...);
    }(std::make_index_sequence<std::tuple_size_v<RawValues>>());
    for (std::size_t i = 0; i < kChoices.size(); ++i) choose(values.chosen, i, values.dtypes[i].view());
    set_tensors<into>(arguments, values);
    return arguments;
  }
  /// An element type, by name; "" for the default.
  static void choose(operations::schema::ChosenOutputs& chosen, std::size_t choice, std::string_view name) {
    if (!name.empty()) chosen.dtypes[choice] = core::value_of<DType>(kChoices[choice].name, name);
  }
  template <bool into>
  static void set_tensors(Arguments& arguments, const Values& values) {
    operations::schema::for_each_member<kSchema>(arguments, [&](std::size_t place, auto& entries) {
      if (!is_given<into>(place)) return;
      if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
        entries = values.one[place].view(kTensors[place].name);
      } else {
        const auto& list = values.lists[place];
        for (std::size_t n = 0; n < list.size(); ++n)
          entries.push_back(list[n].view(core::ArgumentName(kTensors[place].name, n)));
      }
    });
    operations::schema::read_bytes<kSchema>(arguments);
  }

  [[nodiscard]] static TensorView planned(const operations::schema::PlannedOutput& output, Device device) {
    std::array<std::int64_t, kMaxRank> sizes{};
    for (std::size_t axis = 0; axis < static_cast<std::size_t>(output.shape.rank); ++axis)
      sizes[axis] = output.shape.dims[axis].size;
    return contiguous(output.dtype, device, output.shape.rank, sizes);
  }

  /// Plans the outputs, and allocates them once all are planned. A huge call, or one that can't be planned, is judged
  /// first, so that a wrong shape is reported as such and not as memory that torch could not find.
  template <bool into>
  static void make_outputs(Arguments& arguments, Values& values) {
    const typename Op::Call call(arguments);
    const operations::schema::OutputPlanner<kSchema> planner(call, kChoices, values.chosen);
    const TensorView model = planner.model();
    bool judged = model.defined();
    const auto for_each_output = [&](const auto& visit) {
      operations::schema::for_each_member<kSchema>(arguments, [&](std::size_t place, auto& entries) {
        if (is_output(place) && !is_given<into>(place)) visit(place, entries);
      });
    };
    for_each_output([&](std::size_t place, auto& entries) {
      if (!values.needed[place]) return;
      const std::size_t count = planner.count(place);
      if (count == 0 && kTensors[place].needed != nullptr) values.needed[place] = false;
      if (count == 0 && judged && values.needed[place])
        core::invalid_argument(kTensors[place].name, ": cannot be asked for without its input");
      for (std::size_t n = 0; n < count; ++n) {
        const TensorView view = planned(planner.plan(place, n), model.device);
        judged &= view.defined() && !is_huge(view);
        if constexpr (std::is_same_v<decltype(entries), TensorView&>)
          entries = view;
        else
          entries.push_back(view);
      }
    });
    if (!judged) static_cast<void>(Op::describe(typename Op::Call(arguments)));
    for_each_output([&](std::size_t place, auto& entries) {
      if constexpr (std::is_same_v<decltype(entries), TensorView&>) {
        TensorView nothing = contiguous(model.dtype, model.device, 1, {0});
        values.one[place] = torch_shim::Tensor::empty(values.needed[place] ? &entries : &nothing);
      } else {
        for (TensorView& view : entries) values.lists[place].push_back(torch_shim::Tensor::empty(&view));
      }
    });
  }

  template <bool into>
  static void kernel(torch_shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
    torch_shim::StackReader reader(stack);
    Values values = take<into>(reader);
    run_kernel([&values] {
      Arguments arguments = arguments_of<into>(values);
      run<into>(arguments, values, std::string(values.implementation.view()));
    });
    give<into>(values, stack);
  }
  template <bool into>
  static void run(Arguments& arguments, Values& values, std::string implementation) {
    make_outputs<into>(arguments, values);
    const typename Op::Call call(arguments);
    const Device device = Op::device(call);
    run_on_stream<Op>(call, device, {std::move(implementation)}, torch_shim::current_stream(device));
  }
  template <bool into>
  static void give(Values& values, torch_shim::StableIValue* stack) {
    std::size_t next = 0;
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      if (!is_output(place) || is_given<into>(place)) continue;
      stack[next++] =
          is_list(place) ? torch_shim::returned(values.lists[place]) : torch_shim::returned(values.one[place]);
    }
  }

  /// What a packed call says beside its tensors.
  struct Stated {
    std::string text;
    Arguments arguments;  // without tensors
    operations::schema::ChosenOutputs chosen;
    std::string implementation;
  };
  /// Of a line for each: sizes of outputs, fields, element types of outputs, and the implementation.
  static Stated read_stated(std::string_view text) {
    Stated stated{std::string(text), {}, {}, {}};
    const auto next = [&text] {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(line.size() + 1, text.size()));
      return line;
    };
    for (std::size_t i = 0; i < kChoices.size(); ++i)
      if (kChoices[i].dimension >= 0) core::read_word(kChoices[i].name, next(), stated.chosen.sizes[i]);
    [&]<std::size_t... n>(std::index_sequence<n...>) {
      using core::read_word;
      (read_word(operations::schema::get<n>(kStated).first, next(),
                 stated.arguments.*operations::schema::get<n>(kStated).second),
       ...);
    }(std::make_index_sequence<std::tuple_size_v<RawValues>>());
    for (std::size_t i = 0; i < kChoices.size(); ++i)
      if (kChoices[i].dimension < 0) choose(stated.chosen, i, next());
    stated.implementation = next();
    return stated;
  }

  /// `given`: bit i is set where the i-th input is among the tensors.
  static void packed_kernel(torch_shim::StableIValue* stack, std::uint64_t /*num_inputs*/,
                            std::uint64_t /*num_outputs*/) {
    torch_shim::StackReader reader(stack);
    std::vector<torch_shim::Tensor> tensors = reader.tensors();
    const std::int64_t given = reader.integer();
    const torch_shim::String text = reader.string();
    Values values{};
    run_kernel([&] {
      std::size_t input = 0, tensor = 0;
      for (std::size_t place = 0; place < kTensors.size(); ++place) {
        if (is_output(place)) values.needed[place] = true;
        if (is_given<false>(place) && (given >> input++ & 1) != 0 && tensor < tensors.size())
          values.one[place] = std::move(tensors[tensor++]);
      }
      thread_local Stated last = read_stated(text.view());  // calls in a loop state the same
      if (last.text != text.view()) last = read_stated(text.view());
      Arguments arguments = last.arguments;
      values.chosen = last.chosen;
      set_tensors<false>(arguments, values);
      run<false>(arguments, values, last.implementation);
    });
    give<false>(values, stack);
  }
};

}  // namespace tilewise::python
