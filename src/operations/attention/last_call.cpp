// Which calls are remembered, and what is looked at again.
#include "operations/attention/last_call.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

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

bool same_kinds(const std::vector<TensorView>& one, const std::vector<TensorView>& other) {
  return std::ranges::equal(one, other, core::same_kind);
}

}  // namespace

bool LastCall::has_same_lists(const AttentionOptions& o) const {
  return same_kinds(o.tables, tables_) && same_kinds(o.dtables, dtables_) && same_kinds(o.block_mask, block_mask_) &&
         o.block_rows == block_rows_ && o.block_keys == block_keys_;
}

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
  const AttentionOptions& o = call.options;
  const bool host_lengths = has_host_lengths(call);
  has_values_ = host_lengths || o.seed_and_offset.defined() || o.q_scale_value || o.k_scale_value || o.v_scale_value;
  if (host_lengths) problem_ = describe(call);
  has_lists_ = !(o.tables.empty() && o.dtables.empty() && o.block_mask.empty());
  if (has_lists_) {
    tables_ = o.tables;
    dtables_ = o.dtables;
    block_mask_ = o.block_mask;
    block_rows_ = o.block_rows;
    block_keys_ = o.block_keys;
  }
  return last_.remember(call);
}

}  // namespace tilewise::operations::attention
