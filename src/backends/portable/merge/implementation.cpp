// Judges merge problems for a GPU, and tells the strides of contiguous calls.
#include "backends/portable/merge/implementation.hpp"

#include <memory>
#include <vector>

#include "gpu/lowered_kernel.hpp"
#include "operations/layout.hpp"

namespace tilewise::backends::portable {
namespace {

/// A tensor in the order of the layout, without memory; with as many parts before it, where there are any.
TensorView contiguous(const MergeProblem& p, DType dtype, bool statistics, std::int64_t parts) {
  const operations::Axes axes = operations::axes_of(p.layout);
  std::vector<std::int64_t> shape;
  if (parts > 0) shape.push_back(parts);
  if (statistics) {
    if (axes.batch >= 0) shape.push_back(p.batch_size);
    shape.insert(shape.end(), {p.num_heads_q, p.seqlen_q});
  } else {
    const std::size_t first = shape.size();
    shape.resize(first + static_cast<std::size_t>(axes.rank()));
    if (axes.batch >= 0) shape[first + static_cast<std::size_t>(axes.batch)] = p.batch_size;
    shape[first + static_cast<std::size_t>(axes.seq)] = p.seqlen_q;
    shape[first + static_cast<std::size_t>(axes.head)] = p.num_heads_q;
    shape[first + static_cast<std::size_t>(axes.dim)] = p.head_dim_v;
  }
  TensorView view;
  view.dtype = dtype;
  view.rank = static_cast<int>(shape.size());
  std::int64_t stride = 1;
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    view.shape[axis] = shape[axis];
    view.strides[axis] = stride;
    stride *= shape[axis] > 0 ? shape[axis] : 1;
  }
  return view;
}

/// Parts of mixed element types are as `out` but for every second one.
std::vector<TensorView> contiguous_parts(const MergeProblem& p, bool statistics) {
  const DType lse = operations::statistics_dtype(p.dtype), own = operations::merge::dtype_of(p.parts_dtype);
  if (p.stacked) return {contiguous(p, statistics ? lse : own, statistics, p.parts)};
  std::vector<TensorView> views;
  for (std::int64_t n = 0; n < p.parts; ++n) {
    const DType mixed = n % 2 == 0 ? p.dtype : DType::f32;
    views.push_back(contiguous(p, statistics ? lse : own == DType::none ? mixed : own, statistics, 0));
  }
  return views;
}

}  // namespace

core::Verdict MergeImplementation::judge(const MergeProblem& problem, const core::DeviceDescription& device) const {
  return gpu::judge_lowered(device, family_, find_runtime_, [&] { return lower(problem, device, family_); });
}

std::shared_ptr<const void> MergeImplementation::contiguous_call(const core::ProblemView& problem) const {
  const auto& p = problem.as<MergeProblem>();
  const DType statistics = operations::statistics_dtype(p.dtype);
  MergeArguments forward;
  MergeBackwardArguments backward;
  forward.layout = backward.layout = p.layout;
  forward.outs = backward.outs = contiguous_parts(p, false);
  forward.lses = backward.lses = contiguous_parts(p, true);
  if (p.sink != MergeSink::none) forward.sink = TensorView(nullptr, operations::merge::sink_dtype(p), {p.num_heads_q});
  backward.sink = forward.sink;
  forward.out = backward.dout = contiguous(p, p.dtype, false, 0);
  if (p.softmax_lse) forward.softmax_lse = contiguous(p, statistics, true, 0);
  if (p.dlse) backward.dlse = contiguous(p, statistics, true, 0);
  if (p.douts) backward.douts = backward.outs;
  if (p.dlses) backward.dlses = backward.lses;
  if (p.dsink) backward.dsink = forward.sink;
  const operations::merge::Call call =
      p.pass == MergePass::merge ? operations::merge::call_of(forward) : operations::merge::call_of(backward);
  return std::make_shared<const operations::merge::MergeParams>(operations::merge::make_params(call, p));
}

}  // namespace tilewise::backends::portable
