// The plan of a thread's last call, for the next one on tensors of the same kind: comparing them costs a tenth of
// describing the call and looking its plan up.
#pragma once

#include <array>
#include <string>

#include "core/call.hpp"
#include "core/plan.hpp"

namespace tilewise::core {

/// Remembers one call that has no tensors but the usual ones; others are not worth comparing.
class RecentPlan {
 public:
  /// The plan of the remembered call where `call` describes to the same Problem on the same device; else null.
  [[nodiscard]] PlanState find(const Call& call, const Overrides& overrides) const;
  /// Remembers that `plan` serves `call`, if it is such a call.
  void remember(const Call& call, const Overrides& overrides, const PlanState& plan);

 private:
  PlanState plan_;  ///< null: nothing is remembered
  std::array<TensorView, 10> tensors_;
  AttentionOptions options_;
  std::string force_, disable_;
};

/// This thread's of calls that are `operation`, and of those that came with a plan.
[[nodiscard]] RecentPlan& recent_plan(Operation operation);
[[nodiscard]] RecentPlan& recent_given_plan(Operation operation);

}  // namespace tilewise::core
