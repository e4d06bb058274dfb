// The last step of a layer: a token's parts summed in fp32 in the order of its slots, and rounded once.
#pragma once

#include "device/moe/sm90/pairs.h"
#include "device/tile/element.h"

namespace tilewise::device {

inline constexpr int kPartsAtOnce = 8;

/// The row of a slot's part, which is loaded in any case so that no load waits for another, and whether it counts.
struct PartPlace {
  int32_t row;
  bool is_there;
};

/// Sums 16 bytes of a token's row, from element `col` on. part_of(slot): its part.
template <class Machine, int kElement, class PartOf>
TILEWISE_INLINE Chunk sum_parts(const MoeShape& shape, const RowTensor& parts, int32_t col, const PartOf& part_of) {
  float sum[8] = {};
  for (int32_t slot = 0; slot < shape.top_k; slot += kPartsAtOnce) {
    Chunk part[kPartsAtOnce];
    bool there[kPartsAtOnce];
    TILEWISE_UNROLL
    for (int i = 0; i < kPartsAtOnce; ++i) {
      const PartPlace place = part_of(minimum(slot + i, shape.top_k - 1));
      const auto* const from = static_cast<const uint16_t*>(parts.data) + place.row * parts.row_stride + col;
      part[i] = Machine::load_global(reinterpret_cast<const Chunk*>(from));
      there[i] = place.is_there && slot + i < shape.top_k;
    }
    TILEWISE_UNROLL
    for (int i = 0; i < kPartsAtOnce; ++i) {
      if (!there[i]) continue;
      TILEWISE_UNROLL
      for (int c = 0; c < 8; ++c) {
        const uint16_t bits = part[i].element(c);
        sum[c] += kElement == kBf16 ? bf16_to_float(bits) : Machine::widen_f16(bits);
      }
    }
  }
  Chunk out;
  TILEWISE_UNROLL
  for (int c = 0; c < 4; ++c) out.word[c] = Machine::template pack<kElement>(sum[2 * c], sum[2 * c + 1]);
  return out;
}

/// Where the sorting kernel has put the part of a token's slot: part_of(token, slot).
template <class Machine>
TILEWISE_INLINE auto place_of_slot(const MoeShape& shape, const SortedPairs& sorted) {
  return [&shape, &sorted](int32_t token, int32_t slot) TILEWISE_INLINE_LAMBDA {
    const int32_t row = Machine::load_global(sorted.rows + token * shape.top_k + slot);
    return PartPlace{maximum(row, 0), row != kNobody};
  };
}

/// Does so for all of out: `worker` of `workers` threads. part_of(token, slot).
template <class Machine, int kElement, class PartOf>
TILEWISE_INLINE void combine_parts(const MoeShape& shape, const RowTensor& parts, const RowTensor& out, int32_t worker,
                                   int32_t workers, const PartOf& part_of) {
  const int32_t chunks = shape.hidden / 8;
  const int64_t all = int64_t{shape.tokens} * chunks;
  for (int64_t unit = worker; unit < all; unit += workers) {
    const auto token = static_cast<int32_t>(unit / chunks), col = static_cast<int32_t>(unit % chunks) * 8;
    const Chunk sum = sum_parts<Machine, kElement>(
        shape, parts, col, [&](int32_t slot) TILEWISE_INLINE_LAMBDA { return part_of(token, slot); });
    auto* const to = static_cast<uint16_t*>(out.data) + token * out.row_stride + col;
    Machine::store_global(reinterpret_cast<Chunk*>(to), sum);
  }
}

}  // namespace tilewise::device
