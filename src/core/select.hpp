// Selection: walks the table of implementations, asks each for its verdict and picks the
// cheapest accepted one.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/implementation.hpp"
#include "core/visibility.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::core {

/// Which implementations may be chosen: comma-separated names, in which `*` stands for any
/// characters. Empty: no restriction. Borrows from the options or the environment.
///
/// `force` of the environment speaks to every call of the program: operations of which it names no row go their own
/// way. That of a call must name a row of the call's operation.
struct Overrides {
  std::string_view force, disable;
  std::string_view force_source;  ///< kForceVariable or "implementation": a literal

  /// Whether they choose alike.
  friend bool operator==(const Overrides& a, const Overrides& b) {
    return a.force == b.force && a.disable == b.disable && (a.force.empty() || a.force_source == b.force_source);
  }
};

inline constexpr std::string_view kForceVariable = "TILEWISE_FORCE";

/// An implementation named in `select` stands above the environment; without one
/// TILEWISE_FORCE and TILEWISE_DISABLE count.
[[nodiscard]] TILEWISE_INTERNAL Overrides overrides_of(const SelectOptions& select);

struct Candidate {
  const Implementation* implementation;
  Verdict verdict;
};

/// The whole walk over the rows of the problem's operation, in table order. `chosen` indexes `candidates`, or is -1.
struct Selection {
  std::vector<Candidate> candidates;
  int chosen = -1;
};

/// The names of a table's rows in its order, each once: of one operation, or of all of them (null).
[[nodiscard]] TILEWISE_INTERNAL std::vector<std::string_view> row_names(std::span<const Implementation* const> table,
                                                                        const OperationInterface* operation = nullptr);

/// The row of that operation and name; null where there is none.
[[nodiscard]] TILEWISE_INTERNAL const Implementation* find_row(std::span<const Implementation* const> table,
                                                               const OperationInterface& operation,
                                                               std::string_view name);

/// Whether the device that is described is one of this machine: of another nobody asks what would keep its kernels from
/// being loaded here.
enum class Whereabouts : std::uint8_t { here, elsewhere };

/// `problem` is valid and canonical. Throws where an override names an implementation that is
/// not in the table. Loads nothing.
[[nodiscard]] TILEWISE_INTERNAL Selection select(const ProblemView& problem, const Overrides& overrides,
                                                 const DeviceDescription& device,
                                                 std::span<const Implementation* const> table,
                                                 Whereabouts whereabouts = Whereabouts::here);

}  // namespace tilewise::core
