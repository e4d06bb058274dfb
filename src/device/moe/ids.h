// Which expert a pair (token, slot) goes to, and what it weighs.
#pragma once

#include "device/moe/shape.h"
#include "device/tile/number.h"

namespace tilewise::device {

inline constexpr int32_t kNobody = -1;

/// The expert of a slot as the weights here count them, or kNobody.
template <class Machine>
TILEWISE_INLINE int32_t load_expert(const MoeShape& shape, const PairTensor& ids, int32_t token, int32_t slot) {
  const int64_t at = token * ids.token_stride + slot * ids.slot_stride;
  int64_t id;
  if (ids.type == 8) {
    id = Machine::load_global(static_cast<const int64_t*>(ids.data) + at);
  } else {
    id = Machine::load_global(static_cast<const int32_t*>(ids.data) + at);
  }
  // Wraps where the difference does, so that no id of a far range comes out as one of these.
  const uint64_t local = static_cast<uint64_t>(id) - static_cast<uint64_t>(shape.first_expert);
  return local < static_cast<uint64_t>(shape.num_experts) ? static_cast<int32_t>(local) : kNobody;
}

template <class Machine>
TILEWISE_INLINE float load_weight(const MoeShape& shape, const PairTensor& weights, int32_t pair) {
  const int32_t token = pair / shape.top_k, slot = pair - token * shape.top_k;
  return load_number<Machine>(weights.data, token * weights.token_stride + slot * weights.slot_stride, weights.type);
}

}  // namespace tilewise::device
