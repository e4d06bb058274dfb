// Rows of a table of pointers that attention's kernels have in common: what each points to, by name, access and extent.
#pragma once

#include <algorithm>

#include "backends/portable/attention/parameters.hpp"
#include "operations/elements.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::backends::portable {

using device::AttentionShape, device::BiasTensor, device::LseTensor, device::ScoreParams, device::SinkTensor,
    device::Tensor4, device::TileGrid;
using gpu::Access, gpu::Dimension, gpu::Region;

inline constexpr std::size_t kHalf = 2;  // bytes of an element of q, k, v, out and their gradients

/// A packed tensor counts its rows over all sequences, and is one batch entry.
struct Rows {
  std::int64_t batch, rows, heads;
  bool packed;
};

inline Rows query_rows(const AttentionShape& s) {
  if (s.cu_seqlens_q != nullptr) return {1, s.total_q, s.num_heads_q, true};
  return {s.batch_size, s.seqlen_q, s.num_heads_q, s.cu_seqlens_k != nullptr};
}
inline Rows key_rows(const AttentionShape& s) {
  if (s.cu_seqlens_k != nullptr) return {1, s.total_k, s.num_heads_k, true};
  return {s.batch_size, s.seqlen_k, s.num_heads_k, s.cu_seqlens_q != nullptr};
}

/// Visits the pointers of one block.
template <typename Params>
class PointerTable {
 public:
  PointerTable(const Params& params, const RegionVisitor& visit) : p_(params), visit_(visit) {}

  template <typename Pointer>
  void add(Pointer* const& member, const Region& region) const {
    gpu::visit_pointer(p_, member, region, visit_);
  }

  void add_lengths(const std::int32_t* const& member, std::string_view name, std::int64_t count) const {
    add(member, {.name = name, .element_bytes = sizeof(std::int32_t), .row = count});
  }

  void lengths() const {
    const AttentionShape& s = p_.shape;
    add_lengths(s.cu_seqlens_q, "cu_seqlens_q", s.batch_size + 1);
    add_lengths(s.cu_seqlens_k, "cu_seqlens_k", s.batch_size + 1);
    add_lengths(s.seqused_q, "seqused_q", s.batch_size);
    add_lengths(s.seqused_k, "seqused_k", s.batch_size);
    add_lengths(s.leftpad_k, "leftpad_k", s.batch_size);
  }

  void score() const {
    const AttentionShape& s = p_.shape;
    const ScoreParams& score = p_.score;
    bias(score.bias, "bias", Access::read, score.bias_type, {s.batch_size, s.num_heads_q, s.seqlen_q, s.seqlen_k});
    add(score.alibi_slopes,
        {.name = "alibi_slopes",
         .element_bytes = sizeof(float),
         .outer = {{{s.batch_size, score.alibi_batch_stride}, {s.num_heads_q, score.alibi_head_stride}}},
         .rank = 2});
    add(score.seed_and_offset, {.name = "seed_and_offset",
                                .element_bytes = sizeof(std::int64_t),
                                .outer = {{{2, score.seed_and_offset_stride}}},
                                .rank = 1});
  }

  void bias(const BiasTensor& t, std::string_view name, Access access, std::int32_t type,
            const std::array<std::int64_t, 4>& shape) const {
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = std::max<std::size_t>(size_of(operations::dtype_of(type)), 1),
                 .outer = {{{shape[0], t.batch_stride},
                            {shape[1], t.head_stride},
                            {shape[2], t.query_stride},
                            {shape[3], t.key_stride}}},
                 .rank = 4});
  }

  void sink(const SinkTensor& t, std::string_view name, Access access) const {
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = std::max<std::size_t>(size_of(operations::dtype_of(t.type)), 1),
                 .outer = {{{p_.shape.num_heads_q, t.stride}}},
                 .rank = 1});
  }

  void selected(const device::IndexTensor& t) const {
    const Rows rows = query_rows(p_.shape);
    const std::int64_t heads = t.head_stride == 0 ? 1 : p_.shape.num_heads_k;
    add(t.data, {.name = "key_indices",
                 .element_bytes = sizeof(std::int32_t),
                 .outer = {{{rows.batch, t.batch_stride}, {rows.rows, t.seq_stride}, {heads, t.head_stride}}},
                 .rank = 3,
                 .row = t.count});
  }

  void scales(const device::HeadScales& t, std::string_view name, std::int64_t entries) const {
    add(t.data, {.name = name,
                 .element_bytes = sizeof(float),
                 .outer = {{{p_.shape.batch_size, t.batch_stride}, {entries, t.head_stride}}},
                 .rank = 2});
  }

  void tensor(const Tensor4& t, std::string_view name, Access access, const Rows& rows, std::int64_t cols) const {
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = kHalf,
                 .outer = {{{rows.batch, t.batch_stride}, {rows.rows, t.seq_stride}, {rows.heads, t.head_stride}}},
                 .rank = 3,
                 .row = cols,
                 .one_writer = !rows.packed});
  }
  void queries(const Tensor4& t, std::string_view name, Access access) const {
    tensor(t, name, access, query_rows(p_.shape), p_.shape.head_dim);
  }
  void outs(const Tensor4& t, std::string_view name, Access access) const {
    tensor(t, name, access, query_rows(p_.shape), p_.shape.head_dim_v);
  }
  void keys(const Tensor4& t, std::string_view name, Access access) const {
    tensor(t, name, access, key_rows(p_.shape), p_.shape.head_dim);
  }
  void values(const Tensor4& t, std::string_view name, Access access) const {
    tensor(t, name, access, key_rows(p_.shape), p_.shape.head_dim_v);
  }

  void lse(const LseTensor& t, std::string_view name, Access access) const {
    const Rows rows = query_rows(p_.shape);
    add(t.data, {.name = name,
                 .access = access,
                 .element_bytes = sizeof(float),
                 .outer = {{{rows.batch, t.batch_stride}, {rows.rows, t.seq_stride}, {rows.heads, t.head_stride}}},
                 .rank = 3,
                 .one_writer = !rows.packed});
  }

  template <typename Float>
  void workspace(Float* const& member, std::string_view name, Access access, std::int64_t elements) const {
    Region region = gpu::float_workspace(name, access, elements);
    region.one_writer = !query_rows(p_.shape).packed;
    add(member, region);
  }
  /// fp32 [batch_size, num_heads_q, seqlen_q].
  template <typename Float>
  void delta(Float* const& member, Access access) const {
    workspace(member, "delta", access, statistics());
  }
  /// Rows of all heads.
  [[nodiscard]] std::int64_t statistics() const {
    return p_.shape.batch_size * p_.shape.num_heads_q * p_.shape.seqlen_q;
  }
  [[nodiscard]] std::int64_t heads() const { return p_.shape.batch_size * p_.shape.num_heads_q; }
  [[nodiscard]] std::int64_t key_tiles() const {
    return p_.shape.batch_size * p_.shape.num_heads_k * p_.grid.num_tiles;
  }

 private:
  const Params& p_;
  const RegionVisitor& visit_;
};

}  // namespace tilewise::backends::portable
