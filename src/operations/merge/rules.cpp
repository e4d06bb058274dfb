// The normal form of a merge problem, and the memory that it moves.
#include "operations/merge/rules.hpp"

namespace tilewise::operations::merge {

double bytes_moved(const MergeProblem& p) {
  const auto size = [](DType dtype) { return static_cast<double>(size_of(dtype)); };
  const DType statistics = statistics_dtype(p.dtype);
  const double part = size(p.parts_dtype == PartsDType::mixed ? statistics : dtype_of(p.parts_dtype));
  const double rows =
      static_cast<double>(p.batch_size) * static_cast<double>(p.seqlen_q) * static_cast<double>(p.num_heads_q);
  const double parts = static_cast<double>(p.parts), dim = static_cast<double>(p.head_dim_v);
  const double once = rows * (dim * size(p.dtype) + size(statistics));  // out or dout, and its log-sum-exp
  const double each = rows * (dim * part + size(statistics)) * parts;   // the parts
  const bool backward = p.pass == MergePass::merge_backward;
  return once + each * (backward && p.douts ? 2.0 : 1.0);
}

MergeProblem canonical(MergeProblem p) {
  if (p.sink == MergeSink::query && p.dtype == DType::f32) p.sink = MergeSink::f32;
  if (p.device == DeviceType::cpu) p.unaligned = false;
  return p;
}

}  // namespace tilewise::operations::merge
