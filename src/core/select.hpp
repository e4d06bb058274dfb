// Selection: walks the table of implementations, asks each for its verdict and picks the
// cheapest accepted one.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "core/implementation.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::core {

/// Which implementations may be chosen: comma-separated names, in which `*` stands for any
/// characters. Empty: no restriction. Borrows from the options or the environment.
struct Overrides {
  std::string_view force, disable;
  std::string_view force_source;  ///< "TILEWISE_FORCE" or "implementation", for messages

  friend bool operator==(const Overrides&, const Overrides&) = default;
};

/// An implementation named in `select` stands above the environment; without one
/// TILEWISE_FORCE and TILEWISE_DISABLE count.
[[nodiscard]] Overrides overrides_of(const SelectOptions& select);

struct Candidate {
  const Implementation* implementation;
  Verdict verdict;
};

/// The whole walk over the rows of the problem's operation, in table order. `chosen` indexes `candidates`, or is -1.
struct Selection {
  std::vector<Candidate> candidates;
  int chosen = -1;
};

/// `problem` is valid and canonical. Throws where an override names an implementation that is
/// not in the table.
[[nodiscard]] Selection select(const ProblemView& problem, const Overrides& overrides,
                               std::span<const Implementation* const> table);

}  // namespace tilewise::core
