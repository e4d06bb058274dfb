// Selected keys as kernels see them, and the check of their values.
#include "operations/selected_keys.hpp"

namespace tilewise::operations {

device::IndexTensor index_tensor(const TensorView& view, bool packed) {
  if (!view.defined()) return {};
  const int seq = packed ? 0 : 1;
  return {static_cast<const std::int32_t*>(view.data), packed ? 0 : core::stride_at(view, 0),
          core::stride_at(view, seq), core::size_at(view, seq + 1) == 1 ? 0 : core::stride_at(view, seq + 1),
          core::size_at(view, seq + 2)};
}

void check_key_indices(const device::IndexTensor& indices, std::int64_t heads, std::int64_t batch, std::int64_t first,
                       std::int64_t count, std::int64_t seqlen_k) {
  for (std::int64_t row = first; row < first + count; ++row) {
    for (std::int64_t head = 0; head < heads; ++head) {
      const std::int32_t* of_row = indices.row(batch, row, head);
      for (std::int64_t n = 0; n < indices.count; ++n) {
        if (of_row[n] >= -1 && of_row[n] < seqlen_k) continue;
        core::invalid_argument("key_indices: must be -1 (none) or 0 to ", seqlen_k - 1, ", a key of sequence ", batch,
                               " (got ", of_row[n], " as index ", n, " of row ", row, ", head ", head, ")");
      }
    }
  }
}

}  // namespace tilewise::operations
