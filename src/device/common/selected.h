// Selected keys: of each query the places of the keys that it attends to, as a tensor.
#pragma once

#include <stdint.h>

#include "device/common/mask.h"

namespace tilewise::device {

/// Index n of a query: -1 where it is none that the query sees, `keys` being what mask and window leave to it.
template <class Range>
constexpr int32_t selected_key(int32_t index, const Range& keys) {
  return index >= keys.begin && index < keys.end ? index : -1;
}

/// Of the query in memory row `row`: calls visit(key) for each selected key that it sees, as often as it is selected;
/// where there are no indices, for all that mask and window leave to it.
template <class Range, class Visit>
constexpr void for_each_seen_key(const IndexTensor& indices, const Range& keys, int64_t batch, int64_t row,
                                 int64_t head_k, const Visit& visit) {
  if (indices.data == nullptr) {
    for (int64_t j = keys.begin; j < keys.end; ++j) visit(j);
    return;
  }
  const int32_t* of_row = indices.row(batch, row, head_k);
  for (int64_t n = 0; n < indices.count; ++n) {
    const int64_t key = selected_key(of_row[n], keys);
    if (key >= 0) visit(key);
  }
}

}  // namespace tilewise::device
