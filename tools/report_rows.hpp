// The rows of `tilewise verify --report`, and what they come to.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "core/device_description.hpp"
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

/// One line on a GPU, and on what compiles for it: "gfx942: 304 multiprocessors at 2.1 GHz, ...".
[[nodiscard]] std::string gpu_line(const core::DeviceDescription& device, const std::string& compiler);

/// The text with `home`, a folder that tells who somebody is, as "~" wherever it stands; an empty one stands nowhere.
[[nodiscard]] std::string without_home(std::string_view text, std::string_view home);

}  // namespace tilewise::tools
