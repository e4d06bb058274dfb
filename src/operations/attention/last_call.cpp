// Which calls are remembered, and what is looked at again.
#include "operations/attention/last_call.hpp"

#include <cstdint>
#include <optional>

#include "operations/attention/lengths.hpp"
#include "operations/attention/rules.hpp"

namespace tilewise::operations::attention {
namespace {

bool has_lengths(const AttentionOptions& o) {
  return o.cu_seqlens_q.defined() || o.seqused_q.defined() || o.seqused_k.defined() || o.leftpad_k.defined();
}

bool has_host_lengths(const Call& call) {
  return call.one("q").device.type == DeviceType::cpu && has_lengths(call.options);
}

bool are_scales(const AttentionOptions& o) {
  for (const std::optional<double>* number : {&o.q_scale_value, &o.k_scale_value, &o.v_scale_value})
    if (*number && !is_scale(**number)) return false;
  return true;
}

}  // namespace

bool LastCall::has_good_values(const Call& call) const {
  const AttentionOptions& o = call.options;
  if (o.seed_and_offset.defined() && (o.seed != 0 || o.offset != 0)) return false;
  if (!are_scales(o)) return false;
  if (!has_host_lengths(call)) return true;
  if (is_packed(problem_)) {
    const std::int64_t longest_q =
        check_cu_seqlens(o.cu_seqlens_q, "cu_seqlens_q", problem_.total_q, o.max_seqlen_q, "max_seqlen_q");
    const std::int64_t longest_k =
        check_cu_seqlens(o.cu_seqlens_k, "cu_seqlens_k", problem_.total_k, o.max_seqlen_k, "max_seqlen_k");
    if (o.max_seqlen_q.value_or(longest_q) != problem_.seqlen_q) return false;
    if (o.max_seqlen_k.value_or(longest_k) != problem_.seqlen_k) return false;
  }
  check_used_lengths(o, problem_);
  return true;
}

bool LastCall::remember(const Call& call) {
  if (!compares(call)) return false;
  const AttentionOptions& o = call.options;
  const bool host_lengths = has_host_lengths(call);
  has_values_ = host_lengths || o.seed_and_offset.defined() || o.q_scale_value || o.k_scale_value || o.v_scale_value;
  if (host_lengths) problem_ = describe(call);
  return last_.remember(call);
}

}  // namespace tilewise::operations::attention
