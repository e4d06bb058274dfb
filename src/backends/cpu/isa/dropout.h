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

  /// Draws of keys [key, key + count) of one row; key is a multiple of 32, and `draws` has room
  /// for count rounded up to kKeys.
  static void draw_row(uint16_t* draws, int64_t key, int64_t count, const RowInfo& row, const ScoreParams& p) {
    for (int64_t done = 0; done < count; done += kKeys) draw_keys(draws + done, key + done, row, p);
  }

 private:
  static void draw_keys(uint16_t* draws, int64_t key, const RowInfo& row, const ScoreParams& p) {
    uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      c0[i] = static_cast<uint32_t>(key / 32) * 4 + static_cast<uint32_t>(i);
      c1[i] = row.query;
      c2[i] = row.batch_head;
      c3[i] = static_cast<uint32_t>(p.offset);
    }
    uint32_t key0 = static_cast<uint32_t>(p.seed);
    uint32_t key1 = static_cast<uint32_t>(p.seed >> 32) ^ static_cast<uint32_t>(p.offset >> 32);
    for (int round = 0; round < 10; ++round, key0 += 0x9E3779B9u, key1 += 0xBB67AE85u) {
      for (int i = 0; i < kLanes; ++i) {
        const uint64_t product0 = uint64_t{0xD2511F53u} * c0[i], product1 = uint64_t{0xCD9E8D57u} * c2[i];
        c0[i] = static_cast<uint32_t>(product1 >> 32) ^ c1[i] ^ key0;
        c2[i] = static_cast<uint32_t>(product0 >> 32) ^ c3[i] ^ key1;
        c1[i] = static_cast<uint32_t>(product1);
        c3[i] = static_cast<uint32_t>(product0);
      }
    }
    // Lane 4 g + t holds pair t of group g; word w covers keys 8 w + 2 t and 8 w + 2 t + 1.
    const uint32_t* words[4] = {c0, c1, c2, c3};
    for (int g = 0; g < 4; ++g)
      for (int w = 0; w < 4; ++w) __builtin_memcpy(draws + 32 * g + 8 * w, words[w] + 4 * g, 16);
  }
};

}  // namespace tilewise::backends::cpu
