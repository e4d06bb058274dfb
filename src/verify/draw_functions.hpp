// Functions of scores and what they look up, for random problems of every operation that has scores.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "expression/expression.hpp"
#include "tilewise/problem.hpp"
#include "tilewise/tensor.hpp"
#include "verify/buffer.hpp"
#include "verify/random.hpp"

namespace tilewise::verify {

/// Of every kind of operator, with look-ups that are not all within drawn_tables().
inline const char* drawn_score_mod(Random& rng) {
  return rng.pick<const char*>(
      {"score-abs(table0[h])*abs(q_idx-kv_idx)", "4.0*tanh(score/4.0)", "select(kv_idx<=q_idx,score,-inf)",
       "score+table0[h]*table1[kv_idx%8]", "score*0.5+0.125*((q_idx+b)//3%5)",
       "max(score,-2.0)-log(1.0+exp2(-abs(score)))", "select(table1[min(q_idx,7)]==table1[kv_idx],score,score-1.5)",
       "score+table3[h,clamp(q_idx-kv_idx+40,0,79)]", "score*table4[b]+float(table3[h,kv_idx])*0.5"});
}
inline const char* drawn_mask_mod(Random& rng) {
  return rng.pick<const char*>({"kv_idx<=q_idx", "(q_idx-kv_idx)%3!=1", "(abs(q_idx-kv_idx)<40)|(kv_idx<5)",
                                "table1[q_idx//16]<=table1[kv_idx//16]", "(kv_idx+b+h)%7<5", "table0[h]<0.5",
                                "table2[b,q_idx]==table2[b,kv_idx]",
                                "(table2[b,q_idx]!=table2[b,kv_idx])|(kv_idx==q_idx)"});
}
/// `longest`: of a sequence's queries and keys.
inline std::vector<TableShape> drawn_tables(std::int64_t batch_size, std::int64_t num_heads_q, std::int64_t longest,
                                            Random& rng) {
  return {{DType::f32, 1, {num_heads_q}},
          {DType::i32, 1, {8}},
          {DType::i64, 2, {batch_size, longest}},
          {rng.pick({DType::f32, DType::bf16, DType::f16, DType::fp8_e4m3}), 2, {num_heads_q, 80}},
          {rng.pick({DType::f64, DType::fp8_e5m2}), 1, {batch_size}}};
}

/// Small ints, so that they serve as indices and repeat as documents do.
inline void fill_table(const TensorView& table, Random& rng) {
  const expression::Type type = expression::table_type(table.dtype, "table");
  for_each_element(table, [&](std::span<const std::int64_t>, std::int64_t offset) {
    const bool whole = type == expression::Type::integer;
    const auto integer = static_cast<double>(rng.integer(0, whole ? 3 : 1));
    store_at(table, offset, type == expression::Type::real ? rng.uniform(-1.0, 1.0) : integer);
  });
}

}  // namespace tilewise::verify
