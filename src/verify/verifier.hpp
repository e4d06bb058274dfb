// What checking an operation against the reference takes: drawing its problems, and the tensors of a call. Each
// operation brings one Verifier; one left out does not link.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/operation.hpp"
#include "verify/drawn_call.hpp"

namespace tilewise::verify {

/// What a random problem may be.
struct Limits {
  core::FeatureBits features = ~core::FeatureBits{0};  ///< it asks for no others
  double max_flops = 2e7;                              ///< of its cost, so that the double reference stays quick
  std::int64_t head_dim_multiple = 1;                  ///< head dims are rounded up to it (a merge's are not)
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  [[nodiscard]] virtual const core::OperationInterface& operation() const = 0;
  /// A valid problem, a pure function of the arguments. Throws Error(invalid_argument) where too little is left.
  [[nodiscard]] virtual AnyProblem random_problem(std::uint64_t seed, const Limits& limits) const = 0;
  /// Another valid problem of the same options and head dims, of lengths and a batch drawn from `seed`: one that the
  /// same compiled kernels serve, as a rule. Where the operation draws none, the same problem.
  [[nodiscard]] virtual AnyProblem resized(const AnyProblem& problem, std::uint64_t /*seed*/,
                                           const Limits& /*limits*/) const {
    return problem;
  }
  /// The tensors of a call. Throws Error for an invalid problem.
  [[nodiscard]] virtual std::unique_ptr<const DrawnCall> draw(const AnyProblem& problem, std::uint64_t seed,
                                                              Values values) const = 0;
};

/// Specialised beside each operation's drawing.
template <typename Traits>
[[nodiscard]] const Verifier& verifier();

/// In the order of operations::All.
[[nodiscard]] std::span<const Verifier* const> verifiers();
[[nodiscard]] const Verifier& verifier_of(const core::OperationInterface& operation);

}  // namespace tilewise::verify
