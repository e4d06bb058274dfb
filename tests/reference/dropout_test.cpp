// Philox and the dropout map: fixed vectors, the fraction dropped, and that the reference follows them.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "../support/dense_call.hpp"
#include "device/common/philox.h"

namespace tilewise::test {
namespace {

nlohmann::json read_vectors() {
  std::ifstream file(TILEWISE_TEST_DATA "/dropout_vectors.json");
  return nlohmann::json::parse(file);
}

TEST(Philox, FixedVectors) {
  const device::PhiloxWords zero = device::philox4x32_10({{0, 0, 0, 0}}, {{0, 0}});
  EXPECT_EQ(zero.word[0], 0x6627e8d5u);
  EXPECT_EQ(zero.word[1], 0xe169c58du);
  EXPECT_EQ(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQ(zero.word[3], 0x9b00dbd8u);
  const nlohmann::json vectors = read_vectors();
  ASSERT_GE(vectors["philox4x32_10"].size(), 3u);
  for (const nlohmann::json& vector : vectors["philox4x32_10"]) {
    device::PhiloxWords counter{};
    for (std::size_t i = 0; i < 4; ++i) counter.word[i] = vector["counter"][i];
    const device::PhiloxWords words = device::philox4x32_10(counter, {{vector["key"][0], vector["key"][1]}});
    for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], vector["output"][i].get<std::uint32_t>()) << vector;
  }
}

TEST(Dropout, FixedVectorsOfTheMap) {
  const nlohmann::json vectors = read_vectors();
  ASSERT_GE(vectors["dropout_draw"].size(), 40u);
  for (const nlohmann::json& vector : vectors["dropout_draw"]) {
    const std::uint64_t seed = std::stoull(vector["seed"].get<std::string>());
    const std::uint64_t offset = std::stoull(vector["offset"].get<std::string>());
    EXPECT_EQ(device::dropout_draw(seed, offset, vector["batch_head"], vector["query"], vector["key"]),
              vector["draw"].get<std::uint32_t>())
        << vector;
  }
}

TEST(Dropout, TheReferenceDropsWhatTheMapSaysAndScalesTheRest) {
  constexpr std::int64_t kKeys = 70;
  DenseCall call({.batch = 2, .seqlen_q = 3, .seqlen_k = kKeys, .heads_q = 2, .heads_k = 1, .dim_v = kKeys});
  call.q.fill(0.0);
  call.v.fill_with([](std::span<const std::int64_t> p) { return p[1] == p[3] ? 1.0 : 0.0; });
  call.options.dropout_p = 0.25;
  call.options.seed = 0x123456789ABCDEF0u;
  call.options.offset = 0xFEDCBA9876543210u;
  call.forward();
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t i = 0; i < 3; ++i) {
      for (std::int64_t j = 0; j < kKeys; ++j) {
        const bool dropped =
            device::dropout_draw(call.options.seed, call.options.offset, static_cast<std::uint32_t>(2 * b + 1),
                                 static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(j)) < 16384;
        const double kept = 1.0 / kKeys / 0.75;
        EXPECT_NEAR(call.out.get({b, i, 1, j}), dropped ? 0.0 : kept, 1e-8) << b << " " << i << " " << j;
      }
    }
  }
  EXPECT_NEAR(call.lse.get({0, 0, 0}), std::log(kKeys), 1e-6);  // before dropout
}

TEST(Dropout, ASeedTensorMeansTheSameAsIntegers) {
  DenseCall integers({.seqlen_k = 40}), tensor({.seqlen_k = 40});
  integers.options.dropout_p = tensor.options.dropout_p = 0.5;
  integers.options.seed = ~std::uint64_t{0};
  integers.options.offset = 5;
  const std::int64_t values[2] = {-1, 5};
  tensor.options.seed_and_offset = TensorView(const_cast<std::int64_t*>(values), DType::i64, {2});
  integers.forward();
  tensor.forward();
  EXPECT_EQ(integers.out.values(), tensor.out.values());
}

TEST(Dropout, DropsTheFractionItIsAskedFor) {
  for (const std::uint32_t threshold : {6554u, 32768u, 60000u}) {
    std::int64_t dropped = 0;
    constexpr std::int64_t kRows = 200, kKeys = 1000;
    for (std::uint32_t i = 0; i < kRows; ++i)
      for (std::uint32_t j = 0; j < kKeys; ++j) dropped += device::dropout_draw(11, 22, 3, i, j) < threshold;
    const double p = threshold / 65536.0, count = kRows * kKeys;
    EXPECT_NEAR(static_cast<double>(dropped) / count, p, 4.0 * std::sqrt(p * (1.0 - p) / count));
  }
}

TEST(Dropout, ProbabilityIsRoundedToAMultipleOfTwoToTheMinus16) {
  DenseCall coarse({.seqlen_k = 300}), fine({.seqlen_k = 300});
  coarse.options.dropout_p = 6554.0 / 65536.0;
  fine.options.dropout_p = 0.1;
  coarse.forward();
  fine.forward();
  EXPECT_EQ(coarse.out.values(), fine.out.values());
}

/// Calls that share their first rounds are the map's.
TEST(Dropout, CallsThatDifferInTheQueryShareTheirFirstRounds) {
  const std::uint64_t seed = 0x123456789ABCDEFu, offset = 0xFEDCBA9876543210u;
  const device::DropoutCalls calls = device::dropout_calls(seed, offset, 37);
  const device::DropoutColumn column = device::dropout_column(seed, offset, 37, 5, 3);
  for (const std::uint32_t query : {0u, 1u, 77u, 0x80000001u}) {
    device::PhiloxWords words = device::DropoutCalls::begin(calls.of_query(query), column);
    device::PhiloxKey key = calls.key;
    for (int round = device::DropoutCalls::kRounds; round < device::kPhiloxRounds; ++round) {
      words = device::philox_round(words, key);
      key = device::next_round_key(key);
    }
    const device::PhiloxWords expected = device::dropout_words(seed, offset, 37, query, 5, 3);
    for (int i = 0; i < 4; ++i) EXPECT_EQ(words.word[i], expected.word[i]) << query;
  }
}

}  // namespace
}  // namespace tilewise::test
