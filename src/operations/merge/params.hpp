// What implementations of merge are launched with: any number of parts, each as kernels see tensors. A stacked call
// comes as the list of its slices too.
#pragma once

#include <cstdint>
#include <vector>

#include "device/common/params.h"
#include "tilewise/tensor.hpp"

namespace tilewise::operations::merge {

/// One partial result and, in the backward pass, its gradients (data null where not wanted).
struct Part {
  device::Tensor4 out, dout;
  device::LseTensor lse, dlse;
  DType dtype;  ///< of out and dout
};

/// From one part to the next of stacked tensors, in elements; of others 0.
struct PartStrides {
  std::int64_t out, lse, dout, dlse;
};

struct MergeParams {
  std::int64_t batch_size, seqlen_q, num_heads_q, head_dim_v;  // packed: a batch of one
  std::vector<Part> parts;
  PartStrides stacked;
  DType dtype, statistics;        ///< of out and dout; of log-sum-exps
  device::Tensor4 out;            ///< forward: written
  device::LseTensor softmax_lse;  // data null where not wanted
  device::Tensor4 dout;           ///< backward: read
  device::LseTensor dlse;         ///< data null where not given
  DType sink_dtype;
  const void* sink;  ///< null: none
  std::int64_t sink_stride;
  void* dsink;  ///< of sink_dtype; null where not wanted
  std::int64_t dsink_stride;
};

}  // namespace tilewise::operations::merge
