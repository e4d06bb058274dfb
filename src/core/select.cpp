// Selection: overrides, device, features, then each implementation's own judgement.
#include "core/select.hpp"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "core/message.hpp"
#include "core/spelling.hpp"

namespace tilewise::core {
namespace {

/// Both variables in one pass over the environment, which every call makes: getenv() would pass twice.
Overrides overrides_of_environment() {
  constexpr std::string_view kForce = "TILEWISE_FORCE=", kDisable = "TILEWISE_DISABLE=";
  Overrides overrides{{}, {}, kForceVariable};
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    if (**entry != kForce.front()) continue;
    const std::string_view variable = *entry;
    if (variable.starts_with(kForce)) overrides.force = variable.substr(kForce.size());
    if (variable.starts_with(kDisable)) overrides.disable = variable.substr(kDisable.size());
  }
  return overrides;
}

/// Calls fn(entry) for each entry of a comma-separated list, blanks trimmed, until one returns true.
template <typename Function>
bool any_entry(std::string_view list, const Function& fn) {
  while (!list.empty()) {
    const std::size_t comma = std::min(list.find(','), list.size());
    std::string_view entry = list.substr(0, comma);
    list.remove_prefix(std::min(comma + 1, list.size()));
    while (!entry.empty() && entry.front() == ' ') entry.remove_prefix(1);
    while (!entry.empty() && entry.back() == ' ') entry.remove_suffix(1);
    if (!entry.empty() && fn(entry)) return true;
  }
  return false;
}

/// Whether `name` matches `pattern`, in which `*` stands for any characters.
bool matches(std::string_view name, std::string_view pattern) {
  std::size_t n = 0, p = 0, star = std::string_view::npos, resume = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      resume = n;
    } else if (p < pattern.size() && pattern[p] == name[n]) {
      ++p, ++n;
    } else if (star != std::string_view::npos) {
      p = star + 1;  // let the last star swallow one more character
      n = ++resume;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<std::ptrdiff_t>(p), pattern.end(), [](char c) { return c == '*'; });
}

bool in_list(std::string_view name, std::string_view list) {
  return any_entry(list, [name](std::string_view pattern) { return matches(name, pattern); });
}

bool names_any(std::string_view pattern, std::span<const std::string_view> names) {
  return std::ranges::any_of(names, [pattern](std::string_view name) { return matches(name, pattern); });
}

/// A name that no row bears is a typing error, not a wish to be ignored.
void check_names(std::string_view list, std::string_view source, std::string_view kind,
                 std::span<const std::string_view> names) {
  any_entry(list, [&](std::string_view pattern) {
    if (pattern == "*" || names_any(pattern, names)) return false;
    invalid_argument(source, ": must name an implementation", kind, ": ", listed(names), did_you_mean(pattern, names),
                     " (got ", quoted(pattern), ")");
  });
}

/// What the overrides say to this operation. Throws where they name what is not there.
Overrides overrides_for(const OperationInterface& operation, Overrides overrides,
                        std::span<const Implementation* const> table) {
  const std::vector<std::string_view> all = row_names(table), own = row_names(table, &operation);
  check_names(overrides.force, overrides.force_source, "", all);
  check_names(overrides.disable, "TILEWISE_DISABLE", "", all);
  if (overrides.force_source != kForceVariable) {
    check_names(overrides.force, overrides.force_source, concat(" of ", operation.name()), own);
  } else if (!any_entry(overrides.force, [&own](std::string_view pattern) { return names_any(pattern, own); })) {
    overrides.force = {};
  }
  return overrides;
}

Verdict judge(const Implementation& row, const ProblemView& problem, const Overrides& overrides,
              const DeviceDescription& description, Whereabouts whereabouts) {
  if (!overrides.force.empty() && !in_list(row.name(), overrides.force)) {
    return Verdict::refuse(concat(overrides.force_source, "=", overrides.force, " asks for another"));
  }
  if (in_list(row.name(), overrides.disable)) {
    return Verdict::refuse(concat("disabled by TILEWISE_DISABLE=", overrides.disable));
  }
  if (const DeviceType device = problem.device(); row.device() != device) {
    return Verdict::refuse(concat("runs on ", to_string(row.device()), ", the tensors are on ", to_string(device)));
  }
  const FeatureBits missing = problem.operation->required_features(problem.value) & ~row.supported_features();
  if (missing != 0) {
    return Verdict::refuse(concat("does not support ", features_text(missing, problem.operation->feature_names())));
  }
  if (!description.refusal.empty()) return Verdict::refuse(description.refusal);
  Verdict verdict = row.judge_problem(problem, description);
  if (!verdict.accepted() || whereabouts == Whereabouts::elsewhere) return verdict;
  std::string obstacle = verdict.kernel->obstacle();
  return obstacle.empty() ? std::move(verdict) : Verdict::refuse(std::move(obstacle));
}

}  // namespace

Overrides overrides_of(const SelectOptions& select) {
  if (!select.implementation.empty()) return {select.implementation, {}, "implementation"};
  return overrides_of_environment();
}

std::vector<std::string_view> row_names(std::span<const Implementation* const> table,
                                        const OperationInterface* operation) {
  std::vector<std::string_view> names;
  for (const Implementation* row : table) {
    if (operation != nullptr && &row->operation() != operation) continue;
    if (std::ranges::find(names, row->name()) == names.end()) names.push_back(row->name());
  }
  return names;
}

const Implementation* find_row(std::span<const Implementation* const> table, const OperationInterface& operation,
                               std::string_view name) {
  const auto row = std::ranges::find_if(table, [&](const Implementation* candidate) {
    return &candidate->operation() == &operation && candidate->name() == name;
  });
  return row == table.end() ? nullptr : *row;
}

Selection select(const ProblemView& problem, const Overrides& given, const DeviceDescription& device,
                 std::span<const Implementation* const> table, Whereabouts whereabouts) {
  const Overrides overrides = overrides_for(*problem.operation, given, table);
  Selection selection;
  std::optional<double> best;
  for (const Implementation* row : table) {
    if (&row->operation() != problem.operation) continue;
    selection.candidates.push_back({row, judge(*row, problem, overrides, device, whereabouts)});
    const Verdict& verdict = selection.candidates.back().verdict;
    if (verdict.accepted() && (!best || verdict.estimated_us < *best)) {
      best = verdict.estimated_us;
      selection.chosen = static_cast<int>(selection.candidates.size()) - 1;
    }
  }
  return selection;
}

}  // namespace tilewise::core
