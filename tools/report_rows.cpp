// Which rows of a feature table make it a failure.
#include "report_rows.hpp"

#include <algorithm>
#include <set>
#include <tuple>

#include "core/message.hpp"

namespace tilewise::tools {

const char* to_string(RowResult result) {
  switch (result) {
    case RowResult::pass:
      return "PASS";
    case RowResult::refused:
      return "REFUSED";
    case RowResult::fail:
      return "FAIL";
    case RowResult::crash:
      return "CRASH";
  }
  return "?";
}

ReportSummary summarize(std::span<const ReportRow> rows) {
  const auto feature_of = [](const ReportRow& row) { return std::tuple(row.device, row.feature, row.pass); };
  std::set<std::tuple<DeviceType, std::string, std::string>> taken;
  for (const ReportRow& row : rows)
    if (row.result != RowResult::refused || row.some_gpus) taken.insert(feature_of(row));
  const auto passed = std::ranges::count(rows, RowResult::pass, &ReportRow::result);
  const auto refused = std::ranges::count(rows, RowResult::refused, &ReportRow::result);
  const std::ptrdiff_t failed = std::ssize(rows) - passed - refused;
  ReportSummary summary{.good = passed > 0 && failed == 0, .text = {}};
  summary.text = core::concat(passed, " passed, ", refused, " refused, ", failed, " failed\n");
  for (const ReportRow& row : rows) {
    if (!taken.insert(feature_of(row)).second) continue;  // taken, or named already
    summary.good = false;
    summary.text += core::concat("every implementation on ", tilewise::to_string(row.device), " refused ", row.feature,
                                 ", ", row.pass, "\n");
  }
  return summary;
}

std::string gpu_line(const core::DeviceDescription& device, const std::string& compiler) {
  return core::concat(device.architecture, ": ", device.multiprocessors, " multiprocessors at ", device.gigahertz,
                      " GHz, ", device.shared_bytes / 1024, " KiB of shared memory a block, ",
                      device.memory_gigabytes_per_second, " GB/s; kernels compiled by ",
                      compiler.empty() ? "nothing that is here" : compiler, "\n");
}

std::string without_home(std::string_view text, std::string_view home) {
  while (home.ends_with('/')) home.remove_suffix(1);
  std::string result;
  while (!text.empty()) {
    const std::size_t at = home.empty() ? text.npos : text.find(home);
    result += text.substr(0, at);
    if (at == text.npos) break;
    result += '~';
    text.remove_prefix(at + home.size());
  }
  return result;
}

}  // namespace tilewise::tools
