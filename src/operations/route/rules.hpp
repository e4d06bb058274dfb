// Rules about a route problem beside its schema: what is allowed, the one normal form, and what it costs.
#pragma once

#include <cstdint>

#include "core/visibility.hpp"
#include "tilewise/route.hpp"

namespace tilewise::operations::route {

/// Bytes that a pass reads and writes at least, for estimates.
[[nodiscard]] double bytes_moved(const RouteProblem& problem);

/// Whether scores of all experts choose or weigh.
[[nodiscard]] bool uses_score(const RouteProblem& problem);

/// As tilewise::validate().
TILEWISE_INTERNAL void validate(const RouteProblem& problem);

/// The one form of all problems that mean the same computation: groups that all stay are none, and a score that
/// neither chooses nor weighs is softmax. Values that validate() rejects are left alone.
[[nodiscard]] TILEWISE_INTERNAL RouteProblem canonical(RouteProblem problem);

}  // namespace tilewise::operations::route
