// What the module has of every operation that is stated by a schema: its functions, its torch operators, and its
// description, which Python makes the rest of.
#include "by_schema.hpp"

#include <nanobind/stl/pair.h>
#include <nanobind/stl/string_view.h>

#include "bindings.hpp"
#include "operations/derived/description.hpp"
#include "schema_calls.hpp"
#include "torch_by_schema.hpp"

namespace tilewise::python {
namespace {

using operations::schema::CallDescription, operations::schema::FieldDescription, operations::schema::TensorDescription;

nb::dict described(const TensorDescription& tensor) {
  nb::dict words;
  words["name"] = tensor.name;
  words["written"] = tensor.written;
  words["optional"] = tensor.optional;
  words["list"] = tensor.list;
  words["rows"] = tensor.rows;
  words["like"] = tensor.like;
  words["derivative_of"] = tensor.derivative_of;
  words["shape"] = tensor.shape;
  words["packed_shape"] = tensor.packed_shape;
  words["dtypes"] = tensor.dtypes;
  return words;
}
nb::dict described(const FieldDescription& field) {
  nb::dict words;
  words["name"] = field.name;
  words["type"] = field.type;
  words["required"] = field.required;
  words["by_default"] = field.by_default;
  words["names"] = field.names;
  return words;
}
template <typename Description>
nb::list described(const std::vector<Description>& descriptions) {
  nb::list words;
  for (const Description& description : descriptions) words.append(described(description));
  return words;
}
nb::dict described(const CallDescription& call) {
  nb::dict words;
  words["operation"] = call.operation;
  words["name"] = call.name;
  words["anchor"] = call.anchor;
  words["tensors"] = described(call.tensors);
  words["fields"] = described(call.fields);
  words["choices"] = described(call.choices);
  return words;
}

/// As plain objects of Python, since what torch keeps would outlive classes of this module.
nb::list described_calls() {
  nb::list calls;
  for_each_call_by_schema([&calls]<typename Op, typename Arguments> {
    calls.append(described(operations::schema::Describing<Op::kSchema>::template call<Arguments>()));
  });
  return calls;
}

}  // namespace

std::vector<TorchOperator> operators_by_schema() {
  std::vector<TorchOperator> operators;
  for_each_call_by_schema(
      [&operators]<typename Op, typename Arguments> { TorchBinding<Op, Arguments>::add_to(operators); });
  return operators;
}

void bind_schemas(nb::module_& module) {
  nb::class_<Output>(module, "Output", "A tensor that a call would write.")
      .def_ro("name", &Output::name)
      .def_ro("dtype", &Output::dtype)
      .def_ro("shape", &Output::shape)
      .def_ro("sources", &Output::sources,
              "Of each size the input and the axis that it is of; -1: it is stated, -2: it follows from others.");
  for_each_call_by_schema([&module]<typename Op, typename Arguments> { CallBinding<Op, Arguments>::define(module); });
  module.def("described_calls", &described_calls, nb::sig("def described_calls() -> list[dict[str, object]]"),
             "Every kind of call of the operations that are stated by a schema; see tilewise._calls.");
}

}  // namespace tilewise::python
