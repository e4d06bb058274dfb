// Blocks of masks by bounds: against every element of the mask, and that a wrong one would be seen.
#include "operations/attention/score_blocks.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "expression/evaluate.hpp"
#include "expression/parse.hpp"

namespace tilewise::operations::attention {
namespace {

using expression::Evaluator;
using expression::Expression;
using expression::Input;

constexpr std::int64_t kLength = 256, kStep = 32;

struct Mask {
  std::string text;
  int expected_known;  // percent of blocks, at least
};

/// Captured tensors: documents of keys in int64 and int32, a sparse layout of blocks, and numbers.
struct CapturedTensors {
  std::vector<std::int64_t> documents;
  std::vector<std::int32_t> starts;
  std::vector<std::uint8_t> layout;
  std::vector<float> numbers;
  std::vector<TensorView> views;

  CapturedTensors() {
    for (std::int64_t i = 0; i < 2 * kLength; ++i) documents.push_back(i % kLength * (i / kLength + 3) / 200);
    for (std::int64_t i = 0; i < kLength; ++i) starts.push_back(static_cast<std::int32_t>(i / 96 * 96));
    for (std::int64_t i = 0; i < 64; ++i) layout.push_back(static_cast<std::uint8_t>((i * i + i / 8) % 3 == 0));
    for (std::int64_t i = 0; i < kLength; ++i) numbers.push_back(0.01F * static_cast<float>(i));
    views = {TensorView(documents.data(), DType::i64, {2, kLength}), TensorView(starts.data(), DType::i32, {kLength}),
             TensorView(layout.data(), DType::boolean, {8, 8}), TensorView(numbers.data(), DType::f32, {kLength})};
  }
  [[nodiscard]] expression::Signature signature(ScoreFunction function) const {
    std::vector<expression::Table> tables;
    for (const TensorView& view : views) tables.push_back({expression::table_type(view.dtype, "table"), view.rank});
    return signature_of(function, std::move(tables));
  }
};

Expression mask_of(const CapturedTensors& captured, const std::string& text) {
  return expression::parse(text, captured.signature(ScoreFunction::mask_mod), expression::Type::boolean, "mask_mod");
}

/// How often a block is said to be what it is not, and in how many percent anything is said.
struct Checked {
  int faults = 0, known = 0;
};
Checked check(const CapturedTensors& captured, const Expression& mask,
              const std::function<Visibility(const ScoreBlock&)>& visibility) {
  Evaluator<float> evaluate(mask, captured.views);
  Checked checked;
  int blocks = 0;
  for (std::int64_t q = 0; q < kLength; q += kStep) {
    for (std::int64_t k = 0; k < kLength; k += kStep, ++blocks) {
      const ScoreBlock block{1, 0, 2, q, q + kStep, k, k + kStep};
      const Visibility said = visibility(block);
      if (said == Visibility::some) continue;
      ++checked.known;
      bool right = true;
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t i = q; i < q + kStep; ++i) {
          for (std::int64_t j = k; j < k + kStep; ++j) {
            const auto place = [](const std::int64_t& value) { return Input<float>{.integers = &value}; };
            const std::array inputs{place(block.b), place(h), place(i), place(j)};
            std::uint8_t visible = 0;
            evaluate(inputs, 1, &visible);
            right = right && (visible != 0) == (said == Visibility::all);
          }
        }
      }
      checked.faults += right ? 0 : 1;
    }
  }
  checked.known = checked.known * 100 / blocks;
  return checked;
}

const std::vector<Mask>& masks() {
  static const std::vector<Mask> all{{"kv_idx<=q_idx", 87},
                                     {"(q_idx-kv_idx<48)&(kv_idx<=q_idx)", 50},
                                     {"(kv_idx<=q_idx)|(kv_idx<40)", 80},
                                     {"table0[b,q_idx]==table0[b,kv_idx]", 60},
                                     {"(table0[b,q_idx]==table0[b,kv_idx])&(kv_idx<=q_idx)", 70},
                                     {"kv_idx>=table1[q_idx]", 70},
                                     {"table2[q_idx//32,kv_idx//32]", 100},
                                     {"table3[kv_idx]<1.0", 80},
                                     {"(q_idx+kv_idx)%64<70", 100},
                                     {"(q_idx+kv_idx)%7<3", 0},
                                     {"table0[h,300]==0", 100},
                                     {"table0[b+1,q_idx]==1", 100}};
  return all;
}

TEST(ScoreBlocks, SayNothingWrongAndMuchOfWhatIsSo) {
  const CapturedTensors captured;
  for (const Mask& mask : masks()) {
    const Expression expression = mask_of(captured, mask.text);
    const ScoreBlocks blocks(nullptr, &expression, captured.views, 1 << 20);
    const Checked checked = check(captured, expression, [&](const ScoreBlock& block) { return blocks.of(block); });
    EXPECT_EQ(checked.faults, 0) << mask.text;
    EXPECT_GE(checked.known, mask.expected_known) << mask.text;
    // Tables that are too large are not read, and nothing is said wrong by that.
    const ScoreBlocks unread(nullptr, &expression, captured.views, 16);
    EXPECT_EQ(check(captured, expression, [&](const ScoreBlock& block) { return unread.of(block); }).faults, 0);
  }
}

TEST(ScoreBlocks, PlantedFaultsAreSeen) {
  const CapturedTensors captured;
  const Expression causal = mask_of(captured, "kv_idx<=q_idx");
  const ScoreBlocks blocks(nullptr, &causal, captured.views, 1 << 20);
  const auto planted = [&](std::int64_t q, std::int64_t k, Visibility wrong) {
    return check(captured, causal, [&](const ScoreBlock& block) {
      return block.q_begin == q && block.k_begin == k ? wrong : blocks.of(block);
    });
  };
  EXPECT_EQ(planted(64, 64, Visibility::all).faults, 1);    // the diagonal is no full block
  EXPECT_EQ(planted(64, 64, Visibility::none).faults, 1);   // nor is it missing
  EXPECT_EQ(planted(128, 32, Visibility::none).faults, 1);  // a missing block
  EXPECT_EQ(planted(32, 128, Visibility::all).faults, 1);   // a full one that is empty
}

TEST(ScoreBlocks, ScoresOfMinusInfinityHideABlock) {
  const CapturedTensors captured;
  const Expression score =
      expression::parse("select(kv_idx<=q_idx,score*2.0,-inf)", captured.signature(ScoreFunction::score_mod),
                        expression::Type::real, "score_mod");
  const ScoreBlocks blocks(&score, nullptr, captured.views, 1 << 20);
  EXPECT_EQ(blocks.of({0, 0, 1, 0, 32, 32, 64}), Visibility::none);
  EXPECT_EQ(blocks.of({0, 0, 1, 0, 33, 32, 64}), Visibility::all);  // mask_mod hides none
  EXPECT_EQ(blocks.of({0, 0, 1, 64, 96, 32, 64}), Visibility::all);
}

TEST(ScoreBlocks, OfEachAreThoseOfOne) {
  const CapturedTensors captured;
  for (const Mask& mask : masks()) {
    const Expression expression = mask_of(captured, mask.text);
    const ScoreBlocks blocks(nullptr, &expression, captured.views, 1 << 20);
    for (std::int64_t q = 0; q < kLength; q += 64) {
      std::array<Visibility, kLength / kStep> each{};
      const std::int64_t end = kLength - 7;
      blocks.of_each({1, 0, 2, q, q + 64, 0, end}, kStep, each.data());
      for (std::size_t i = 0; i < each.size(); ++i) {
        const auto first = static_cast<std::int64_t>(i) * kStep;
        const Visibility one = blocks.of({1, 0, 2, q, q + 64, first, std::min(end, first + kStep)});
        // What is known of several together may not be known of each, but never the opposite.
        EXPECT_TRUE(each[i] == one || one == Visibility::some) << mask.text << " q " << q << " k " << first;
      }
    }
  }
}

TEST(ScoreBlocks, SeenKeysAreAllThatAreVisible) {
  const CapturedTensors captured;
  for (const Mask& mask : masks()) {
    const Expression expression = mask_of(captured, mask.text);
    const ScoreBlocks blocks(nullptr, &expression, captured.views, 1 << 20);
    Evaluator<float> evaluate(expression, captured.views);
    for (std::int64_t q = 0; q < kLength; q += 16) {
      const std::int64_t k_begin = q / 8, k_end = kLength - 7;
      const VisibleKeys seen = blocks.seen({1, 0, 1, q, q + 16, k_begin, k_end});
      for (std::int64_t i = q; i < q + 16; ++i) {
        for (std::int64_t j = k_begin; j < k_end; ++j) {
          const std::int64_t b = 1, h = 0;
          const auto place = [](const std::int64_t& value) { return Input<float>{.integers = &value}; };
          const std::array inputs{place(b), place(h), place(i), place(j)};
          std::uint8_t visible = 0;
          evaluate(inputs, 1, &visible);
          const auto within = [j](const device::KeyRange& range) { return range.begin <= j && j < range.end; };
          ASSERT_TRUE(visible != 0 ? within(seen.some) : !within(seen.all)) << mask.text << " q " << i << " k " << j;
        }
      }
    }
  }
}

TEST(ScoreBlocks, SeenKeysAreNarrow) {
  const CapturedTensors captured;
  const auto seen = [&](const std::string& text, std::int64_t q) {
    const Expression mask = mask_of(captured, text);
    return ScoreBlocks(nullptr, &mask, captured.views, 1 << 20).seen({0, 0, 2, q, q + 16, 0, kLength});
  };
  const auto is = [](const device::KeyRange& range, std::int64_t begin, std::int64_t end) {
    return range.begin == begin && range.end == end;
  };
  EXPECT_TRUE(is(seen("kv_idx<=q_idx", 64).some, 0, 96));
  EXPECT_TRUE(is(seen("kv_idx<=q_idx", 64).all, 0, 64));
  EXPECT_TRUE(is(seen("(q_idx-kv_idx<96)&(kv_idx<=q_idx)", 160).some, 64, 192));
  EXPECT_TRUE(is(seen("(q_idx-kv_idx<96)&(kv_idx<=q_idx)", 160).all, 96, 160));
  EXPECT_GE(seen("kv_idx>1000", 0).some.begin, seen("kv_idx>1000", 0).some.end);
}

}  // namespace
}  // namespace tilewise::operations::attention
