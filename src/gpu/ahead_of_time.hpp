// What `tilewise compile` asks of an implementation beside judging: kernels for a device that need not be here, and a
// call that they can be launched with.
#pragma once

#include "core/operation.hpp"
#include "gpu/family.hpp"
#include "gpu/stand_ins.hpp"

namespace tilewise::gpu {

/// Implementations whose verdicts hold a LoweredKernel.
class AheadOfTime {
 public:
  [[nodiscard]] virtual Family family() const noexcept = 0;
  /// The operation's parameters for a call whose tensors are contiguous: everything but addresses. It has every tensor
  /// that the problem says is given, for kernels may be told by an address whether there is one.
  [[nodiscard]] virtual DescribedCall contiguous_call(const core::ProblemView& problem) const = 0;

 protected:
  constexpr AheadOfTime() = default;
  ~AheadOfTime() = default;
};

}  // namespace tilewise::gpu
