// key_indices of drawn calls: mostly keys, some that select none, some that are no keys.
#pragma once

#include <cstdint>
#include <limits>

#include "verify/buffer.hpp"
#include "verify/random.hpp"

namespace tilewise::verify {

/// One index of a sequence of `seqlen_k` keys.
inline std::int64_t drawn_index(std::int64_t seqlen_k, Random& rng) {
  if (rng.chance(0.06)) return -1;
  if (rng.chance(0.04)) return rng.pick<std::int64_t>({seqlen_k, seqlen_k + 7, -2, std::numeric_limits<int>::max()});
  if (seqlen_k == 0) return -1;
  return rng.chance(0.2) ? rng.integer(0, (seqlen_k - 1) / 4) : rng.integer(0, seqlen_k - 1);
}

/// Fills rows [first, first + count) of [batch, row, head, index], packed [row, head, index].
inline void fill_indices(const TensorView& view, std::int64_t batch, std::int64_t first, std::int64_t count,
                         std::int64_t seqlen_k, Random& rng) {
  const bool packed = view.rank == 3;
  TensorView rows = view;
  rows.shape[packed ? 0 : 1] = count;
  if (!packed) rows.shape[0] = 1;
  const std::int64_t base = first * view.strides[packed ? 0 : 1] + (packed ? 0 : batch * view.strides[0]);
  for_each_element(rows, [&](std::span<const std::int64_t>, std::int64_t offset) {
    store_at(view, base + offset, static_cast<double>(drawn_index(seqlen_k, rng)));
  });
}

/// Draws how many indices a query has, and whether each key head has its own.
template <typename Problem>
void draw_top_k(Problem& p, std::int64_t seqlen_k, Random& rng) {
  p.top_k = rng.chance(0.3) ? rng.integer(1, 4) : rng.integer(1, std::max<std::int64_t>(1, 2 * seqlen_k / 3) + 3);
  p.key_indices_per_head = p.num_heads_k != 1 && rng.chance(0.5);
}

}  // namespace tilewise::verify
