// Scores of the backward pass of few queries, summed in the order in which decoding (decode_products.h) sums them: what
// two orders differ by, some units in the last place, would be an exponent where scores are large.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/pack.h"

namespace tilewise::backends::cpu {

/// scores[r][j] of `rows` packed queries, `ld` apart, with keys [0, columns); those from `valid` on repeat the last
/// one. Queries are zero up to a whole vector.
template <class C, class In>
void decoded_scores(int64_t rows, int64_t columns, int64_t valid, const RealOf<C>* q, int64_t ldq, const In* k,
                    int64_t k_stride, int64_t head_dim, RealOf<C>* scores, int64_t ld) {
  using V = typename C::V;
  using F = typename V::F;
  static_assert(C::kKeyVectors == 1);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < columns; j += V::kLanes) {
      F sums[V::kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < V::kLanes; ++i) sums[i] = V::zero();
      for (int64_t unit = 0; unit < ldq; unit += V::kLanes) {
        const F query = V::load(q + r * ldq + unit);
#pragma GCC unroll 16
        for (int i = 0; i < V::kLanes; ++i) {
          const int64_t key = j + i < valid ? j + i : valid - 1;
          F units[1];
          C::template load_key<false>(units, k + key * k_stride, unit * C::kPair, head_dim);
          sums[i] = C::dot(sums[i], query, units[0]);
        }
      }
      V::store(scores + r * ld + j, V::sum_each(sums));
    }
  }
}

}  // namespace tilewise::backends::cpu
