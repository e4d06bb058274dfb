// The printable walk of the implementation table.
#include "core/explain.hpp"

#include <algorithm>
#include <array>

#include "core/device.hpp"
#include "core/duration.hpp"

namespace tilewise {
namespace {

using Line = std::array<std::string, 4>;

void pad(std::string& text, const std::string& cell, std::size_t width) {
  text += cell;
  text.append(width - cell.size() + 2, ' ');
}

}  // namespace

Explanation core::explain_for(const AnyProblem& problem, const SelectOptions& options, const DeviceDescription& device,
                              Whereabouts whereabouts) {
  validate(problem);
  Explanation explanation{problem.operation().canonical(problem.value()), {}};
  const Selection selection =
      select(explanation.problem, overrides_of(options), device, implementation_table(), whereabouts);
  for (const Candidate& candidate : selection.candidates) {
    const Verdict& verdict = candidate.verdict;
    const bool chosen = static_cast<int>(explanation.rows.size()) == selection.chosen;
    explanation.rows.push_back({std::string(candidate.implementation->name()), verdict.accepted(), chosen,
                                verdict.estimated_us,
                                verdict.accepted() ? verdict.kernel->schedule() : verdict.reason});
  }
  return explanation;
}

Explanation explain(const AnyProblem& problem, const SelectOptions& options) {
  return core::explain_for(problem, options, core::describe_device(problem.device()), core::Whereabouts::here);
}

std::string Explanation::to_string() const {
  std::vector<Line> lines{{"implementation", "verdict", "estimate", "schedule or reason"}};
  for (const ExplainRow& row : rows) {
    lines.push_back({row.implementation,
                     row.chosen     ? "chosen"
                     : row.accepted ? "accepted"
                                    : "refused",
                     row.accepted ? core::duration_text(row.estimated_us) : "-", row.reason});
  }
  std::array<std::size_t, 3> widths{};
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text = tilewise::to_string(problem) + "\n";
  for (const Line& line : lines) {
    for (std::size_t i = 0; i < widths.size(); ++i) pad(text, line[i], widths[i]);
    text += line.back() + "\n";
  }
  return text;
}

}  // namespace tilewise
