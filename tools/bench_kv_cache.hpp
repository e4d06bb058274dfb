// What `tilewise bench` measures of the KV cache step: caches that are full but for the new keys, which each call
// appends at the same places; sequences of equal length, each in pages of its own as far as there are enough.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "bench_schema.hpp"
#include "core/message.hpp"
#include "listed_blocks.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "operations/kv_cache/sequence.hpp"
#include "operations/matrices.hpp"

namespace tilewise::tools {

/// What lengths, tables and slots hold, and the number that stands for lengths.
struct CacheLengths {
  /// Rows of a sequence where the packed ones are dealt evenly.
  [[nodiscard]] static std::int64_t share(const KvCacheProblem& p, std::int64_t total, std::int64_t longest) {
    return std::min(longest, total / std::max<std::int64_t>(p.batch_size, 1));
  }
  [[nodiscard]] static std::int64_t new_rows(const KvCacheProblem& p) {
    if (!p.append) return 0;
    return operations::kv_cache::is_packed(p) ? share(p, p.total_k_new, p.seqlen_k_new) : p.seqlen_k_new;
  }
  /// Places in use before the new keys.
  [[nodiscard]] static std::int64_t cached(const KvCacheProblem& p) {
    return std::max<std::int64_t>(operations::kv_cache::capacity_of(p) - new_rows(p), 0);
  }

  /// Writes an integer tensor of `call`; `at(i)` is its element i.
  template <typename Call, typename At>
  static void fill(const Call& call, operations::schema::Role<operations::kv_cache::kSchema> role, const At& at) {
    const TensorView view = call.one(role);
    for (std::int64_t i = 0; view.defined() && i < view.numel(); ++i)
      operations::store_integer(view.dtype, view.data, i, at(i));
  }

  template <typename Call>
  static void prepare(const Call& call, const KvCacheProblem& p) {
    fill(call, "cu_seqlens_q", [&](std::int64_t b) { return b * share(p, p.total_q, p.seqlen_q); });
    fill(call, "cu_seqlens_k_new", [&](std::int64_t b) { return b * new_rows(p); });
    fill(call, "cache_seqlens", [&](std::int64_t) { return cached(p); });
    fill(call, "cache_leftpad", [](std::int64_t) { return std::int64_t{0}; });
    fill(call, "rotary_seqlens", [](std::int64_t) { return std::int64_t{0}; });
    const std::int64_t sequences = std::max<std::int64_t>(p.batch_size_cache, 1);
    fill(call, "cache_batch_idx", [&](std::int64_t b) { return b < sequences ? b : std::int64_t{-1}; });
    const std::int64_t pages = std::max<std::int64_t>(p.num_pages, 1), slots = pages * p.page_size;
    fill(call, "block_table", [&](std::int64_t i) { return i % pages; });
    const std::int64_t keys = std::max<std::int64_t>(cached(p), 1), count = std::max<std::int64_t>(p.top_k, 1);
    fill(call, "key_indices", [&](std::int64_t i) {  // spread over the keys, each query's starting elsewhere
      return (i % count * std::max<std::int64_t>(keys / count, 1) + i / count) % keys;
    });
    fill(call, "slots", [&](std::int64_t i) { return i < slots ? i : std::int64_t{-1}; });
    list_every_block(call["block_mask"]);
    for (const TensorView& scale : {call.one("k_scale"), call.one("v_scale")})
      if (scale.defined()) std::fill_n(static_cast<float*>(scale.data), scale.numel(), 1.0f);
  }
  template <typename Arguments>
  static void complete(Arguments& arguments, const KvCacheProblem& p) {
    if (!p.cache_seqlens && p.slots == SlotKind::none) arguments.options.cache_seqlen = cached(p);
    if (operations::has_block_mask(p))
      arguments.options.block_rows = p.block_mask.rows, arguments.options.block_keys = p.block_mask.keys;
  }
};

class KvCacheBench final : public SchemaBench<operations::KvCache, CacheLengths> {
 public:
  explicit KvCacheBench(const KvCacheProblem& problem) : SchemaBench(problem) {
    const auto params = params_of_call();
    const auto f = [](std::int64_t n) { return static_cast<double>(n); };
    double pairs = 0.0, keys = 0.0;
    for (std::int64_t b = 0; b < params.batch_size; ++b) {
      const operations::kv_cache::Sequence sequence = operations::kv_cache::sequence_of(params, b);
      if (sequence.absent) continue;
      for (std::int64_t i = 0; params.attends && i < sequence.seqlen_q; ++i) {
        const operations::kv_cache::KeyRange seen = operations::kv_cache::visible_keys(params, sequence, i);
        pairs += f(seen.end - seen.begin);
      }
      const operations::kv_cache::KeyRange needed = operations::kv_cache::needed_keys(params, sequence);
      keys += f(needed.end - needed.begin + sequence.seqlen_new);
    }
    const std::int64_t dims = problem.head_dim + problem.head_dim_v;
    flops_ = 2.0 * pairs * f(problem.num_heads_q * dims);
    const std::int64_t kept = problem.mla ? problem.head_dim : dims;
    cache_bytes_ = keys * f(problem.num_heads_k * kept) * f(static_cast<std::int64_t>(size_of(problem.cache_dtype)));
  }
  [[nodiscard]] double flops() const override { return flops_; }
  /// Of caches the keys that queries see, and the new ones as they are stored.
  [[nodiscard]] double bytes() const override {
    double bytes = SchemaBench::bytes() + cache_bytes_;
    for (const TensorView& cache : {one("k_cache"), one("v_cache")})
      if (cache.defined()) bytes -= static_cast<double>(cache.numel()) * static_cast<double>(size_of(cache.dtype));
    return bytes;
  }

 private:
  double flops_ = 0.0, cache_bytes_ = 0.0;
};

}  // namespace tilewise::tools
