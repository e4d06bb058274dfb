// What a backend offers to the framework: an Implementation judges Problems by a declared
// feature set and prepares a Kernel, which launches on plain parameters.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "core/features.hpp"
#include "device/common/params.h"
#include "tilewise/problem.hpp"

namespace tilewise::core {

/// Accept{estimated time} or Refuse{reason}.
struct Verdict {
  bool accepted = false;
  double estimated_us = 0.0;
  std::string reason;  ///< why refused; empty when accepted

  [[nodiscard]] static Verdict accept(double estimated_us) { return {true, estimated_us, {}}; }
  [[nodiscard]] static Verdict refuse(std::string reason) { return {false, 0.0, std::move(reason)}; }
};

/// A prepared kernel with its schedule. Immutable and thread-safe.
class Kernel {
 public:
  virtual ~Kernel() = default;
  /// Bytes of scratch launch() needs, aligned to 64.
  [[nodiscard]] virtual std::size_t workspace_size() const noexcept = 0;
  /// Tile sizes, splits: one line for explain() and logs.
  [[nodiscard]] virtual std::string schedule() const = 0;
  /// Computes. The tensors behind `params` match the Problem the kernel was prepared for.
  virtual void launch(const device::AttentionParams& params, void* workspace, void* stream) const = 0;
};

/// One row of the dispatch table. Stateless; lives for the whole program.
class Implementation {
 public:
  virtual ~Implementation() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;  ///< "cpu.avx512", ...: a string literal
  [[nodiscard]] virtual DeviceType device() const noexcept = 0;
  /// Everything this implementation honours. The framework refuses a Problem whose
  /// required_features() are not all in here and prints the difference.
  [[nodiscard]] virtual FeatureSet supported() const noexcept = 0;
  /// Called for problems whose features and device fit: machine checks, limits, cost.
  [[nodiscard]] virtual Verdict judge(const Problem& problem) const = 0;
  /// Called for problems that judge() accepted.
  [[nodiscard]] virtual std::unique_ptr<const Kernel> prepare(const Problem& problem) const = 0;
};

/// The ordered table, best first; equal estimates go to the earlier row. Defined by
/// src/backends/table.cpp, the one place that knows every backend.
[[nodiscard]] std::span<const Implementation* const> implementation_table();

}  // namespace tilewise::core
