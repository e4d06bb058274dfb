// Which calls describe to the same Problem. Structured bindings name every member, so that a new one does not compile
// until it is looked at here.
#include "core/recent_plan.hpp"

#include <cstddef>
#include <cstdint>
#include <tuple>

namespace tilewise::core {
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

/// Everything about an address that describe() asks for.
std::uintptr_t address_class(const void* data) {
  constexpr std::uintptr_t kAlignment = 16;
  return data == nullptr ? kAlignment : reinterpret_cast<std::uintptr_t>(data) % kAlignment;
}

bool same_kind(const TensorView& a, const TensorView& b) {
  const auto& [data, dtype, device, rank, shape, strides] = a;
  if (dtype != b.dtype) return false;
  if (dtype == DType::none) return true;
  if (device != b.device || rank != b.rank || address_class(data) != address_class(b.data)) return false;
  for (std::size_t i = 0; i < static_cast<std::size_t>(rank); ++i) {
    if (shape[i] != b.shape[i] || strides[i] != b.strides[i]) return false;
  }
  return true;
}

}  // namespace

PlanState RecentPlan::find(const Call& call, const Overrides& overrides) const {
  if (plan_ == nullptr || !is_usual(call)) return nullptr;
  const std::array<const TensorView*, 10> tensors = usual_tensors(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!same_kind(*tensors[i], tensors_[i])) return nullptr;
  }
  const bool same =
      scalars(call.options) == scalars(options_) && overrides.force == force_ && overrides.disable == disable_;
  return same ? plan_ : nullptr;
}

void RecentPlan::remember(const Call& call, const Overrides& overrides, const PlanState& plan) {
  if (!is_usual(call)) return;
  const std::array<const TensorView*, 10> tensors = usual_tensors(call);
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors_[i] = *tensors[i];
  options_ = call.options;
  force_ = overrides.force;
  disable_ = overrides.disable;
  plan_ = plan;
}

RecentPlan& recent_plan(Operation operation) {
  thread_local std::array<RecentPlan, 2> plans;
  return plans[static_cast<std::size_t>(operation)];
}

RecentPlan& recent_given_plan(Operation operation) {
  thread_local std::array<RecentPlan, 2> plans;
  return plans[static_cast<std::size_t>(operation)];
}

}  // namespace tilewise::core
