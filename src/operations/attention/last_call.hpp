// What is remembered of an attention call, to tell whether the next one describes to the same problem.
#pragma once

#include <cstdint>
#include <vector>

#include "core/visibility.hpp"
#include "operations/attention/call.hpp"

namespace tilewise::operations::attention {

/// Everything that describe() looks at. Tables and block masks, which the schema has no place for, are compared as its
/// tensors are: what they hold may change.
class TILEWISE_INTERNAL LastCall {
 public:
  /// Whether `call` is of the same kind in everything that describe() looks at. Throws what that would throw for
  /// lengths on the CPU.
  [[nodiscard]] bool is_like(const Call& call) const {
    return has_lists_of(call.options) && last_.is_like(call) && (!has_values_ || has_good_values(call));
  }
  bool remember(const Call& call);

 private:
  [[nodiscard]] bool has_lists_of(const AttentionOptions& o) const {
    const bool none = o.tables.empty() && o.dtables.empty() && o.block_mask.empty();
    return none ? !has_lists_ : has_lists_ && has_same_lists(o);
  }
  [[nodiscard]] bool has_same_lists(const AttentionOptions& o) const;
  /// Of a call of the same kind: whether describing it would find no fault with its values, and the same lengths.
  [[nodiscard]] bool has_good_values(const Call& call) const;

  schema::LastCallOf<kSchema> last_;
  bool has_values_ = false;   ///< there are some that describing looks at
  bool has_lists_ = false;    ///< there are some of the tensors below
  AttentionProblem problem_;  ///< of a call with lengths on the CPU
  std::vector<TensorView> tables_, dtables_, block_mask_;
  std::int64_t block_rows_ = 0, block_keys_ = 0;  ///< of a block mask's blocks
};

}  // namespace tilewise::operations::attention
