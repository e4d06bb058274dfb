// Which calls describe to the same Problem.
#include "operations/attention/last_call.hpp"

#include <cstddef>

#include "core/recent_plan.hpp"
#include "operations/attention/fields.hpp"

namespace tilewise::operations::attention {
namespace {

/// Whether a call has no tensors but those that usual_tensors() lists, and no sizes beside them.
bool is_usual(const Call& call) {
  const auto& [operation, q, k, v, out, softmax_lse, dout, dlse, dq, dk, dv, dbias, dsink, options] = call;
  bool others = dbias.defined() || dsink.defined() || options.max_seqlen_q || options.max_seqlen_k ||
                options.q_scale_value || options.k_scale_value || options.v_scale_value;
  for_each_option_tensor(options, [&others](auto, const TensorView& view, auto) { others = others || view.defined(); });
  return !others;
}

std::array<const TensorView*, 10> usual_tensors(const Call& c) {
  return {&c.q, &c.k, &c.v, &c.out, &c.softmax_lse, &c.dout, &c.dlse, &c.dq, &c.dk, &c.dv};
}

/// Whether a Problem takes the same from the options of two usual calls. Seed and offset are parameters of the kernel
/// alone.
bool same_options(const AttentionOptions& a, const AttentionOptions& b) {
  bool same = a.layout == b.layout && a.softmax_scale == b.softmax_scale;
  // Options have the names of a problem's fields.
  for_each_plain_option(a, b, [&same](const auto& x, const auto& y) { same = same && x == y; });
  return same;
}

}  // namespace

bool LastCall::is_like(const Call& call) const {
  if (!is_usual(call)) return false;
  const std::array<const TensorView*, 10> tensors = usual_tensors(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!core::same_kind(*tensors[i], tensors_[i])) return false;
  }
  return same_options(call.options, options_);
}

bool LastCall::remember(const Call& call) {
  if (!is_usual(call)) return false;
  const std::array<const TensorView*, 10> tensors = usual_tensors(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors_[i] = *tensors[i];
  options_ = call.options;
  return true;
}

}  // namespace tilewise::operations::attention
