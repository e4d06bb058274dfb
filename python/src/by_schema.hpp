// Functions of the module by an operation's schema: one for each kind of call, which takes that call's tensors in the
// order of the schema, then the fields that calls state.
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
#include "core/run.hpp"
#include "operations/derived/call.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::python {

/// Binds one kind of call. Outputs are allocated by the caller; what is not wanted comes as None, or as an empty list.
template <typename Op, typename Arguments>
class CallBinding {
 public:
  static void define(nb::module_& module, const char* doc) {
    define(module, doc, places_with(kAll), fields_with(kSchema.fields));
  }

 private:
  static constexpr const auto& kSchema = Op::kSchema;
  static constexpr auto kAll = std::make_index_sequence<Op::Call::kCount>();

  /// The member that holds tensor `place`, as its only one; or none.
  template <std::size_t place>
  static constexpr auto kMember = operations::schema::member_in<Arguments>(std::get<place>(kSchema.arguments).members);

  /// The places of tensors that such calls have.
  template <std::size_t... places>
  static constexpr auto places_with(std::index_sequence<places...>) {
    return std::tuple_cat(place_if_there<places>()...);
  }
  template <std::size_t place>
  static constexpr auto place_if_there() {
    constexpr auto kFound = kMember<place>;
    if constexpr (std::tuple_size_v<std::remove_const_t<decltype(kFound)>> > 0)
      return std::tuple<std::integral_constant<std::size_t, place>>();
    else
      return std::tuple<>();
  }
  /// Pairs of key and member of the fields that such calls state.
  template <typename... Fields>
  static constexpr auto fields_with(const std::tuple<Fields...>& fields) {
    const auto stated = [](const auto& field) {
      const auto member = operations::schema::member_in<Arguments>(field.members);
      if constexpr (std::tuple_size_v<decltype(member)> > 0)
        return std::make_tuple(std::pair(field.key, std::get<0>(member)));
      else
        return std::tuple<>();
    };
    return std::apply([&stated](const auto&... each) { return std::tuple_cat(stated(each)...); }, fields);
  }

  template <std::size_t place>
  static constexpr bool is_list() {
    return operations::schema::kTensors<kSchema>[place].list.count != nullptr;
  }
  template <std::size_t place>
  using Given = std::conditional_t<is_list<place>(), const std::vector<const Array*>&, const Array*>;

  static void take(TensorView& view, const Array* array) { view = view_of(array); }
  static void take(std::vector<TensorView>& views, const std::vector<const Array*>& arrays) {
    for (const Array* array : arrays) views.push_back(view_of(array));
  }
  /// Enumerations come by name.
  template <typename Value>
  static auto default_of(Value value) {
    if constexpr (std::is_enum_v<Value>)
      return core::name_of(value).data();
    else
      return value;
  }
  template <typename Value>
  using Stated = std::conditional_t<std::is_enum_v<Value>, const std::string&, Value>;
  template <typename Value, typename From>
  static void state(Value& value, std::string_view key, const From& from) {
    if constexpr (std::is_enum_v<Value>)
      value = core::value_of<Value>(key, from);
    else
      value = from;
  }

  template <std::size_t place>
  static auto argument() {
    constexpr const auto& kTensor = operations::schema::kTensors<kSchema>[place];
    if constexpr (kTensor.list.count == nullptr && kTensor.optional)
      return nb::arg(kTensor.name.data()).none();
    else
      return nb::arg(kTensor.name.data());
  }

  template <typename... Places, typename... Members>
  static void define(nb::module_& module, const char* doc, std::tuple<Places...> /*places*/,
                     std::tuple<std::pair<std::string_view, Members>...> fields) {
    const auto call = [fields](Given<Places::value>... given,
                               Stated<typename operations::schema::MemberOf<Members>::Value>... stated,
                               const std::string& implementation, int torch_threads, std::uintptr_t stream) {
      Arguments arguments;
      (take(arguments.*std::get<0>(kMember<Places::value>), given), ...);
      std::apply([&](const auto&... field) { (state(arguments.*field.second, field.first, stated), ...); }, fields);
      const nb::gil_scoped_release release;
      const core::FrameworkThreads threads(torch_threads);
      core::run_call<Op>(typename Op::Call(arguments), {implementation}, reinterpret_cast<void*>(stream), nullptr);
    };
    const Arguments fresh;
    std::apply(
        [&](const auto&... field) {
          module.def(Op::kProblemNames[operations::schema::call_index<Arguments>(kSchema)].data(), call,
                     argument<Places::value>()..., (nb::arg(field.first.data()) = default_of(fresh.*field.second))...,
                     nb::arg("implementation") = "", nb::arg("torch_threads") = 0, nb::arg("stream") = 0, doc);
        },
        fields);
  }
};

}  // namespace tilewise::python
