// The rows of `tilewise verify --report`, and what they come to.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "tilewise/problem.hpp"

namespace tilewise::tools {

enum class RowResult : std::uint8_t {
  pass,
  refused,  ///< the implementation said why it does not take this, and computed nothing
  fail,     ///< a wrong result, or an error
  crash     ///< the row's process ended by a signal, or not in time
};

/// One feature on one implementation.
struct ReportRow {
  std::string implementation;
  DeviceType device = DeviceType::cpu;
  std::string feature;
  std::string pass;  ///< "forward", "backward", "step" or "append"
  RowResult result = RowResult::pass;
  std::string detail;      ///< why not: a reason or a message
  bool some_gpus = false;  ///< of FeatureProblem
};

[[nodiscard]] const char* to_string(RowResult result);

/// What the rows come to. A refusal is no failure as long as another implementation of that kind of device took the
/// feature: selection goes on to it. Where all of them refused, calls that ask for the feature fail there; of features
/// that only some GPUs have that is as it should be.
struct ReportSummary {
  bool good = false;
  /// "92 passed, 36 refused, 0 failed", and below it a line for each feature that every implementation refused.
  std::string text;
};

[[nodiscard]] ReportSummary summarize(std::span<const ReportRow> rows);

}  // namespace tilewise::tools
