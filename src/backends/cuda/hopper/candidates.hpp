// Schedules among which `tilewise tune` looks for a problem's quickest, by their names.
#pragma once

#include <algorithm>
#include <string_view>
#include <vector>

namespace tilewise::backends::hopper {

/// Adds a schedule unless one of its name is among them.
template <typename Schedule>
void add_candidate(std::vector<Schedule>& candidates, const Schedule& schedule) {
  const auto has_its_name = [&schedule](const Schedule& other) { return name_of(other) == name_of(schedule); };
  if (std::ranges::none_of(candidates, has_its_name)) candidates.push_back(schedule);
}

/// The one of that name; the first, which is the untuned one, where there is none.
template <typename Schedule>
[[nodiscard]] Schedule candidate_named(const std::vector<Schedule>& candidates, std::string_view name) {
  const auto has_that_name = [name](const Schedule& candidate) { return name_of(candidate) == name; };
  const auto found = std::ranges::find_if(candidates, has_that_name);
  return found == candidates.end() ? candidates.front() : *found;
}

}  // namespace tilewise::backends::hopper
