// Tensors as kernels see them: an address and strides in elements. Every layout is seen as [batch, seq, head, dim].
// These structs and those of kernels' parameters list their fields in the order of memory, for the host.
#pragma once

#include <stdint.h>

namespace tilewise::device {

/// What the elements of a tensor in memory are. A property of each tensor, not of a call. fp8 e4m3 is read and written
/// in memory alone: see float8.h and tile/widen.h.
enum ElementType : int32_t { kBf16 = 0, kF16 = 1, kE4m3 = 2 };

/// Types that numbers have where floats are too.
enum NumberType : int32_t { kNumberF32 = 0, kNumberBf16 = 1, kNumberF16 = 2 };
/// Columns of a row of numbers that a lane takes at a time: 16 bytes of 16-bit elements.
inline constexpr int kLaneColumns = 8;

/// A [batch, seq, head, dim] tensor with contiguous dim. Packed (thd): batch_stride is 0 and
/// rows are counted over all sequences.
struct Tensor4 {
  void* data;
  int64_t batch_stride, seq_stride, head_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("seq_stride", p.seq_stride);
    visit("head_stride", p.head_stride);
  }
};

/// fp32 [batch, head, seq] (packed: [head, total], batch_stride 0). Where q is f64, which CPUs alone
/// take, `data` is a double*, and so is ScoreParams::alibi_slopes.
struct LseTensor {
  float* data;
  int64_t batch_stride, head_stride, seq_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("head_stride", p.head_stride);
    visit("seq_stride", p.seq_stride);
  }
};

/// Element types of a bias or a sink as the kernel reads them.
enum BiasType : int32_t { kBiasNone = 0, kBiasF32 = 1, kBiasBf16 = 2, kBiasF16 = 3, kBiasBool = 4, kBiasF64 = 5 };

/// Bias or its gradient; a broadcast dimension has stride 0.
struct BiasTensor {
  void* data;
  int64_t batch_stride, head_stride, query_stride, key_stride;

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("head_stride", p.head_stride);
    visit("query_stride", p.query_stride), visit("key_stride", p.key_stride);
  }
};

/// [num_heads_q] of BiasType `type`: a sink or its gradient. data null: there is none.
struct SinkTensor {
  void* data;
  int64_t stride;
  int32_t type;
  int32_t unused;  // keeps the block free of holes

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("stride", p.stride), visit("type", p.type), visit("unused", p.unused);
  }
};

/// Places of selected keys, int32 [batch, seq, head, index] with contiguous indices. Packed: as Tensor4 has it. A
/// head's stride is 0 where all key heads have the same. data null: every key is selected.
struct IndexTensor {
  const int32_t* data;
  int64_t batch_stride, seq_stride, head_stride, count;

  /// The `count` indices of a query, by its row in memory, and a key head.
  constexpr const int32_t* row(int64_t batch, int64_t seq, int64_t head_k) const {
    return data + batch * batch_stride + seq * seq_stride + head_k * head_stride;
  }

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("seq_stride", p.seq_stride);
    visit("head_stride", p.head_stride), visit("count", p.count);
  }
};

/// fp32 factors of a tensor in fp8, [batch, entry] by strides that are 0 where all share one; `heads` consecutive heads
/// of the tensor share an entry. data null: `value` is everybody's.
struct HeadScales {
  const float* data;
  int64_t batch_stride, head_stride;
  int32_t heads;
  float value;

  constexpr int64_t index(int64_t batch, int64_t head) const {
    return batch * batch_stride + head / heads * head_stride;
  }
  constexpr float of(int64_t batch, int64_t head) const { return data ? data[index(batch, head)] : value; }

  template <class Params, class Visit>
  static constexpr void for_each_field(Params& p, const Visit& visit) {
    visit("data", p.data), visit("batch_stride", p.batch_stride), visit("head_stride", p.head_stride);
    visit("heads", p.heads), visit("value", p.value);
  }
};

}  // namespace tilewise::device
