// The problems whose options come in pairs: every pair is there, and each problem has kernels on AMD.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "lowerings.hpp"
#include "register_problems.hpp"

namespace tilewise::backends::portable {
namespace {

void expect_all_pairs(const std::vector<Levels>& factors) {
  const std::vector<std::vector<std::size_t>> rows = CoveringRows(factors, kPairSeed).draw();
  const auto stand_together = [&](std::size_t a, std::size_t level_a, std::size_t b, std::size_t level_b) {
    return std::ranges::any_of(rows, [&](const auto& row) { return row[a] == level_a && row[b] == level_b; });
  };
  for (std::size_t a = 0; a < factors.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      for (std::size_t i = 0; i < factors[a].size(); ++i) {
        for (std::size_t j = 0; j < factors[b].size(); ++j) {
          EXPECT_TRUE(stand_together(a, i, b, j)) << factors[a][i] << " and " << factors[b][j];
        }
      }
    }
  }
}

TEST(OptionPairs, AnyTwoStandTogether) {
  expect_all_pairs(forward_factors());
  expect_all_pairs(backward_factors());
  expect_all_pairs(kv_cache_factors());
}

TEST(OptionPairs, SparseLevelsStandBesideEveryOption) {
  std::vector<Levels> factors = forward_factors();
  const std::size_t options = factors.size();
  factors.push_back(sparse_levels());
  const std::vector<std::vector<std::size_t>> rows = CoveringRows(factors, kPairSeed, options).draw();
  for (std::size_t sparse = 0; sparse < factors.back().size(); ++sparse) {
    for (std::size_t option = 0; option < options; ++option) {
      for (std::size_t level = 0; level < factors[option].size(); ++level) {
        EXPECT_TRUE(
            std::ranges::any_of(rows, [&](const auto& row) { return row[option] == level && row.back() == sparse; }))
            << factors[option][level] << " and " << factors.back()[sparse];
      }
    }
  }
  EXPECT_LT(rows.size(), CoveringRows(factors, kPairSeed).draw().size());  // other pairs are not drawn again
}

TEST(OptionPairs, OtherSeedsDrawOtherRows) {
  EXPECT_EQ(CoveringRows(kv_cache_factors(), 1).draw(), CoveringRows(kv_cache_factors(), 1).draw());
  EXPECT_NE(CoveringRows(kv_cache_factors(), 1).draw(), CoveringRows(kv_cache_factors(), 2).draw());
}

TEST(OptionPairs, HaveKernelsOnAmd) {
  for (const std::string_view architecture : kSweptArchitectures) {
    if (!has_pairs(architecture)) {
      EXPECT_TRUE(sampled_pairs(architecture).empty()) << architecture;
      continue;
    }
    EXPECT_GE(sampled_pairs(architecture).size(), 4U) << architecture;
    for (const auto& problems : {paired_forward(), paired_backward(), paired_kv_cache(), sparse_forward(),
                                 sparse_backward(), sparse_kv_cache()}) {
      for (const std::string& problem : problems) EXPECT_FALSE(lowerings_of(architecture, problem).empty()) << problem;
    }
  }
}

}  // namespace
}  // namespace tilewise::backends::portable
