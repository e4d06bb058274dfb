// explain() for Python: the walk over the implementation table as rows and as a printable table.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "core/device.hpp"
#include "core/num_threads.hpp"
#include "operations/attention/call.hpp"
#include "operations/list.hpp"
#include "options.hpp"
#include "outputs.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::python {
namespace {

Explanation explain_forward(const Array& q, const Array& k, const Array& v, const Array* out, bool softmax_lse,
                            const Options& options, const std::string& implementation, int torch_threads) {
  ForwardArguments arguments{q.view(), k.view(), v.view(), view_of(out), {}, options.value};
  if (out == nullptr) arguments.out = planned_out(arguments.q, arguments.v);
  arguments.options.clear_rest = out == nullptr;
  if (softmax_lse) arguments.softmax_lse = planned_lse(arguments.q, arguments.options.layout);
  const core::DeviceScope scope(arguments.q.device, nullptr);
  const core::FrameworkThreads threads(torch_threads);
  const Problem problem = operations::attention::describe(operations::attention::call_of(arguments));
  if (out != nullptr) check_given_out(arguments);
  return explain(problem, {implementation});
}

std::string row_text(const ExplainRow& row) {
  std::string text = "ExplainRow(implementation='" + row.implementation + "', ";
  text += row.accepted ? "accepted=True" : "accepted=False";
  if (row.chosen) text += ", chosen=True";
  return text + ", reason='" + row.reason + "')";
}

/// The keys of problem texts by operation, those of packed problems among them.
std::map<std::string, std::vector<std::string>> problem_fields() {
  std::map<std::string, std::vector<std::string>> fields;
  operations::All::for_each([&fields]<typename Traits> {
    std::vector<std::string>& keys = fields[std::string(Traits::kName)];
    for (const Layout layout : {Layout::bshd, Layout::thd}) {
      typename Traits::Problem problem;
      if constexpr (requires { problem.layout; }) problem.layout = layout;
      Traits::for_each_field(problem, [&keys](std::string_view key, const auto&, const auto&) {
        if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.emplace_back(key);
      });
    }
  });
  return fields;
}

}  // namespace

void bind_explain(nb::module_& module) {
  nb::class_<ExplainRow>(module, "ExplainRow", "One implementation's verdict on a problem.")
      .def_ro("implementation", &ExplainRow::implementation, "Its name, as the implementation= argument takes it.")
      .def_ro("accepted", &ExplainRow::accepted)
      .def_ro("chosen", &ExplainRow::chosen, "Whether a call would run it.")
      .def_ro("estimated_us", &ExplainRow::estimated_us, "Estimated microseconds of an accepted one.")
      .def_ro("reason", &ExplainRow::reason, "Why it is refused, or the schedule of an accepted one.")
      .def("__repr__", &row_text);

  nb::class_<Explanation>(module, "Explanation", "Every implementation's verdict on one problem; prints as a table.")
      .def_prop_ro(
          "problem", [](const Explanation& self) { return to_string(self.problem); },
          "The problem as one line, which explain() and the command line read back.")
      .def_prop_ro(
          "rows", [](const Explanation& self) { return self.rows; }, "ExplainRow of every implementation, in order.")
      .def_prop_ro(
          "chosen",
          [](const Explanation& self) -> std::optional<std::string> {
            for (const ExplainRow& row : self.rows) {
              if (row.chosen) return row.implementation;
            }
            return std::nullopt;
          },
          "The implementation that a call would run, or None.")
      .def("__str__", &Explanation::to_string)
      .def("__repr__", &Explanation::to_string);

  module.def("problem_fields", &problem_fields, "The keys of problem texts, by operation.");
  module.def("explain_forward", &explain_forward, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("out").none(),
             nb::arg("softmax_lse"), nb::arg("options"), nb::arg("implementation") = "", nb::arg("torch_threads") = 0);
  module.def(
      "explain_problem",
      [](const std::string& problem, const std::string& implementation, int torch_threads) {
        const core::FrameworkThreads threads(torch_threads);
        return explain(parse_problem(problem), {implementation});
      },
      nb::arg("problem"), nb::arg("implementation") = "", nb::arg("torch_threads") = 0);
  module.def(
      "warm_up_problem",
      [](const std::string& problem, const std::string& implementation) {
        const nb::gil_scoped_release release;
        const AnyProblem stated = parse_problem(problem);
        (void)plan(stated, {implementation});
        const auto* attention = stated.get_if<AttentionProblem>();
        if (attention == nullptr || attention->layout != Layout::thd || attention->clear_rest) return;
        AttentionProblem cleared = *attention;  // as calls are that allocate their results
        cleared.clear_rest = true;
        (void)plan(cleared, {implementation});
      },
      nb::arg("problem"), nb::arg("implementation") = "", "Makes the plan of a problem and loads its kernels.");
}

}  // namespace tilewise::python
