// A call to its problem, and to the parameters of its implementations.
#include "operations/merge/params.hpp"

#include "operations/derived/describe.hpp"
#include "operations/layout.hpp"
#include "operations/merge/rules.hpp"
#include "operations/merge/schema.hpp"

namespace tilewise::operations::merge {

MergeProblem describe(const Call& call) { return canonical(schema::Describer(call).describe()); }

MergeParams make_params(const Call& call, const MergeProblem& p) {
  const Axes axes = axes_of(p.layout);
  const bool packed = is_packed(p);
  MergeParams params{};
  params.batch_size = p.batch_size;
  params.seqlen_q = p.seqlen_q;
  params.num_heads_q = p.num_heads_q;
  params.head_dim_v = p.head_dim_v;
  params.dtype = p.dtype;
  params.statistics = statistics_dtype(p.dtype);
  params.parts.reserve(static_cast<std::size_t>(p.parts));
  for (std::size_t n = 0; n < static_cast<std::size_t>(p.parts); ++n) {
    const TensorView out = part_of(call["outs"], n, p.stacked);
    Part part{tensor4(out, axes), {}, lse_tensor(part_of(call["lses"], n, p.stacked), packed), {}, out.dtype};
    if (p.pass == MergePass::merge_backward) {
      if (p.douts) part.dout = tensor4(part_of(call["douts"], n, p.stacked), axes);
      if (p.dlses) part.dlse = lse_tensor(part_of(call["dlses"], n, p.stacked), packed);
    }
    params.parts.push_back(part);
  }
  if (p.stacked) {
    const auto stride = [](std::span<const TensorView> list) { return list.empty() ? 0 : list.front().strides[0]; };
    params.stacked = {stride(call["outs"]), stride(call["lses"]), stride(call["douts"]), stride(call["dlses"])};
  }
  params.out = tensor4(call.one("out"), axes);
  params.softmax_lse = lse_tensor(call.one("softmax_lse"), packed);
  params.dout = tensor4(call.one("dout"), axes);
  params.dlse = lse_tensor(call.one("dlse"), packed);
  params.sink_dtype = sink_dtype(p);
  params.sink = call.one("sink").data;
  params.sink_stride = call.one("sink").strides[0];
  params.dsink = call.one("dsink").data;
  params.dsink_stride = call.one("dsink").strides[0];
  return params;
}

}  // namespace tilewise::operations::merge
