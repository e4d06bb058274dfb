// A schema in words, for whoever reads it at run time: bindings of other languages, and pages of reference.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/names.hpp"
#include "core/problem_text.hpp"
#include "core/visibility.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/outputs.hpp"
#include "operations/derived/shapes.hpp"
#include "operations/schema.hpp"

namespace tilewise::operations::schema {

struct TensorDescription {
  std::string_view name;
  bool written = false, optional = false, list = false, rows = false;  ///< as Tensor has them
  std::string_view like{};
  std::string_view derivative_of{};  ///< the tensor that it is a gradient by; "" of others
  std::string shape{};               ///< "[rows, columns]"
  std::string packed_shape{};        ///< where sequences are packed; "" where that changes nothing
  std::string dtypes{};              ///< "f32, bf16 or that of x"
};

/// A field that calls state.
struct FieldDescription {
  std::string_view name;
  std::string_view type;                  ///< "bool", "int", "float", or "str" for what comes by name
  bool required = false;                  ///< there is no default
  std::string by_default{};               ///< as problem text has it
  std::vector<std::string_view> names{};  ///< of an enumeration
};

/// One kind of call, its tensors and fields in the order of the schema.
struct CallDescription {
  std::string_view operation, name, anchor;
  std::vector<TensorDescription> tensors{};
  std::vector<FieldDescription> fields{};
  std::vector<FieldDescription> choices{};  ///< of whoever has the outputs made; see output_choices()
};

/// The values of a type that depends on `anchor`'s, in words. `values` goes with `anchors`, the dtypes anchor may have.
[[nodiscard]] TILEWISE_INTERNAL std::string dtype_words(std::span<const DType> values, std::span<const DType> anchors,
                                                        std::string_view anchor);
/// "a, b or c"; what is said twice is said once.
[[nodiscard]] TILEWISE_INTERNAL std::string alternatives(const std::vector<std::string>& words);

template <typename Value>
[[nodiscard]] constexpr std::string_view type_word() {
  if constexpr (std::is_same_v<Value, bool>) return "bool";
  if constexpr (std::is_integral_v<Value>) return "int";
  if constexpr (std::is_floating_point_v<Value>) return "float";
  return "str";
}

template <const auto& kSchema>
class Describing {
 public:
  using Schema = std::remove_cvref_t<decltype(kSchema)>;
  using Problem = typename Schema::Problem;

  template <typename Arguments>
  [[nodiscard]] static CallDescription call() {
    constexpr std::size_t kIndex = call_index<Arguments>(kSchema);
    const Tensor<Problem>& anchor = kTensors<kSchema>[kAnchors<kSchema>[kIndex]];
    CallDescription call{kSchema.name, core::kNamesOf<typename Schema::Names>[kIndex], anchor.name};
    for (std::size_t place = 0; place < kTensors<kSchema>.size(); ++place)
      if (kRoles<kSchema>[kIndex][place]) call.tensors.push_back(tensor(kTensors<kSchema>[place], anchor, kIndex));
    const auto add = [&call](const auto& field) {
      const auto member = member_in<Arguments>(field.members);
      if constexpr (kLengthOf<decltype(member)> > 0) call.fields.push_back(stated(field, Arguments().*get<0>(member)));
    };
    apply([&add](const auto&... fields) { (add(fields), ...); }, kSchema.fields);
    for (const OutputChoice& choice : output_choices<kSchema, Arguments>()) {
      const bool is_size = choice.dimension >= 0;
      if (!choice.name.empty()) call.choices.push_back({choice.name, is_size ? "int" : "str", is_size});
    }
    return call;
  }

 private:
  static TensorDescription tensor(const Tensor<Problem>& tensor, const Tensor<Problem>& anchor, std::size_t call) {
    TensorDescription words{tensor.name,
                            tensor.access_in(call) == core::Access::write,
                            tensor.may_be_absent(),
                            tensor.is_list(),
                            tensor.rows,
                            tensor.like,
                            derivative_of(tensor)};
    Problem problem;
    words.shape = shape(tensor, problem);
    if constexpr (requires { problem.layout; }) {
      problem.layout = Layout::thd;
      if (std::string packed = shape(tensor, problem); packed != words.shape) words.packed_shape = std::move(packed);
    }
    if (tensor.like.empty()) words.dtypes = dtypes(tensor, anchor);
    return words;
  }

  /// "[rows, columns]". Of a problem that has no sizes yet, so that none may be asked for.
  static std::string shape(const Tensor<Problem>& tensor, const Problem& problem) {
    core::Shape shape;
    for_each_axis(tensor, problem, [&](int axis, const Dimension<Problem>& dimension) {
      shape.dims[static_cast<std::size_t>(axis)] = {dimension.name_in(problem), 0};
      ++shape.rank;
    });
    return words_of(shape);
  }

  static std::string_view derivative_of(const Tensor<Problem>& tensor) {
    if (!tensor.derivative_of.empty()) return tensor.derivative_of;
    for (const Tensor<Problem>& other : kTensors<kSchema>)
      if (tensor.name.starts_with('d') && tensor.name.substr(1) == other.name) return other.name;
    return {};
  }

  static std::string dtypes(const Tensor<Problem>& tensor, const Tensor<Problem>& anchor) {
    std::vector<DType> anchors;
    for (std::size_t i = 0; i < types_of(anchor); ++i) anchors.push_back(anchor.types[i].of(Problem()));
    std::vector<std::string> words;
    for (std::size_t type = 0; type < types_of(tensor); ++type) {
      std::vector<DType> values;
      for (const DType dtype : anchors) {
        Problem problem;
        if (anchor.dtype != nullptr) problem.*anchor.dtype = dtype;
        values.push_back(tensor.types[type].of(problem));
      }
      words.push_back(dtype_words(values, anchors, anchor.name));
    }
    return alternatives(words);
  }

  template <typename Value, typename Default, typename... Members>
  static FieldDescription stated(const Field<Problem, Value, Default, Members...>& field, const Value& value) {
    FieldDescription words{field.key, type_word<Value>(),
                           std::is_same_v<Default, std::remove_const_t<decltype(core::kRequired)>>};
    core::print_value(words.by_default, value);
    if constexpr (std::is_enum_v<Value>) words.names.assign(core::kNamesOf<Value>.begin(), core::kNamesOf<Value>.end());
    return words;
  }
};

}  // namespace tilewise::operations::schema
