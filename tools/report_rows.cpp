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

}  // namespace tilewise::tools
