// What lengths, tables and slots may say; see lengths.hpp.
#include "operations/kv_cache/lengths.hpp"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.hpp"
#include "core/message.hpp"
#include "operations/host_copies.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::operations::kv_cache {
namespace {

using core::concat, core::invalid_argument;

void check_cu_seqlens(const std::int32_t* values, std::string_view name, std::int64_t batch_size, std::int64_t total,
                      std::int64_t max_seqlen, std::string_view max_name) {
  if (values == nullptr) return;
  if (values[0] != 0) invalid_argument(name, "[0]: must be 0 (got ", values[0], ")");
  for (std::int64_t b = 0; b < batch_size; ++b) {
    const std::int64_t rows = std::int64_t{values[b + 1]} - values[b];
    if (rows < 0) {
      invalid_argument(name, "[", b + 1, "]: must be >= ", name, "[", b, "] = ", values[b], " (got ", values[b + 1],
                       ")");
    }
    if (rows > max_seqlen) {
      invalid_argument(max_name, ": must be >= every sequence's length (got ", max_seqlen, ", but sequence ", b,
                       " has ", rows, " rows)");
    }
  }
  if (values[batch_size] > total) {
    invalid_argument(name, "[", batch_size, "]: must be <= ", total, ", the rows of its tensor (got ",
                     values[batch_size], ")");
  }
}

/// Each cache at most once among the sequences that append to it.
void check_batch_idx(const KvCacheParams& p) {
  if (p.cache_batch_idx == nullptr) return;
  std::vector<std::int64_t> owner(p.append ? static_cast<std::size_t>(p.cache_rows) : 0, -1);
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const std::int64_t row = p.cache_batch_idx[b];
    if (row < -1 || row >= p.cache_rows) {
      invalid_argument("cache_batch_idx[", b, "]: must be -1 (no cache) or 0 to ", p.cache_rows - 1,
                       ", a sequence of the cache (got ", row, ")");
    }
    if (!p.append || sequence_of(p, b).absent) continue;
    std::int64_t& other = owner[static_cast<std::size_t>(row)];
    if (other >= 0) {
      invalid_argument("cache_batch_idx[", b, "]: must differ from the others' while keys are appended (got ", row,
                       ", as sequence ", other, " has)");
    }
    other = b;
  }
}

void check_length(const KvCacheParams& p, const Sequence& s, std::int64_t b) {
  const std::int64_t capacity = p.paged ? p.max_pages_per_seq * p.row_places : p.row_places;
  const std::string name = p.cache_seqlens != nullptr ? concat("cache_seqlens[", b, "]") : "cache_seqlens";
  const std::string_view holds = p.paged ? ", the places that a row of block_table has" : ", the capacity of the cache";
  if (s.cached > capacity) invalid_argument(name, ": must be <= ", capacity, holds, " (got ", s.cached, ")");
  if (s.cached + s.seqlen_new > capacity) {
    invalid_argument(name, ": cache_seqlens + seqlen_k_new must be <= ", capacity, holds, " (got ", s.cached, " + ",
                     s.seqlen_new, ")");
  }
  if (s.leftpad < 0 || s.seqlen_k() < 0) {
    invalid_argument("cache_leftpad[", b, "]: must be 0 to ", s.cached + s.seqlen_new,
                     ", the sequence's length with its new keys (got ", s.leftpad, ")");
  }
}

void check_pages(const KvCacheParams& p, std::int64_t b, std::int64_t first, std::int64_t last) {
  for (std::int64_t n = first / p.row_places; n * p.row_places < last; ++n) {
    const std::int64_t page = p.block_table[b * p.block_table_stride + n];
    if (page < 0 || page >= p.cache_rows) {
      invalid_argument("block_table[", b, "][", n, "]: must be 0 to ", p.cache_rows - 1, ", a page (got ", page, ")");
    }
  }
}

void check_rotary(const KvCacheParams& p, const Sequence& s, std::int64_t b) {
  if (p.rotary.dim == 0) return;
  const std::int64_t first = rotary_position(p, s, b);
  const std::int64_t queries =
      p.attends ? (queries_advance(p) ? s.seqlen_q : std::min<std::int64_t>(s.seqlen_q, 1)) : 0;
  const std::int64_t rows = std::max(s.seqlen_new, queries);
  if (rows <= 0) return;
  if (first < 0) {
    invalid_argument("rotary_seqlens[", b, "]: must be >= 0 (got ", first, ")");
  }
  if (first + rows > p.rotary.rows) {
    invalid_argument("rotary_cos: must have >= ", first + rows, " rows, one for each position of sequence ", b,
                     " (got ", p.rotary.rows, ")");
  }
}

void check_slots(const KvCacheParams& p, const Sequence& s, std::int64_t b) {
  const std::int64_t slots = p.cache_rows * p.row_places;
  for (std::int64_t t = 0; t < s.seqlen_new; ++t) {
    const std::int64_t slot = slot_of(p, b, s.new_row + t);
    if (slot < -1 || slot >= slots) {
      invalid_argument("slots: must be -1 (skipped) or 0 to ", slots - 1, ", page * page_size + place (got ", slot,
                       " for new key ", t, " of sequence ", b, ")");
    }
  }
}

}  // namespace

void check_values(const KvCacheParams& p) {
  check_cu_seqlens(p.cu_seqlens_q, "cu_seqlens_q", p.batch_size, p.total_q, p.seqlen_q, "max_seqlen_q");
  check_cu_seqlens(p.cu_seqlens_k_new, p.cu_seqlens_k_new == p.cu_seqlens_q ? "cu_seqlens_q" : "cu_seqlens_k_new",
                   p.batch_size, p.total_k_new, p.seqlen_k_new, "max_seqlen_k_new");
  check_batch_idx(p);
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const Sequence s = sequence_of(p, b);
    if (s.absent) continue;
    if (p.slots == nullptr) check_length(p, s, b);  // first: positions beyond the cache may overflow
    check_rotary(p, s, b);
    if (p.slots != nullptr) {
      check_slots(p, s, b);
      continue;
    }
    if (!p.paged) continue;
    const KeyRange keys = needed_keys(p, s);
    if (keys.end > keys.begin) check_pages(p, b, keys.begin, keys.end);
    if (s.seqlen_new > 0) check_pages(p, b, s.cached, s.cached + s.seqlen_new);
  }
}

void check_selected_keys(const KvCacheParams& p) {
  if (p.key_indices.data == nullptr) return;
  const std::int64_t heads = p.key_indices.head_stride == 0 ? 1 : p.num_heads_k;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const Sequence s = sequence_of(p, b);
    if (!s.absent) check_key_indices(p.key_indices, heads, b, s.q_row, s.seqlen_q, s.seqlen_k());
  }
}

void check_device_values(const Call& call, const KvCacheProblem& problem, void* stream) {
  const Device device = call.one("k_cache").device;
  if (!core::device_checks_requested(device, stream)) return;
  KvCacheParams params = make_params(call, problem);
  const KvCacheOptions& o = call.options;
  HostCopies copies(device.type, device.index, stream);
  const bool shared = params.cu_seqlens_k_new == params.cu_seqlens_q;
  copies.fetch(params.cu_seqlens_q, o.cu_seqlens_q);
  if (shared) {
    params.cu_seqlens_k_new = params.cu_seqlens_q;
  } else {
    copies.fetch(params.cu_seqlens_k_new, o.cu_seqlens_k_new);
  }
  copies.fetch(params.cache_seqlens, o.cache_seqlens);
  copies.fetch(params.rotary_seqlens, o.rotary_seqlens);
  copies.fetch(params.cache_batch_idx, o.cache_batch_idx);
  copies.fetch(params.cache_leftpad, o.cache_leftpad);
  copies.fetch(params.block_table, o.block_table);
  copies.fetch(params.slots, o.slots);
  copies.fetch(params.key_indices.data, o.key_indices);
  check_values(params);
  check_selected_keys(params);
  check_device_block_lists(o.block_mask, blocked_scores(problem), stream);
}

}  // namespace tilewise::operations::kv_cache
