// Which calls describe to the same Problem. Structured bindings name every member, so that a new one does not compile
// until it is looked at here.
#include "operations/attention/last_call.hpp"

#include <cstddef>
#include <tuple>

#include "core/recent_plan.hpp"

namespace tilewise::operations::attention {
namespace {

/// Whether a call has no tensors but those that usual_tensors() lists, and no sizes beside them.
bool is_usual(const Call& call) {
  const auto& [operation, q, k, v, out, softmax_lse, dout, dlse, dq, dk, dv, dbias, dsink, options] = call;
  const auto& o = options;
  const bool no_tensors = !(dbias.defined() || dsink.defined() || o.seed_and_offset.defined() || o.bias.defined() ||
                            o.alibi_slopes.defined() || o.sink.defined());
  const bool no_lengths = !(o.cu_seqlens_q.defined() || o.cu_seqlens_k.defined() || o.max_seqlen_q || o.max_seqlen_k ||
                            o.seqused_q.defined() || o.seqused_k.defined() || o.leftpad_k.defined());
  return no_tensors && no_lengths;
}

std::array<const TensorView*, 10> usual_tensors(const Call& c) {
  return {&c.q, &c.k, &c.v, &c.out, &c.softmax_lse, &c.dout, &c.dlse, &c.dq, &c.dk, &c.dv};
}

/// What a Problem takes from the options of a usual call. Seed and offset are parameters of the kernel alone.
auto scalars(const AttentionOptions& options) {
  const auto& [layout, mask, alignment, window_left, window_right, softmax_scale, softcap, dropout_p, seed, offset,
               seed_and_offset, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k,
               seqused_q, seqused_k, leftpad_k, deterministic, batch_invariant] = options;
  return std::tie(layout, mask, alignment, window_left, window_right, softmax_scale, softcap, dropout_p, deterministic,
                  batch_invariant);
}

}  // namespace

bool LastCall::is_like(const Call& call) const {
  if (!is_usual(call)) return false;
  const std::array<const TensorView*, 10> tensors = usual_tensors(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!core::same_kind(*tensors[i], tensors_[i])) return false;
  }
  return scalars(call.options) == scalars(options_);
}

bool LastCall::remember(const Call& call) {
  if (!is_usual(call)) return false;
  const std::array<const TensorView*, 10> tensors = usual_tensors(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors_[i] = *tensors[i];
  options_ = call.options;
  return true;
}

}  // namespace tilewise::operations::attention
