// Rows of a table of pointers that kernels over a cache have in common.
#pragma once

#include <cstdint>
#include <string_view>

#include "backends/portable/attention/pointer_table.hpp"
#include "device/kv_cache/params.h"

namespace tilewise::backends::portable {

using device::CacheShape, device::ScaleTensor;

/// Rows of attention's table, and those of a cache.
template <typename Params>
class CacheTable : public PointerTable<Params> {
 public:
  CacheTable(const Params& params, const RegionVisitor& visit) : PointerTable<Params>(params, visit), p_(params) {}

  /// Where sequences are in the cache.
  void cache_lengths() const {
    const CacheShape& c = p_.cache;
    this->add_lengths(c.cu_seqlens_k_new, "cu_seqlens_k_new", p_.shape.batch_size + 1);
    this->add_lengths(c.cache_seqlens, "cache_seqlens", p_.shape.batch_size);
    this->add_lengths(c.cache_batch_idx, "cache_batch_idx", p_.shape.batch_size);
    this->add_lengths(c.cache_leftpad, "cache_leftpad", p_.shape.batch_size);
    this->add(c.block_table, {.name = "block_table",
                              .element_bytes = sizeof(std::int32_t),
                              .outer = {{{p_.shape.batch_size, c.block_table_stride}}},
                              .rank = 1,
                              .row = c.max_pages_per_seq});
  }

  /// Two sequences may be appended to one place, which is the caller's fault and no kernel's.
  void cache(const Tensor4& t, std::string_view name, Access access, std::int64_t cols) const {
    const CacheShape& c = p_.cache;
    this->add(t.data,
              {.name = name,
               .access = access,
               .element_bytes = static_cast<std::size_t>(c.element_bytes),
               .outer = {{{c.rows, t.batch_stride}, {c.places, t.seq_stride}, {p_.shape.num_heads_k, t.head_stride}}},
               .rank = 3,
               .row = cols,
               .one_writer = false});
  }

  /// What parts of the keys leave in the workspace: as many as all sequences have together, or `splits` of each.
  void parts_of_keys(std::int64_t splits, Access access) const {
    const device::KeySchedule& key_schedule = p_.key_schedule;
    const std::int64_t entries = key_schedule.places > 0 ? key_schedule.places : splits * p_.shape.batch_size;
    const std::int64_t rows = entries * p_.shape.num_heads_q * p_.shape.seqlen_q;
    this->workspace(p_.out_accum, "out_accum", access, rows * p_.shape.head_dim_v);
    this->workspace(p_.lse_accum, "lse_accum", access, device::kLseNumbers * rows);
    this->add(key_schedule.parts, {.name = "scheduled_parts",
                                   .workspace = true,
                                   .access = access,
                                   .element_bytes = sizeof(std::int64_t),
                                   .row = key_schedule.leaves_parts(p_.shape.batch_size) ? p_.shape.batch_size : 0});
  }

  /// Of a block that has them.
  void new_keys() const {
    const device::AttentionShape& s = p_.shape;
    const Rows rows = rows_of_new_keys();
    this->tensor(p_.new_keys.k, "k", Access::read, rows, s.head_dim);
    this->tensor(p_.new_keys.v, "v", Access::read, rows, s.head_dim_v);
  }
  [[nodiscard]] Rows rows_of_new_keys() const {
    const device::AttentionShape& s = p_.shape;
    return p_.new_keys.packed != 0 ? Rows{1, p_.cache.total_k_new, s.num_heads_k, true}
                                   : Rows{s.batch_size, p_.cache.seqlen_k_new, s.num_heads_k, false};
  }

  void scale(const ScaleTensor& t, std::string_view name, Access access) const {
    const CacheShape& c = p_.cache;
    this->add(t.data, {.name = name,
                       .access = access,
                       .element_bytes = sizeof(float),
                       .outer = {{{p_.shape.batch_size, t.batch_stride},
                                  {c.rows, t.row_stride},
                                  {c.places, t.place_stride},
                                  {p_.shape.num_heads_k, t.head_stride}}},
                       .rank = 4,
                       .one_writer = false});
  }

  void rotary(const device::RotaryTables& r) const {
    const auto table = [&](const void* const& member, std::string_view name, std::int64_t stride) {
      this->add(member, {.name = name,
                         .element_bytes = static_cast<std::size_t>(r.element_bytes),
                         .outer = {{{r.rows, stride}}},
                         .rank = 1,
                         .row = r.dim / 2});
    };
    table(r.cos, "rotary_cos", r.cos_stride);
    table(r.sin, "rotary_sin", r.sin_stride);
    this->add_lengths(r.seqlens, "rotary_seqlens", p_.shape.batch_size);
  }

 private:
  const Params& p_;
};

}  // namespace tilewise::backends::portable
