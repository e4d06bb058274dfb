// The plan of a thread's last call, for the next one on tensors of the same kind: comparing them costs a tenth of
// describing the call and looking its plan up.
#pragma once

#include <array>
#include <string>

#include "core/plan.hpp"
#include "core/visibility.hpp"

namespace tilewise::core {

/// The same as same_kind() of two that are given, in one dtype.
[[nodiscard]] TILEWISE_INTERNAL bool same_kind_given(const TensorView& a, const TensorView& b);

/// Whether describe() sees no difference between two tensors: everything but the address, and of that its alignment.
[[nodiscard]] inline bool same_kind(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && (!a.defined() || same_kind_given(a, b));
}

/// Remembers one call. LastCall is the operation's: is_like(call), and remember(call), which may decline.
template <typename LastCall>
class RecentPlan {
 public:
  /// The plan of the remembered call where `call` describes to the same problem on the same device; else null.
  template <typename Call>
  [[nodiscard]] PlanState find(const Call& call, const Overrides& overrides) const {
    if (plan_ == nullptr || !last_.is_like(call)) return nullptr;
    return overrides == Overrides{force_, disable_, force_source_} ? plan_ : nullptr;
  }
  /// Remembers that `plan` serves `call`, if it is a call worth remembering.
  template <typename Call>
  void remember(const Call& call, const Overrides& overrides, const PlanState& plan) {
    if (!last_.remember(call)) return;
    force_ = overrides.force;
    disable_ = overrides.disable;
    force_source_ = overrides.force_source;
    plan_ = plan;
  }

 private:
  PlanState plan_;  ///< null: nothing is remembered
  LastCall last_;
  std::string force_, disable_;
  std::string_view force_source_;
};

/// This thread's, of each kind of call that an operation has, and of those that came with a plan.
template <typename Traits>
[[nodiscard]] RecentPlan<typename Traits::LastCall>& recent_plan(std::size_t kind) {
  thread_local std::array<RecentPlan<typename Traits::LastCall>, Traits::kProblemNames.size()> plans;
  return plans[kind];
}
template <typename Traits>
[[nodiscard]] RecentPlan<typename Traits::LastCall>& recent_given_plan(std::size_t kind) {
  thread_local std::array<RecentPlan<typename Traits::LastCall>, Traits::kProblemNames.size()> plans;
  return plans[kind];
}

}  // namespace tilewise::core
