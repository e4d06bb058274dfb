// The closed forms that cost estimates count with, against loops over every query and key.
#include "operations/attention/work.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "operations/attention/rules.hpp"

namespace tilewise::operations::attention {
namespace {

constexpr const char* kBands[] = {"",
                                  "mask=causal",
                                  "mask=causal alignment=top_left",
                                  "window_left=3",
                                  "window_left=0 window_right=0",
                                  "window_left=2 window_right=5 alignment=top_left",
                                  "window_right=4",
                                  "mask=causal window_left=7"};
constexpr std::pair<int, int> kLengths[] = {{12, 12}, {5, 12}, {12, 5}, {1, 9}, {9, 1}};

bool sees(const Problem& p, std::int64_t query, std::int64_t key) {
  const std::int64_t at = query + (p.alignment == Alignment::bottom_right ? p.seqlen_k - p.seqlen_q : 0);
  const std::int64_t right = folded_window_right(p);
  return (p.window_left < 0 || key >= at - p.window_left) && (right < 0 || key <= at + right);
}

TEST(Work, CountsWhatMasksAndWindowsLeave) {
  for (const auto& [seqlen_q, seqlen_k] : kLengths) {
    for (const char* band : kBands) {
      const Problem p = parse_problem("attention_forward head_dim=8 seqlen_q=" + std::to_string(seqlen_q) +
                                      " seqlen_k=" + std::to_string(seqlen_k) + " " + band);
      double pairs = 0.0, most = 0.0;
      for (int i = 0; i < seqlen_q; ++i) {
        double row = 0.0;
        for (int j = 0; j < seqlen_k; ++j) row += sees(p, i, j) ? 1.0 : 0.0;
        pairs += row;
        most = std::max(most, row);
      }
      EXPECT_NEAR(keys_seen(p), pairs / seqlen_q, 1e-9) << to_string(p);
      EXPECT_NEAR(queries_seen(p), pairs / seqlen_k, 1e-9) << to_string(p);
      EXPECT_GE(most_keys_seen(p), most) << to_string(p);
      EXPECT_LE(most_keys_seen(p), seqlen_k) << to_string(p);
    }
  }
}

/// A block of rows visits at least what each of them sees, and never more than there is.
TEST(Work, BlocksVisitWhatTheirRowsSee) {
  for (const char* band : kBands) {
    const Problem p = parse_problem(std::string("attention_forward head_dim=8 seqlen_q=64 seqlen_k=96 ") + band);
    for (const double block : {2.0, 16.0, 64.0, 1000.0}) {
      EXPECT_GE(keys_seen(p, block), keys_seen(p, block / 2.0) - 1e-9) << to_string(p);
      EXPECT_LE(keys_seen(p, block), 96.0) << to_string(p);
      EXPECT_LE(queries_seen(p, block), 64.0) << to_string(p);
    }
  }
  const Problem causal = parse_problem("attention_forward head_dim=8 seqlen_q=1024 mask=causal");
  EXPECT_NEAR(keys_seen(causal, 128.0), 0.5 * (1024 + 128), 8.0);
}

TEST(Work, TellsTheBlockThatSeesMost) {
  const Problem causal = parse_problem("attention_forward head_dim=8 seqlen_q=64 mask=causal");
  EXPECT_EQ(most_keys_seen(causal, 16.0), 64.0);
  EXPECT_EQ(most_queries_seen(causal, 16.0), 64.0);
  const Problem window = parse_problem("attention_forward head_dim=8 seqlen_q=64 mask=causal window_left=7");
  EXPECT_EQ(most_keys_seen(window, 16.0), 8.0 + 15.0);
  const Problem top_left =
      parse_problem("attention_forward head_dim=8 seqlen_q=16 seqlen_k=64 mask=causal alignment=top_left");
  EXPECT_EQ(most_keys_seen(top_left), 16.0);
  EXPECT_EQ(most_queries_seen(top_left), 16.0);
}

TEST(Work, PackedSequencesCountBySumAndLongest) {
  const Extent even = typical_extent(parse_problem(
      "attention_forward layout=thd batch_size=4 max_seqlen_q=100 max_seqlen_k=50 total_q=400 total_k=200 head_dim=8"));
  EXPECT_DOUBLE_EQ(even.seqlen_q, 100.0);
  EXPECT_DOUBLE_EQ(even.seqlen_k, 50.0);
  EXPECT_DOUBLE_EQ(even.total_q, 400.0);
  const Extent uneven =
      typical_extent(parse_problem("attention_forward layout=thd batch_size=4 max_seqlen_q=200 max_seqlen_k=200 "
                                   "total_q=400 total_k=400 head_dim=8"));
  EXPECT_NEAR(uneven.seqlen_q, 2.0 / 3.0 * 200.0, 1e-9);
}

TEST(Work, NothingIsNothing) {
  const Problem none = parse_problem("attention_forward head_dim=8 seqlen_q=0 seqlen_k=0");
  EXPECT_EQ(keys_seen(none), 0.0);
  EXPECT_EQ(queries_seen(none, 16.0), 0.0);
}

}  // namespace
}  // namespace tilewise::operations::attention
