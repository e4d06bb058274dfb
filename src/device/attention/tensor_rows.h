// Where rows of a sequence stand in tensors.
#pragma once

#include "device/attention/params.h"
#include "device/common/mask.h"
#include "device/tile/loader.h"

namespace tilewise::device {

template <int kElement>
TILEWISE_INLINE const ElementBits<kElement>* elements_of(const Tensor4& t) {
  return static_cast<const ElementBits<kElement>*>(t.data);
}
template <int kElement>
TILEWISE_INLINE ElementBits<kElement>* mutable_elements_of(const Tensor4& t) {
  return static_cast<ElementBits<kElement>*>(t.data);
}

/// First element of query i's row of q, dout, out or dq, in a sequence whose queries start at s.q_row.
TILEWISE_INLINE int64_t query_offset(const Tensor4& t, const Sequence& s, int64_t batch, int64_t i, int64_t head) {
  return batch * t.batch_stride + (s.q_row + i) * t.seq_stride + head * t.head_stride;
}

/// A head's used queries, of `cols` elements each.
template <int kElement>
TILEWISE_INLINE RowSource<kElement> query_source(const Tensor4& t, const Sequence& s, int64_t batch, int64_t head,
                                                 int64_t cols) {
  return {elements_of<kElement>(t) + query_offset(t, s, batch, 0, head), t.seq_stride, static_cast<int32_t>(s.seqlen_q),
          static_cast<int32_t>(cols)};
}

/// A key head's used keys, or values, of `cols` elements each.
template <int kElement>
TILEWISE_INLINE RowSource<kElement> key_source(const Tensor4& t, const Sequence& s, int64_t batch, int64_t head,
                                               int64_t cols) {
  const int64_t offset = batch * t.batch_stride + s.k_row * t.seq_stride + head * t.head_stride;
  return {elements_of<kElement>(t) + offset, t.seq_stride, static_cast<int32_t>(s.seqlen_k),
          static_cast<int32_t>(cols)};
}

/// Where the lse of used query i stands. Packed lse counts rows over all sequences.
TILEWISE_INLINE int64_t lse_offset(const LseTensor& t, const Sequence& s, int64_t batch, int64_t i, int64_t head) {
  return batch * t.batch_stride + head * t.head_stride + (s.q_row + i) * t.seq_stride;
}

/// Where query i of a sequence stands in what is kept as [batch_size, num_heads_q, seqlen_q].
TILEWISE_INLINE int64_t dense_row(const AttentionShape& shape, int64_t batch, int64_t i, int64_t head) {
  return (batch * shape.num_heads_q + head) * shape.seqlen_q + i;
}

}  // namespace tilewise::device
