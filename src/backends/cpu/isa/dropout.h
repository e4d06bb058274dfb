// Tilewise's dropout map over a run of keys: 16-bit draws written in key order. The map itself
// is device/common/philox.h's; here its 32-key groups run side by side in vector lanes.
#pragma once

#include <stdint.h>

#include "backends/cpu/isa/elements.h"
#include "backends/cpu/kernels.hpp"

namespace tilewise::backends::cpu {

template <class V>
struct Dropout {
  static constexpr int kLanes = 16;  // 4 pairs of each of 4 key groups
  static constexpr int kKeys = 128;  // what they decide

  /// Draws of keys [key, key + count) of one row, or of those at places[key] and on; key is a multiple of 32, and
  /// `draws` has room for count rounded up to kKeys.
  static void draw_row(uint16_t* draws, int64_t key, int64_t count, const RowInfo& row, const ScoreParams& p) {
    if (p.places) return draw_places(draws, p.places + key, count, row, p);
    for (int64_t done = 0; done < count; done += kKeys) draw_keys(draws + done, key + done, row, p);
  }

 private:
  /// What Philox makes of 16 counters side by side.
  struct Words {
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  };

  /// c0 holds the first word of each counter.
  TILEWISE_INLINE static void generate(Words& w, const RowInfo& row, const ScoreParams& p) {
    for (int i = 0; i < kLanes; ++i) {
      w.c1[i] = row.query;
      w.c2[i] = row.batch_head;
      w.c3[i] = static_cast<uint32_t>(p.offset);
    }
    uint32_t key0 = static_cast<uint32_t>(p.seed);
    uint32_t key1 = static_cast<uint32_t>(p.seed >> 32) ^ static_cast<uint32_t>(p.offset >> 32);
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
      for (int i = 0; i < kLanes; ++i) {
        const uint64_t product0 = uint64_t{0xD2511F53u} * w.c0[i], product1 = uint64_t{0xCD9E8D57u} * w.c2[i];
        w.c0[i] = static_cast<uint32_t>(product1 >> 32) ^ w.c1[i] ^ key0;
        w.c2[i] = static_cast<uint32_t>(product0 >> 32) ^ w.c3[i] ^ key1;
        w.c1[i] = static_cast<uint32_t>(product1);
        w.c3[i] = static_cast<uint32_t>(product0);
      }
    }
  }

  static void draw_keys(uint16_t* draws, int64_t key, const RowInfo& row, const ScoreParams& p) {
    Words made;
    for (int i = 0; i < kLanes; ++i) made.c0[i] = static_cast<uint32_t>(key / 32) * 4 + static_cast<uint32_t>(i);
    generate(made, row, p);
    // Lane 4 g + t holds pair t of group g; word w covers keys 8 w + 2 t and 8 w + 2 t + 1.
    const uint32_t* words[4] = {made.c0, made.c1, made.c2, made.c3};
    for (int g = 0; g < 4; ++g)
      for (int w = 0; w < 4; ++w) __builtin_memcpy(draws + 32 * g + 8 * w, words[w] + 4 * g, 16);
  }

  /// The same map, a counter for each key. Places behind the last key are numbers too.
  static void draw_places(uint16_t* draws, const int32_t* places, int64_t count, const RowInfo& row,
                          const ScoreParams& p) {
    for (int64_t j = 0; j < count; j += kLanes) {
      Words made;
      for (int i = 0; i < kLanes; ++i) {
        const auto key = static_cast<uint32_t>(places[j + i]);
        made.c0[i] = key / 32 * 4 + key % 8 / 2;
      }
      generate(made, row, p);
      const uint32_t* words[4] = {made.c0, made.c1, made.c2, made.c3};
      for (int i = 0; i < kLanes; ++i) {
        const auto key = static_cast<uint32_t>(places[j + i]);
        draws[j + i] = static_cast<uint16_t>(words[key % 32 / 8][i] >> 16 * (key % 2));
      }
    }
  }
};

}  // namespace tilewise::backends::cpu
