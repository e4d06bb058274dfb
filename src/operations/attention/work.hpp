// How much of its rectangle a Problem computes, as far as the Problem tells: what cost estimates count. Masks and
// windows are exact; of packed sequences only their sum and the longest are known.
#pragma once

#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// Lengths of the sequences that a call has on average, and of all of them together.
struct Extent {
  double seqlen_q = 0.0, seqlen_k = 0.0;
  double total_q = 0.0, total_k = 0.0;
};

[[nodiscard]] Extent typical_extent(const AttentionProblem& problem);

/// Of the tiles of `queries` queries each that all sequences would have were they as long as the longest, the share
/// that there is: every sequence has one that is not full.
[[nodiscard]] double share_of_tiles(const AttentionProblem& problem, double queries);

/// Keys between the first and the last one that a block of consecutive queries sees, on average over such blocks.
/// With block 1 the keys a query sees.
[[nodiscard]] double keys_seen(const AttentionProblem& problem, double block = 1.0);
/// Likewise queries that see any of a block of keys.
[[nodiscard]] double queries_seen(const AttentionProblem& problem, double block = 1.0);

/// The most that any of those blocks sees, or a little more where a band leaves the rectangle.
[[nodiscard]] double most_keys_seen(const AttentionProblem& problem, double block = 1.0);
[[nodiscard]] double most_queries_seen(const AttentionProblem& problem, double block = 1.0);

/// Microseconds of an implementation that computes one score after the other.
struct ScalarCosts {
  double call = 0.0, row = 0.0, row_element = 0.0, score = 0.0, flop = 0.0;
};

[[nodiscard]] double scalar_us(const AttentionProblem& problem, const ScalarCosts& costs);

}  // namespace tilewise::operations::attention
