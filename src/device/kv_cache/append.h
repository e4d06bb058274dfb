// Appends new keys, rotated, and values to a cache, each rounded once.
// A wave takes one row of one head at a time.
#pragma once

#include "device/common/float8.h"
#include "device/kv_cache/config.h"
#include "device/kv_cache/rotation.h"
#include "device/kv_cache/sequence.h"
#include "device/tile/contract.h"

namespace tilewise::device {

template <TileOps Ops, auto C>
class AppendKv {
  using Machine = typename Ops::Machine;
  using Bits = ElementBits<C.type>;
  using CacheBits = ElementBits<C.cache_type>;
  using Elements = RotatedRow<Rotation<Machine, C.type, C.rotary != 0, C.interleaved != 0, C.float_tables != 0>>;
  static constexpr int64_t kNowhere = -1;

 public:
  using Params = AppendKvParams;
  using Shared = NoShared;

  TILEWISE_INLINE static void run(const Params& p, Shared&) {
    let_next_step_begin<Machine>();
    const AttentionShape& s = p.shape;
    if (s.batch_size == 0) return;  // packed rows of no sequence
    const int64_t keys = (p.packed ? p.cache.total_k_new : s.batch_size * p.cache.seqlen_k_new) * s.num_heads_k;
    const int64_t values = p.appends_values ? keys : 0;
    const int64_t unit = static_cast<int64_t>(Machine::block()) * C.waves + Machine::wave();
    if (unit < keys) {
      append(p, Stream{p.k, p.k_cache, p.k_scale, s.head_dim, C.rotary != 0}, unit);
    } else if (unit < keys + values) {
      append(p, Stream{p.v, p.v_cache, p.v_scale, s.head_dim_v, false}, unit - keys);
    }
  }

 private:
  /// Keys or values of a call: where they come from and go.
  struct Stream {
    const Tensor4 &from, &cache;
    const ScaleTensor& scale;
    int64_t dim;
    bool rotated;
  };

  /// A row of new keys in memory, and which of its sequence it is. Packed rows are found by their cu_seqlens; those of
  /// no sequence have a negative `index`.
  struct Row {
    int64_t batch, row, index;
  };
  TILEWISE_INLINE static Row row_at(const Params& p, int64_t number) {
    const int64_t seqlen = p.cache.seqlen_k_new;
    const int32_t* const cu_seqlens = p.cache.cu_seqlens_k_new;
    if (!p.packed) return {number / seqlen, number % seqlen, number % seqlen};
    if (!cu_seqlens) return {0, number, number};
    int64_t low = 0, high = p.shape.batch_size;  // the last entry that is no greater than the row
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (Machine::load_global(cu_seqlens + middle) <= number ? low : high) = middle;
    }
    return {low, number, number - Machine::load_global(cu_seqlens + low)};
  }

  TILEWISE_INLINE static void append(const Params& p, const Stream& stream, int64_t unit) {
    const AttentionShape& s = p.shape;
    const int64_t head = unit % s.num_heads_k;
    const Row row = row_at(p, unit / s.num_heads_k);
    const Place place = place_of(p, row);
    if (place.row == kNowhere) return;
    const auto* from = static_cast<const Bits*>(stream.from.data) +
                       (p.packed ? 0 : row.batch * stream.from.batch_stride) + row.row * stream.from.seq_stride +
                       head * stream.from.head_stride;
    const bool rotated = C.rotary && stream.rotated;
    const int64_t position = rotated ? first_position<Machine>(p.rotary, p.cache, row.batch) + row.index : 0;
    const Elements elements(p.rotary, from, rotated, position);
    auto* to = static_cast<CacheBits*>(stream.cache.data) + place.row * stream.cache.batch_stride +
               place.place * stream.cache.seq_stride + head * stream.cache.head_stride;
    float scale = 1.0f;
    if constexpr (C.scales != kNoScales) scale = scale_at(stream, elements, row.batch, place, head);
    for (int64_t d = Machine::lane(); d < stream.dim; d += Machine::kLanes) {
      if constexpr (C.cache_type == kE4m3) {
        Machine::store_global(to + d, float_to_e4m3(elements.value(d) / scale));
      } else {
        Machine::store_global(to + d, elements.rounded(d));
      }
    }
  }

  /// In the first two dimensions of the cache.
  struct Place {
    int64_t row, place;
  };
  /// Nowhere what is skipped, or would lie outside.
  TILEWISE_INLINE static Place place_of(const Params& p, const Row& row) {
    const CacheShape& c = p.cache;
    const CacheSequence s = cache_sequence_of(p.shape, c, row.batch);
    if (row.index < 0 || row.index >= s.seqlen_new) return {kNowhere, 0};
    if constexpr (C.slot_bytes != 0) {
      const int64_t at = (p.packed ? 0 : row.batch * p.slots_batch_stride) + row.row * p.slots_stride;
      const int64_t slot = C.slot_bytes == 8 ? Machine::load_global(static_cast<const int64_t*>(p.slots) + at)
                                             : Machine::load_global(static_cast<const int32_t*>(p.slots) + at);
      if (slot < 0 || slot >= c.rows * c.places) return {kNowhere, 0};
      return {slot / c.places, slot % c.places};
    } else {
      const int64_t place = s.cached + row.index;
      if (s.absent || s.lost || place >= p.shape.seqlen_k) return {kNowhere, 0};
      if constexpr (C.page_size == 0) {
        return {s.cache_row, place};
      } else {
        const int64_t page =
            Machine::load_global(c.block_table + row.batch * c.block_table_stride + place / C.page_size);
        return {page >= 0 && page < c.rows ? page : kNowhere, place % C.page_size};
      }
    }
  }

  /// The scale of a row; with scales per token it is made here, and written: the row's largest value becomes e4m3's.
  /// A NaN has no say, and a scale that vanishes is 1.
  TILEWISE_INLINE static float scale_at(const Stream& stream, const Elements& elements, int64_t batch,
                                        const Place& place, int64_t head) {
    const ScaleTensor& t = stream.scale;
    if constexpr (C.scales == kBlockScale) {
      return t.data ? Machine::load_global(t.data + batch * t.batch_stride + head * t.head_stride) : t.value;
    }
    float largest = 0.0f;
    for (int64_t d = Machine::lane(); d < stream.dim; d += Machine::kLanes) {
      const float value = elements.value(d), magnitude = value < 0.0f ? -value : value;
      largest = magnitude > largest ? magnitude : largest;
    }
    for (int bit = 1; bit < Machine::kLanes; bit *= 2) {
      largest = maximum(largest, Machine::shuffle_xor(largest, bit));
    }
    const float quotient = largest / kLargestE4m3, scale = quotient > 0.0f ? quotient : 1.0f;
    if (Machine::lane() == 0) {
      Machine::store_global(t.data + place.row * t.row_stride + place.place * t.place_stride + head * t.head_stride,
                            scale);
    }
    return scale;
  }
};

}  // namespace tilewise::device
