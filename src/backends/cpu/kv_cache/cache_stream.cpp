// Streams of keys; see cache_stream.hpp.
#include "backends/cpu/kv_cache/cache_stream.hpp"

#include "backends/cpu/rows.hpp"

namespace tilewise::backends::cpu {

using operations::kv_cache::KvCacheParams, operations::kv_cache::ScaleTensor, operations::kv_cache::Sequence;

bool heads_adjacent(const KvCacheParams& p) {
  const auto adjacent = [&](const device::Tensor4& t, std::int64_t dim) {
    return t.head_stride >= dim && t.head_stride <= 2 * dim && t.head_stride * p.num_heads_k <= t.seq_stride;
  };
  return adjacent(p.k_cache, p.head_dim) && (p.mla || adjacent(p.v_cache, p.head_dim_v));
}

KeyStream cache_stream(const KvCacheParams& p, const Sequence& s, std::int64_t b, const HeadRange& heads,
                       std::int64_t end) {
  const std::int64_t row = p.paged ? 0 : s.cache_row, place = p.paged ? 0 : s.leftpad;
  const auto size = static_cast<std::int64_t>(size_of(p.cache_dtype));
  const auto address = [&](const device::Tensor4& t) {
    return row_address(t, row, place, heads.first, static_cast<std::size_t>(size));
  };
  KeyStream stream{address(p.k_cache),
                   address(p.v_cache),
                   p.k_cache.seq_stride * size,
                   p.v_cache.seq_stride * size,
                   ((heads.count() - 1) * p.k_cache.head_stride + p.head_dim) * size,
                   ((heads.count() - 1) * p.v_cache.head_stride + p.head_dim_v) * size,
                   end};
  if (p.paged)
    stream.table = {p.block_table + b * p.block_table_stride, p.row_places, p.k_cache.batch_stride * size,
                    p.v_cache.batch_stride * size};
  const auto scales = [&](const ScaleTensor& t) {
    return TokenScales{t.at(b, row, place, heads.first), t.place_stride, t.row_stride, t.head_stride};
  };
  if (p.scales == CacheScales::token) {
    stream.k_scales = scales(p.k_scale);
    stream.v_scales = scales(p.v_scale);
  }
  return stream;
}

}  // namespace tilewise::backends::cpu
