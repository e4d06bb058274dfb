// Which known word a mistyped one is taken for, and where none is near enough.
#include "core/spelling.hpp"

#include <gtest/gtest.h>

#include <array>

#include "../support/expect_error.hpp"
#include "operations/attention/foreign_words.hpp"

namespace tilewise::core {
namespace {

constexpr std::array<std::string_view, 12> kWords{"batch_size",  "seqlen_q", "seqlen_k",      "num_heads_q",
                                                  "num_heads_k", "head_dim", "softmax_scale", "softcap",
                                                  "sink",        "mask",     "window-left",   "window-right"};

TEST(Spelling, TakesTheNearestWord) {
  const auto expect = [](std::string_view word, std::string_view meant) {
    EXPECT_EQ(nearest_word(word, kWords), meant) << word;
  };
  expect("seqlen_q", "seqlen_q");
  expect("seqlenk", "seqlen_k");
  expect("SEQLEN-K", "seqlen_k");
  expect("seqlen", "seqlen_q");  // as near to both: the first
  expect("haed_dim", "head_dim");
  expect("headdim", "head_dim");
  expect("soft_cap", "softcap");
  expect("sinks", "sink");
  expect("heads", "num_heads_q");
  expect("scale", "softmax_scale");
  expect("left", "window-left");
  expect("softmax-scale", "softmax_scale");
}

TEST(Spelling, LeavesOtherWordsAlone) {
  for (const char* word : {"", "_", "colour", "x", "ink_blot", "scal", "q_heads"}) {
    EXPECT_EQ(nearest_word(word, kWords), "") << word;
  }
  EXPECT_EQ(nearest_word(std::string(1000000, 'q'), kWords), "");
  EXPECT_EQ(nearest_word("sink", {}), "");
}

TEST(Spelling, SaysWhatAWordWasMeantToBe) {
  constexpr std::array<std::string_view, 4> kNames{"cpu.avx512_bf16", "cpu.avx2", "cpu.avx512", "reference"};
  EXPECT_EQ(did_you_mean("cpu.avx521", kNames), "; did you mean cpu.avx512?");
  EXPECT_EQ(did_you_mean("avx512", kNames), "; did you mean cpu.avx512?");
  EXPECT_EQ(did_you_mean("bf16", kNames), "; did you mean cpu.avx512_bf16?");
  EXPECT_EQ(did_you_mean("cuda", kNames), "");
  EXPECT_EQ(listed(kNames), "cpu.avx512_bf16, cpu.avx2, cpu.avx512, reference");
  const auto expect = [&](const char* word, const char* sentence) {
    test::expect_invalid(sentence, [&] { refuse_word("target", word, kNames); });
  };
  expect("refrence",
         "target: must be one of cpu.avx512_bf16, cpu.avx2, cpu.avx512, reference; did you mean reference? (got "
         "'refrence')");
  expect("colour", "target: must be one of cpu.avx512_bf16, cpu.avx2, cpu.avx512, reference (got 'colour')");
}

TEST(Spelling, KnowsWordsOfOtherLibraries) {
  using operations::attention::Meaning, operations::attention::meaning_of;
  const auto expect = [](std::string_view word, const Meaning& expected) {
    const Meaning meaning = meaning_of(word, kWords);
    EXPECT_EQ(meaning.key, expected.key) << word;
    EXPECT_EQ(meaning.value, expected.value) << word;
    EXPECT_EQ(meaning.other, expected.other) << word;
  };
  expect("is_causal", {"mask", "causal", ""});
  expect("is-causal", {"mask", "causal", ""});
  expect("window_size", {"window-left", "", "window-right"});  // as the known words are spelled
  expect("softkap", {"softcap", "", ""});
  expect("sm_scale", {"softmax_scale", "", ""});
  expect("return_lse", {"", "", ""});  // nothing of what it means is known here
  expect("colour", {"", "", ""});
}

}  // namespace
}  // namespace tilewise::core
