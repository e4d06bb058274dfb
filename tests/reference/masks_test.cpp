// Which keys each query sees, drawn: one line per query, one letter per key.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "../support/dense_call.hpp"

namespace tilewise::test {
namespace {

struct MaskCase {
  const char* name;
  Mask mask;
  Alignment alignment;
  std::int64_t left, right;
  std::vector<std::string> picture;  ///< 'x': visible
};

constexpr Alignment kBottomRight = Alignment::bottom_right, kTopLeft = Alignment::top_left;

// clang-format off
const MaskCase kMaskCases[] = {
    {"full", Mask::none, kBottomRight, -1, -1, {"xxxxx", "xxxxx", "xxxxx"}},
    {"causal_more_keys", Mask::causal, kBottomRight, -1, -1, {"xxx..", "xxxx.", "xxxxx"}},
    {"causal_top_left_more_keys", Mask::causal, kTopLeft, -1, -1, {"x....", "xx...", "xxx.."}},
    {"causal_more_queries", Mask::causal, kBottomRight, -1, -1, {"...", "...", "x..", "xx.", "xxx"}},
    {"causal_top_left_more_queries", Mask::causal, kTopLeft, -1, -1, {"x..", "xx.", "xxx", "xxx", "xxx"}},
    {"causal_square", Mask::causal, kBottomRight, -1, -1, {"x..", "xx.", "xxx"}},
    {"causal_one_query", Mask::causal, kBottomRight, -1, -1, {"xxxx"}},
    {"causal_top_left_one_query", Mask::causal, kTopLeft, -1, -1, {"x..."}},
    {"causal_window_one_to_the_left", Mask::causal, kBottomRight, 1, -1, {".xx..", "..xx.", "...xx"}},
    {"causal_window_given_right_zero", Mask::causal, kBottomRight, 1, 0, {".xx..", "..xx.", "...xx"}},
    {"window_both", Mask::none, kBottomRight, 1, 1, {".xxx.", "..xxx", "...xx"}},
    {"window_both_top_left", Mask::none, kTopLeft, 1, 1, {"xx...", "xxx..", ".xxx."}},
    {"window_left_only", Mask::none, kBottomRight, 0, -1, {"..xxx", "...xx", "....x"}},
    {"window_right_only", Mask::none, kTopLeft, -1, 2, {"xxx..", "xxxx.", "xxxxx"}},
    {"window_of_one", Mask::none, kTopLeft, 0, 0, {"x....", ".x...", "..x.."}},
    {"window_more_queries", Mask::none, kBottomRight, 0, 1, {"..", "x.", "xx", ".x"}},
    {"window_beyond_the_sequence", Mask::none, kBottomRight, 100, 100, {"xx", "xx", "xx"}},
    {"window_at_the_limit", Mask::none, kTopLeft, 2147483647, 2147483647, {"xx", "xx", "xx"}},
};
// clang-format on

class Masks : public testing::TestWithParam<MaskCase> {};

TEST_P(Masks, Picture) {
  const MaskCase& c = GetParam();
  const auto rows = static_cast<std::int64_t>(c.picture.size()), keys = static_cast<std::int64_t>(c.picture[0].size());
  // Value j is the unit vector e_j, so out[i, j] > 0 where query i sees key j.
  DenseCall call({.seqlen_q = rows, .seqlen_k = keys, .dim_v = keys});
  call.v.fill_with([](std::span<const std::int64_t> p) { return p[1] == p[3] ? 1.0 : 0.0; });
  call.options.mask = c.mask;
  call.options.alignment = c.alignment;
  call.options.window_left = c.left;
  call.options.window_right = c.right;
  call.forward();
  std::vector<std::string> seen;
  for (std::int64_t i = 0; i < rows; ++i) {
    seen.emplace_back();
    for (std::int64_t j = 0; j < keys; ++j) seen.back() += call.out.get({0, i, 0, j}) > 0 ? 'x' : '.';
  }
  EXPECT_EQ(seen, c.picture);
}

INSTANTIATE_TEST_SUITE_P(Reference, Masks, testing::ValuesIn(kMaskCases),
                         [](const testing::TestParamInfo<MaskCase>& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace tilewise::test
