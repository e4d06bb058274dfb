// Philox4x32-10 and Tilewise's dropout map: the draw of (seed, offset, batch, head, query,
// key) is the same on every backend. Source: Salmon et al., SC 2011, and docs/semantics.md.
#pragma once

#include <stdint.h>

namespace tilewise::device {

struct PhiloxWords {
  uint32_t word[4];
};

/// A product's two words. NVIDIA's compilers make one instruction of this, and of the plain product two additions of
/// zero more: a fifth of what a step of Hopper's forward with dropout took.
struct WordPair {
  uint32_t low, high;
};
constexpr WordPair multiply_wide(uint32_t a, uint32_t b) {
#if defined(__CUDA_ARCH__)
  if (!__builtin_is_constant_evaluated()) {
    WordPair words;
    asm("{ .reg .b64 wide; mul.wide.u32 wide, %2, %3; mov.b64 {%0, %1}, wide; }"
        : "=r"(words.low), "=r"(words.high)
        : "r"(a), "r"(b));
    return words;
  }
#endif
  const uint64_t product = uint64_t{a} * b;
  return {static_cast<uint32_t>(product), static_cast<uint32_t>(product >> 32)};
}

struct PhiloxKey {
  uint32_t word[2];
};
inline constexpr int kPhiloxRounds = 10;

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53u, kPhiloxMultiplier1 = 0xCD9E8D57u;

constexpr PhiloxWords philox_round(PhiloxWords counter, PhiloxKey key) {
  const WordPair product0 = multiply_wide(kPhiloxMultiplier0, counter.word[0]);
  const WordPair product1 = multiply_wide(kPhiloxMultiplier1, counter.word[2]);
  return {{product1.high ^ counter.word[1] ^ key.word[0], product1.low, product0.high ^ counter.word[3] ^ key.word[1],
           product0.low}};
}
constexpr PhiloxKey next_round_key(PhiloxKey key) { return {{key.word[0] + 0x9E3779B9u, key.word[1] + 0xBB67AE85u}}; }

constexpr PhiloxWords philox4x32_10(PhiloxWords counter, PhiloxKey key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    counter = philox_round(counter, key);
    key = next_round_key(key);
  }
  return counter;
}

constexpr PhiloxKey dropout_key(uint64_t seed, uint64_t offset) {
  return {{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32)}};
}
constexpr PhiloxWords dropout_counter(uint64_t offset, uint32_t batch_head, uint32_t query, uint32_t key_group,
                                      uint32_t pair) {
  return {{4 * key_group + pair, query, batch_head, static_cast<uint32_t>(offset)}};
}

/// What calls that differ in the query alone have in common: three rounds of theirs take two products then, not six.
struct alignas(16) DropoutColumn {
  uint32_t second, mixed[2], last;
};
/// And all calls of a head.
struct DropoutCalls {
  static constexpr int kRounds = 3;
  uint32_t first;
  PhiloxKey key;  // of the round behind those

  /// The product of a query.
  constexpr WordPair of_query(uint32_t query) const { return multiply_wide(kPhiloxMultiplier0, query ^ first); }
  /// A call's words after kRounds rounds.
  static constexpr PhiloxWords begin(WordPair of_query, const DropoutColumn& column) {
    const WordPair product = multiply_wide(kPhiloxMultiplier1, of_query.high ^ column.second);
    return {{product.high ^ column.mixed[0], product.low, of_query.low ^ column.mixed[1], column.last}};
  }
};
constexpr DropoutCalls dropout_calls(uint64_t seed, uint64_t offset, uint32_t batch_head) {
  const PhiloxKey key = dropout_key(seed, offset);
  // Of query 0 the words that no query changes are everybody's.
  const PhiloxWords one = philox_round(dropout_counter(offset, batch_head, 0, 0, 0), key);
  return {one.word[0], next_round_key(next_round_key(next_round_key(key)))};
}
constexpr DropoutColumn dropout_column(uint64_t seed, uint64_t offset, uint32_t batch_head, uint32_t key_group,
                                       uint32_t pair) {
  const PhiloxKey key0 = dropout_key(seed, offset), key1 = next_round_key(key0), key2 = next_round_key(key1);
  const PhiloxWords one = philox_round(dropout_counter(offset, batch_head, 0, key_group, pair), key0);
  const PhiloxWords two = philox_round(one, key1);
  const WordPair product = multiply_wide(kPhiloxMultiplier0, two.word[0]);
  return {one.word[3] ^ key1.word[1], {two.word[1] ^ key2.word[0], product.high ^ key2.word[1]}, product.low};
}

/// The four words that decide keys 8g + 2t and 8g + 2t + 1 (g = 0..3, t = pair) of the
/// 32-key group `key_group` for one query. Word g, low half first.
constexpr PhiloxWords dropout_words(uint64_t seed, uint64_t offset, uint32_t batch_head, uint32_t query,
                                    uint32_t key_group, uint32_t pair) {
  return philox4x32_10(dropout_counter(offset, batch_head, query, key_group, pair), dropout_key(seed, offset));
}

/// The 16-bit draw of one position; it is dropped when the draw is below 65536 * dropout_p.
constexpr uint32_t dropout_draw(uint64_t seed, uint64_t offset, uint32_t batch_head, uint32_t query, uint32_t key) {
  const PhiloxWords words = dropout_words(seed, offset, batch_head, query, key / 32, (key % 8) / 2);
  return (words.word[(key % 32) / 8] >> (16 * (key % 2))) & 0xFFFFu;
}

}  // namespace tilewise::device
