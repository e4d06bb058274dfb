// Functions of the module by an operation's schema, two for each kind of call. NAME takes that call's tensors in the
// order of the schema, then the fields that calls state. NAME_outputs takes those there are yet, and what is chosen of
// outputs, and plans these.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "array.hpp"
#include "core/names.hpp"
#include "core/num_threads.hpp"
#include "core/problem_text.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/outputs.hpp"
#include "operations/derived/stored.hpp"
#include "operations/run_call.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::python {

/// One tensor that a call would write, as Python sees it.
struct Output {
  std::string name, dtype;
  std::vector<std::int64_t> shape;
  std::vector<std::pair<std::string, int>> sources;  ///< see SizeSource
};

/// Binds one kind of call. Outputs are allocated by the caller; what is not wanted comes as None, or as an empty list.
template <typename Op, typename Arguments>
class CallBinding {
 public:
  static void define(nb::module_& module) {
    define_run(module, places_with(kAll), kStated);
    define_outputs(module, places_with(kAll), kStated);
  }

 private:
  static constexpr const auto& kSchema = Op::kSchema;
  static constexpr auto kAll = std::make_index_sequence<Op::Call::kCount>();
  static constexpr auto kStated = operations::schema::stated_members<kSchema, Arguments>();
  static constexpr auto kChoices = operations::schema::output_choices<kSchema, Arguments>();
  static constexpr std::size_t kCall = operations::schema::call_index<Arguments>(kSchema);
  static constexpr std::string_view kName = Op::kProblemNames[kCall];

  /// The member that holds tensor `place`, as its only one; or none.
  template <std::size_t place>
  static constexpr auto kMember =
      operations::schema::member_in<Arguments>(operations::schema::get<place>(kSchema.arguments).members);

  /// The places of tensors that such calls have.
  template <std::size_t... places>
  static constexpr auto places_with(std::index_sequence<places...>) {
    return std::tuple_cat(place_if_there<places>()...);
  }
  template <std::size_t place>
  static constexpr auto place_if_there() {
    constexpr auto kFound = kMember<place>;
    if constexpr (operations::schema::kLengthOf<std::remove_const_t<decltype(kFound)>> > 0)
      return std::tuple<std::integral_constant<std::size_t, place>>();
    else
      return std::tuple<>();
  }

  template <std::size_t place>
  static constexpr bool is_list() {
    return operations::schema::kTensors<kSchema>[place].is_list();
  }
  template <std::size_t place>
  using Given = std::conditional_t<is_list<place>(), const std::vector<const Array*>&, const Array*>;

  static void take(TensorView& view, const Array* array) { view = view_of(array); }
  static void take(std::vector<TensorView>& views, const std::vector<const Array*>& arrays) {
    for (const Array* array : arrays) views.push_back(view_of(array));
  }
  /// What is no number comes by name.
  template <typename Value>
  static auto default_of(const Value& value) {
    if constexpr (std::is_arithmetic_v<Value>) {
      return value;
    } else {
      std::string name;
      core::print_value(name, value);
      return name;
    }
  }
  template <typename Value>
  using Stated = std::conditional_t<std::is_arithmetic_v<Value>, Value, const std::string&>;
  template <typename Value, typename From>
  static void state(Value& value, std::string_view key, const From& from) {
    using core::read_word;
    if constexpr (std::is_arithmetic_v<Value>)
      value = from;
    else
      read_word(key, from, value);
  }

  /// `planned`: before there are outputs.
  template <std::size_t place, bool planned = false>
  static auto argument() {
    constexpr const auto& kTensor = operations::schema::kTensors<kSchema>[place];
    constexpr bool kLater = planned && kTensor.access_in(kCall) == core::Access::write;
    if constexpr (!kTensor.is_list() && (kTensor.may_be_absent() || kLater))
      return nb::arg(kTensor.name.data()).none();
    else
      return nb::arg(kTensor.name.data());
  }

  /// The call's arguments from what the functions take.
  template <typename... Places, typename... Values>
  static Arguments arguments_of(std::tuple<Places...> /*places*/, const std::tuple<Values...>& stated,
                                Given<Places::value>... given) {
    Arguments arguments;
    (take(arguments.*operations::schema::get<0>(kMember<Places::value>), given), ...);
    [&]<std::size_t... n>(std::index_sequence<n...>) {
      (state(arguments.*operations::schema::get<n>(kStated).second, operations::schema::get<n>(kStated).first,
             std::get<n>(stated)),
       ...);
    }(std::make_index_sequence<sizeof...(Values)>());
    operations::schema::read_bytes<kSchema>(arguments);
    return arguments;
  }

  template <typename... Places, typename... Members>
  static void define_run(nb::module_& module, std::tuple<Places...> /*places*/,
                         const operations::schema::Pack<std::pair<std::string_view, Members>...>& fields) {
    const auto run = [](Given<Places::value>... given,
                        Stated<typename operations::schema::MemberOf<Members>::Value>... stated,
                        const std::string& implementation, int torch_threads, std::uintptr_t stream) {
      const Arguments arguments = arguments_of(std::tuple<Places...>(), std::tie(stated...), given...);
      const nb::gil_scoped_release release;
      const core::FrameworkThreads threads(torch_threads);
      operations::run_call<Op>(typename Op::Call(arguments), {implementation}, reinterpret_cast<void*>(stream),
                               nullptr);
    };
    const Arguments fresh;
    operations::schema::apply(
        [&](const auto&... field) {
          module.def(kName.data(), run, argument<Places::value>()...,
                     (nb::arg(field.first.data()) = default_of(fresh.*field.second))..., nb::arg("implementation") = "",
                     nb::arg("torch_threads") = 0, nb::arg("stream") = 0,
                     "Writes what is given of it. An empty list is not wanted.");
        },
        fields);
  }

  template <typename... Places, typename... Members>
  static void define_outputs(nb::module_& module, std::tuple<Places...> /*places*/,
                             const operations::schema::Pack<std::pair<std::string_view, Members>...>& fields) {
    const auto plan = [](Given<Places::value>... given,
                         Stated<typename operations::schema::MemberOf<Members>::Value>... stated,
                         const nb::dict& choices) {
      const Arguments arguments = arguments_of(std::tuple<Places...>(), std::tie(stated...), given...);
      return outputs_of(typename Op::Call(arguments), chosen_of(choices));
    };
    const Arguments fresh;
    operations::schema::apply(
        [&](const auto&... field) {
          module.def((std::string(kName) + "_outputs").c_str(), plan, argument<Places::value, true>()...,
                     (nb::arg(field.first.data()) = default_of(fresh.*field.second))...,
                     nb::arg("choices") = nb::dict(),
                     "What such a call writes. Looks at no more than it needs to: the call itself checks everything.");
        },
        fields);
  }

  static operations::schema::ChosenOutputs chosen_of(const nb::dict& choices) {
    operations::schema::ChosenOutputs chosen;
    for (std::size_t i = 0; i < operations::schema::count_of(kChoices); ++i) {
      const std::string name(kChoices[i].name);
      if (!choices.contains(name.c_str())) continue;
      const nb::object value = choices[name.c_str()];
      if (kChoices[i].dimension >= 0)
        chosen.sizes[i] = nb::cast<std::int64_t>(value);
      else
        chosen.dtypes[i] = core::value_of<DType>(name, nb::cast<std::string>(value));
    }
    return chosen;
  }

  static std::vector<Output> outputs_of(const typename Op::Call& call,
                                        const operations::schema::ChosenOutputs& chosen) {
    constexpr const auto& kTensors = operations::schema::kTensors<kSchema>;
    const operations::schema::OutputPlanner<kSchema> planner(
        call, std::span(kChoices).first(operations::schema::count_of(kChoices)), chosen);
    std::vector<Output> outputs;
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      if (!call.has(place) || kTensors[place].access_in(kCall) != core::Access::write) continue;
      for (std::size_t n = 0; n < planner.count(place); ++n) {
        const operations::schema::PlannedOutput planned = planner.plan(place, n);
        Output& output = outputs.emplace_back(
            Output{std::string(kTensors[place].name), std::string(to_string(planned.dtype)), {}, {}});
        output.shape = operations::schema::sizes_of(planned.shape);
        for (std::size_t axis = 0; axis < output.shape.size(); ++axis)
          output.sources.emplace_back(kTensors[planned.sources[axis].place].name, planned.sources[axis].axis);
      }
    }
    return outputs;
  }
};

}  // namespace tilewise::python
