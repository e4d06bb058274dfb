// Fuzzes problem text: whatever parse_problem() accepts must be valid, print, parse back to
// the same value and be explained; everything else must be an Error.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "expect.hpp"
#include "tilewise/attention.hpp"

using namespace tilewise;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::optional<AnyProblem> parsed;
  try {
    parsed = parse_problem(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const Error& error) {
    expect_sentence(error);
    return 0;
  }
  const AnyProblem& problem = *parsed;
  validate(problem);
  const std::string text = to_string(problem);
  const AnyProblem again = parse_problem(text);
  expect(again == problem, "the printed problem parses back to the same value");
  expect(hash_value(again) == hash_value(problem), "equal problems hash equally");
  expect(to_string(again) == text, "printing is stable");

  const Explanation explanation = explain(problem);
  expect(!explanation.rows.empty(), "every implementation has a row");
  for (const ExplainRow& row : explanation.rows) {
    expect(row.accepted || !row.reason.empty(), "a refusal has a reason");
    expect(!row.accepted || (row.estimated_us > 0.0 && std::isfinite(row.estimated_us)), "an estimate is a time");
  }
  expect(!explanation.to_string().empty(), "an explanation prints");
  return 0;
}
