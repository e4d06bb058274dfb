// What a backend offers to the framework: an Implementation judges problems of one operation by a declared
// feature set and answers with a Kernel, which once loaded launches on plain parameters.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/device_description.hpp"
#include "core/operation.hpp"
#include "core/visibility.hpp"

namespace tilewise::core {

/// What runs a problem, with its schedule: one kernel, or a list of steps over one workspace. Immutable and thread-safe
/// once it is loaded.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Why load() is bound to fail, as far as can be told without compiling or loading anything; else empty.
  [[nodiscard]] virtual std::string obstacle() const { return {}; }
  /// Compiles and loads what launches need. Called once, before the first of them. Throws Error.
  virtual void load() {}
  /// Bytes of scratch launch() needs, aligned to 64.
  [[nodiscard]] virtual std::size_t workspace_size() const noexcept = 0;
  /// Tile sizes, splits, and what loading has found out: one line for explain() and logs.
  [[nodiscard]] virtual std::string schedule() const = 0;
  /// Computes. `params` points at the operation's parameters, whose tensors match the problem that the kernel is for.
  virtual void launch_on(const void* params, void* workspace, void* stream) const = 0;
};

/// Accept{kernel, estimated time} or Refuse{reason}.
struct Verdict {
  std::unique_ptr<Kernel> kernel;  ///< not loaded; null where refused
  double estimated_us = 0.0;
  std::string reason;  ///< why refused; empty when accepted

  [[nodiscard]] static Verdict accept(double estimated_us, std::unique_ptr<Kernel> kernel) {
    return {std::move(kernel), estimated_us, {}};
  }
  [[nodiscard]] static Verdict refuse(std::string reason) { return {nullptr, 0.0, std::move(reason)}; }
  [[nodiscard]] bool accepted() const noexcept { return kernel != nullptr; }
};

/// A kernel of an operation whose parameters are Params.
template <typename Params>
class KernelOf : public Kernel {
 public:
  virtual void launch(const Params& params, void* workspace, void* stream) const = 0;
  void launch_on(const void* params, void* workspace, void* stream) const final {
    launch(*static_cast<const Params*>(params), workspace, stream);
  }
};

/// One row of the dispatch table, for one operation. Stateless; lives for the whole program.
class Implementation {
 public:
  virtual ~Implementation() = default;
  /// "cpu.avx512", ...: a string literal. Rows of several operations may share it.
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual const OperationInterface& operation() const noexcept = 0;
  [[nodiscard]] virtual DeviceType device() const noexcept = 0;
  /// Everything this implementation honours. The framework refuses a problem whose
  /// required_features() are not all in here and prints the difference.
  [[nodiscard]] virtual FeatureBits supported_features() const noexcept = 0;
  /// Called for problems whose features and kind of device fit: limits, schedule, cost. A pure function: equal problems
  /// and descriptions get equal answers, whether there is such a device here or not.
  [[nodiscard]] virtual Verdict judge_problem(const ProblemView& problem, const DeviceDescription& device) const = 0;
};

/// The same with an operation's own types.
template <typename Traits>
class ImplementationOf : public Implementation {
 public:
  using Problem = typename Traits::Problem;

  [[nodiscard]] virtual FeatureSetOf<typename Traits::Feature> supported() const noexcept = 0;
  [[nodiscard]] virtual Verdict judge(const Problem& problem, const DeviceDescription& device) const = 0;

  [[nodiscard]] const OperationInterface& operation() const noexcept final {
    constexpr const Problem* kTag = nullptr;
    return operation_of(kTag);
  }
  [[nodiscard]] FeatureBits supported_features() const noexcept final { return supported().bits(); }
  [[nodiscard]] Verdict judge_problem(const ProblemView& problem, const DeviceDescription& device) const final {
    return judge(problem.template as<Problem>(), device);
  }
};

/// The ordered table, best first; equal estimates go to the earlier row. Defined by
/// src/backends/table.cpp, the one place that knows every backend.
[[nodiscard]] TILEWISE_INTERNAL std::span<const Implementation* const> implementation_table();

}  // namespace tilewise::core
