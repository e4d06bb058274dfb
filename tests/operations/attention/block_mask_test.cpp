// Block masks as values: made of a mask_mod against each of its scores, faults in them, what they list, their word.
#include "operations/attention/block_mask.hpp"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "../../support/expect_error.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/block_mask.hpp"

namespace tilewise::operations::attention {
namespace {

using test::expect_invalid;

/// Documents of uneven lengths, and numbers that no bound decides.
struct Captured {
  std::vector<std::int32_t> documents, colours;
  Captured() {
    for (int i = 0; i < 300; ++i) documents.push_back(i / 70), colours.push_back(i * i % 7);
  }
  BlockMaskArguments arguments(std::string mask_mod) {
    BlockMaskArguments a;
    a.mask_mod = std::move(mask_mod);
    a.tables = {TensorView(documents.data(), DType::i32, {300}), TensorView(colours.data(), DType::i32, {300})};
    a.seqlen_q = 200;
    a.seqlen_k = 300;
    a.block_rows = 16;
    a.block_keys = 48;
    return a;
  }
};

std::int32_t* data_of(const TensorView& view) { return static_cast<std::int32_t*>(view.data); }

TEST(BlockMasks, SayWhatTheirMaskModSays) {
  Captured captured;
  for (const char* text : {"kv_idx <= q_idx", "table0[q_idx] == table0[kv_idx]", "table1[q_idx] < table1[kv_idx]",
                           "(q_idx // 32 + kv_idx // 48) % 3 == 0", "q_idx < 0"}) {
    const BlockMaskArguments arguments = captured.arguments(text);
    const BlockMask mask(arguments);
    EXPECT_NO_THROW(BlockMask::check(arguments, mask.tensors())) << text;
  }
}

TEST(BlockMasks, TellFullBlocksFromPartialOnes) {
  Captured captured;
  const BlockMask mask(captured.arguments("kv_idx <= q_idx"));
  const std::vector<TensorView> lists = mask.tensors();
  // Queries 96 to 111 see keys 0 to 95 whole, and some of 96 to 143.
  EXPECT_EQ(data_of(lists[kFullBlockCounts])[6], 2);
  EXPECT_EQ(data_of(lists[kBlockCounts])[6], 1);
  EXPECT_EQ(data_of(lists[kBlockIndices])[6 * 7], 2);
}

TEST(BlockMasks, DifferBetweenSequencesAndHeads) {
  Captured captured;
  BlockMaskArguments arguments = captured.arguments("kv_idx <= q_idx + 50 * h + 100 * b");
  expect_invalid("batch_size: must be given where mask_mod speaks of b (got 0)", [&] { (void)BlockMask(arguments); });
  arguments.batch_size = 2;
  expect_invalid("num_heads: must be given where mask_mod speaks of h (got 0)", [&] { (void)BlockMask(arguments); });
  arguments.num_heads = 2;
  const BlockMask mask(arguments);
  EXPECT_EQ(mask.tensors()[kBlockIndices].shape[1], 2);
  EXPECT_NO_THROW(BlockMask::check(arguments, mask.tensors()));
}

TEST(BlockMasks, AFullBlockThatIsNotIsFound) {
  Captured captured;
  const BlockMaskArguments arguments = captured.arguments("table0[q_idx] == table0[kv_idx]");
  const BlockMask mask(arguments);
  const std::vector<TensorView> lists = mask.tensors();
  const std::int32_t row = 5;  // queries 80 to 95, of document 1, whose keys are 70 to 139
  std::int32_t& count = data_of(lists[kFullBlockCounts])[row];
  data_of(lists[kFullBlockIndices])[row * 7 + count++] = 1;
  expect_invalid(
      "full_block_indices: block [5, 1] of sequence 0 and head 0 must not be full, mask_mod hides some of it",
      [&] { (void)BlockMask::check(arguments, lists); });
}

TEST(BlockMasks, AMissingBlockIsFound) {
  Captured captured;
  const BlockMaskArguments arguments = captured.arguments("table0[q_idx] == table0[kv_idx]");
  const BlockMask mask(arguments);
  const std::vector<TensorView> lists = mask.tensors();
  data_of(lists[kBlockCounts])[5] -= 1;
  expect_invalid("block_indices: block [5, 2] of sequence 0 and head 0 must be listed, mask_mod shows some of it",
                 [&] { (void)BlockMask::check(arguments, lists); });
}

AttentionProblem problem_of(const std::string& words) {
  return parse_problem("attention_forward seqlen_q=200 seqlen_k=300 head_dim=32 " + words);
}

TEST(BlockMasks, StatesSkipWhatIsOutOfRange) {
  const AttentionProblem problem = problem_of("block_mask=128x128[1,1]+full");
  std::vector<std::int32_t> counts{5, -1}, indices{2, -1, 7, 0, 0, 0}, full_counts{1, 1}, full{2, 0, 0, 1, 0, 0};
  const std::vector<TensorView> lists{
      TensorView(counts.data(), DType::i32, {1, 1, 2}), TensorView(indices.data(), DType::i32, {1, 1, 2, 3}),
      TensorView(full_counts.data(), DType::i32, {1, 1, 2}), TensorView(full.data(), DType::i32, {1, 1, 2, 3})};
  std::vector<std::uint8_t> states(6, 99);
  write_block_states(lists.data(), blocked_scores(problem), states.data());
  EXPECT_EQ(states, (std::vector<std::uint8_t>{0, 0, kBlockFull, 0, kBlockFull, 0}));
  expect_invalid("block_counts[0, 0, 0]: must be 0 to 3, the columns of blocks (got 5)",
                 [&] { (void)check_block_lists(lists.data(), blocked_scores(problem)); });
  counts = {3, 0};
  expect_invalid("block_indices[0, 0, 0, 1]: must be 0 to 2, a column of blocks (got -1)",
                 [&] { (void)check_block_lists(lists.data(), blocked_scores(problem)); });
}

TEST(BlockMasks, AreAWordOfProblems) {
  for (const char* word : {"block_mask=128x64[b,h]+full", "block_mask=16x16[1,h]", "block_mask=48x256[b,1]"}) {
    const AttentionProblem problem = problem_of(std::string("batch_size=2 num_heads_q=2 ") + word);
    EXPECT_NE(to_string(problem).find(word), std::string::npos) << to_string(problem);
    EXPECT_EQ(parse_problem(to_string(problem)), AnyProblem(problem));
  }
  expect_invalid(
      "block_mask: must be none or ROWSxKEYS[b,h], with 1 for what all sequences or heads share, and +full "
      "where full blocks are told apart, such as 128x128[b,1]+full (got '128')",
      [&] { (void)problem_of("block_mask=128"); });
  expect_invalid("block_keys: must be a multiple of 16 from 16 to 2^30 (got 24)",
                 [&] { (void)problem_of("block_mask=16x24[1,1]"); });
  expect_invalid("tables: must be <= 7 beside block_mask (got 8)", [&] {
    (void)problem_of(
        "block_mask=16x16[1,1] score_mod=score+table0[h] tables=f32[1],f32[1],f32[1],f32[1],f32[1],"
        "f32[1],f32[1],f32[1]");
  });
}

}  // namespace
}  // namespace tilewise::operations::attention
