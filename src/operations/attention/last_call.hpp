// What is remembered of an attention call, to tell whether the next one describes to the same problem.
#pragma once

#include "core/visibility.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::operations::attention {

/// A call without tables and block masks, which are not worth comparing.
class TILEWISE_INTERNAL LastCall {
 public:
  /// Whether `call` is such a call, of the same kind in everything that describe() looks at. Throws what that would
  /// throw for lengths on the CPU.
  [[nodiscard]] bool is_like(const Call& call) const {
    return compares(call) && last_.is_like(call) && (!has_values_ || has_good_values(call));
  }
  /// False, and nothing remembered, where `call` is no such call.
  bool remember(const Call& call);

 private:
  [[nodiscard]] static bool compares(const Call& call) {
    const AttentionOptions& o = call.options;
    return o.tables.empty() && o.dtables.empty() && o.block_mask.empty();
  }
  /// Of a call of the same kind: whether describing it would find no fault with its values, and the same lengths.
  [[nodiscard]] bool has_good_values(const Call& call) const;

  schema::LastCallOf<kSchema> last_;
  bool has_values_ = false;   ///< there are some that describing looks at
  AttentionProblem problem_;  ///< of a call with lengths on the CPU
};

}  // namespace tilewise::operations::attention
