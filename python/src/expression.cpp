// Building a score's function from Python, term by term: what tracing a Python function calls for each operation that
// the function does.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <string>
#include <vector>

#include "bindings.hpp"
#include "core/names.hpp"
#include "expression/builder.hpp"
#include "expression/operators.hpp"
#include "expression/parse.hpp"
#include "operations/attention/score_functions.hpp"

namespace nb = nanobind;

namespace tilewise::python {
namespace {

using operations::attention::ScoreFunction;

ScoreFunction function_of(const std::string& name) {
  for (const ScoreFunction function : {ScoreFunction::score_mod, ScoreFunction::mask_mod}) {
    if (name == function_name(function)) return function;
  }
  core::invalid_argument("function: must be score_mod or mask_mod (got ", core::quoted(name), ")");
}

/// Terms are numbers in Python.
class ExpressionBuilder {
 public:
  explicit ExpressionBuilder(const std::string& function)
      : function_(function_of(function)), build_(signature_of(function_, {}), function) {}

  std::uint32_t variable(const std::string& name) { return build_.variable(name).index; }
  std::uint32_t boolean(bool value) { return build_.boolean(value).index; }
  std::uint32_t integer(std::int64_t value) { return build_.integer(value).index; }
  std::uint32_t real(double value) { return build_.real(value).index; }
  std::uint32_t apply(const std::string& word, const std::vector<std::uint32_t>& operands) {
    for (std::size_t i = 0; i < expression::kOperators.size(); ++i) {
      const expression::Operator& facts = expression::kOperators[i];
      if (facts.word == word && facts.operand_count == static_cast<int>(operands.size())) {
        return build_.apply(static_cast<expression::Op>(i), terms(operands)).index;
      }
    }
    core::invalid_argument("word: must be an operator of ", operands.size(), " operands (got ", core::quoted(word),
                           ")");
  }
  std::uint32_t add_table(const std::string& dtype, int rank) {
    const auto type = expression::table_type(core::value_of<DType>(build_.argument(), dtype), build_.argument());
    return static_cast<std::uint32_t>(build_.add_table({type, rank}));
  }
  std::uint32_t lookup(std::uint32_t table, const std::vector<std::uint32_t>& indices) {
    return build_.lookup(table, terms(indices)).index;
  }
  std::string type(std::uint32_t term) { return std::string(to_string(build_.type(checked(term)))); }
  std::string finish(std::uint32_t term) {
    const expression::Type type = result_of(function_);
    const bool widens = type == expression::Type::real && build_.type(checked(term)) == expression::Type::integer;
    return to_string(build_.finish(widens ? build_.number(type, checked(term)) : checked(term), type));
  }

 private:
  expression::Term checked(std::uint32_t index) {
    if (index >= build_.size()) core::invalid_argument("term: must be < ", build_.size(), " (got ", index, ")");
    return {&build_, index};
  }
  std::vector<expression::Term> terms(const std::vector<std::uint32_t>& indices) {
    std::vector<expression::Term> found;
    found.reserve(indices.size());
    for (const std::uint32_t index : indices) found.push_back(checked(index));
    return found;
  }

  ScoreFunction function_;
  expression::Builder build_;
};

}  // namespace

void bind_expression(nb::module_& module) {
  nb::class_<ExpressionBuilder>(module, "ExpressionBuilder", "Makes the text of a score_mod or mask_mod term by term.")
      .def(nb::init<const std::string&>(), nb::arg("function"))
      .def("variable", &ExpressionBuilder::variable, nb::arg("name"))
      .def("boolean", &ExpressionBuilder::boolean, nb::arg("value"))
      .def("integer", &ExpressionBuilder::integer, nb::arg("value"))
      .def("real", &ExpressionBuilder::real, nb::arg("value"))
      .def("apply", &ExpressionBuilder::apply, nb::arg("word"), nb::arg("operands"))
      .def("add_table", &ExpressionBuilder::add_table, nb::arg("dtype"), nb::arg("rank"))
      .def("lookup", &ExpressionBuilder::lookup, nb::arg("table"), nb::arg("indices"))
      .def("type", &ExpressionBuilder::type, nb::arg("term"), "What it is: bool, int or float.")
      .def("finish", &ExpressionBuilder::finish, nb::arg("term"), "The canonical text.");
}

}  // namespace tilewise::python
