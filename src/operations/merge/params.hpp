// What implementations of merge are launched with: any number of parts, each as kernels see tensors. A stacked call
// comes as the list of its slices too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/visibility.hpp"
#include "device/common/params.h"
#include "operations/merge/schema.hpp"
#include "tilewise/merge.hpp"

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

/// Part n of a list, or of the one tensor [parts, ...] that is all of them.
[[nodiscard]] inline TensorView part_of(std::span<const TensorView> list, std::size_t n, bool stacked) {
  if (!stacked) return list[n];
  TensorView view = list.front();
  if (view.data != nullptr) {
    const std::int64_t offset = static_cast<std::int64_t>(n) * view.strides[0];
    view.data = static_cast<std::byte*>(view.data) + offset * static_cast<std::int64_t>(size_of(view.dtype));
  }
  --view.rank;
  for (std::size_t axis = 0; axis < static_cast<std::size_t>(view.rank); ++axis) {
    view.shape[axis] = view.shape[axis + 1];
    view.strides[axis] = view.strides[axis + 1];
  }
  return view;
}

/// In its normal form. Throws Error naming the first bad argument.
[[nodiscard]] TILEWISE_INTERNAL MergeProblem describe(const Call& call);
/// The parameters of a call that describes to `problem`.
[[nodiscard]] TILEWISE_INTERNAL MergeParams make_params(const Call& call, const MergeProblem& problem);

}  // namespace tilewise::operations::merge
