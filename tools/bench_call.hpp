// What `tilewise bench` measures of an operation: a call with tensors of its own, and how much work it is.
// bench_call.cpp has what is measured of each operation.
#pragma once

#include <memory>

#include "tilewise/plan.hpp"

namespace tilewise::tools {

class BenchCall {
 public:
  BenchCall() = default;
  virtual ~BenchCall() = default;
  BenchCall(const BenchCall&) = delete;
  BenchCall& operator=(const BenchCall&) = delete;

  /// What the tensors describe to.
  [[nodiscard]] virtual AnyProblem problem() const = 0;
  /// Computes once with a plan of problem().
  virtual void run(const Plan& plan) const = 0;
  /// 2 per multiply-add that the problem asks for.
  [[nodiscard]] virtual double flops() const = 0;
  /// Of all inputs and outputs, each once: the least that memory must move.
  [[nodiscard]] virtual double bytes() const = 0;
  /// The dtype whose rate bounds the arithmetic.
  [[nodiscard]] virtual DType dtype() const = 0;
};

/// Contiguous tensors of random numbers for a problem of the CPU.
[[nodiscard]] std::unique_ptr<const BenchCall> make_bench_call(const AnyProblem& problem);

}  // namespace tilewise::tools
