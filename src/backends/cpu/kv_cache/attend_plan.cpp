// Which tasks a call of attention over a cache is cut into; see attend.hpp.
#include <algorithm>

#include "backends/cpu/kv_cache/attend.hpp"
#include "backends/cpu/kv_cache/cache_stream.hpp"
#include "backends/cpu/rows.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "core/ceil_div.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {
namespace {

using core::ceil_div;

constexpr std::int64_t kKeysPerPart = 1024;
constexpr std::int64_t kFewestQueries = 24;  // packing keys for fewer costs more than it saves

}  // namespace

std::string CacheAttention::schedule() const {
  if (selects_) return "selected keys gathered " + std::to_string(prefill_kernels_.forward_keys) + " at a time";
  const std::int64_t keys = tiles_.chunk_keys();
  return "keys read in the cache, parts of " + std::to_string(kKeysPerPart) +
         (keys == 0 ? "" : "; for many queries chunks of " + std::to_string(keys) + " keys");
}

/// Whether packing the keys for so many rows of a key head would cost more than it saves. Selected keys are brought
/// together anyway.
bool CacheAttention::decodes(std::int64_t rows) const {
  return !selects_ && rows <= 2 * std::int64_t{kernels_.decode_max_rows};
}

CacheAttention::Parts CacheAttention::parts_of(const KvCacheParams& p, const Sequence& s, const KeyRange& keys) const {
  Parts parts;
  if (!decodes(s.seqlen_q * group_) || keys.end <= keys.begin) return parts;
  const std::int64_t wanted = p.num_splits > 0 ? ceil_div(s.seqlen_k(), p.num_splits) : kKeysPerPart;
  parts.keys = std::max<std::int64_t>(wanted, 1);
  parts.first_key = keys.begin / parts.keys * parts.keys;
  parts.count = ceil_div(keys.end - parts.first_key, parts.keys);
  return parts;
}

void CacheAttention::add_decode_tasks(const KvCacheParams& p, std::int64_t b, const Parts& parts, std::int64_t together,
                                      bool in_order, std::vector<Task>& tasks) const {
  const Sequence s = sequence_of(p, b);
  const KeyRange keys = needed_keys(p, s);
  for (std::int64_t part = 0; part < parts.count; ++part) {
    const std::int64_t begin = parts.first_key + part * parts.keys;
    const KeyRange own{std::max(keys.begin, begin), std::min(keys.end, begin + std::max<std::int64_t>(parts.keys, 1))};
    for (std::int64_t h = 0; h < num_heads_k_; h += together)
      tasks.push_back({b,
                       {h, std::min(h + together, num_heads_k_)},
                       0,
                       group_,
                       0,
                       s.seqlen_q,
                       keys.end > keys.begin ? own : KeyRange{0, 0},
                       part,
                       true,
                       in_order && together >= num_heads_k_ ? keys.end : own.end});
  }
}

void CacheAttention::add_prefill_tasks(const KvCacheParams& p, std::int64_t b, int workers,
                                       std::vector<Task>& tasks) const {
  const Sequence s = sequence_of(p, b);
  const std::int64_t most = std::min<std::int64_t>(prefill_kernels_.max_rows, kRowCapacity);
  const std::int64_t members = std::clamp<std::int64_t>(most / s.seqlen_q, 1, group_);
  std::int64_t queries = ceil_div(s.seqlen_q, ceil_div(s.seqlen_q * members, most));
  const std::int64_t tiles = num_heads_k_ * ceil_div(group_, members) * p.batch_size;
  // A row's result does not depend on its tile: chunks of keys start at fixed places.
  while (queries >= 2 * kFewestQueries && tiles * ceil_div(s.seqlen_q, queries) < 2 * workers)
    queries = ceil_div(queries, 2);
  // Later queries see more keys under a causal mask: they start first.
  for (std::int64_t first = (ceil_div(s.seqlen_q, queries) - 1) * queries; first >= 0; first -= queries) {
    const std::int64_t count = std::min(queries, s.seqlen_q - first);
    const KeyRange low = visible_keys(p, s, first), high = visible_keys(p, s, first + count - 1);
    for (std::int64_t h = 0; h < num_heads_k_; ++h)
      for (std::int64_t m = 0; m < group_; m += members)
        tasks.push_back({b,
                         {h, h + 1},
                         m,
                         std::min(members, group_ - m),
                         first,
                         count,
                         {low.begin, std::max(low.begin, high.end)},
                         0,
                         false,
                         0});
  }
}

void CacheAttention::add_selected_tasks(const KvCacheParams& p, std::int64_t b, int workers,
                                        std::vector<Task>& tasks) const {
  const Sequence s = sequence_of(p, b);
  const std::int64_t most = std::min<std::int64_t>(prefill_kernels_.max_rows, kRowCapacity);
  const std::int64_t members = members_a_task(group_, most, s.seqlen_q * num_heads_k_ * p.batch_size, workers);
  for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
    const KeyRange seen = visible_keys(p, s, i);
    for (std::int64_t h = 0; h < num_heads_k_; ++h)
      for (std::int64_t m = 0; m < group_; m += members)
        tasks.push_back({b, {h, h + 1}, m, std::min(members, group_ - m), i, 1, seen, 0, false, 0});
  }
}

CacheAttention::Work CacheAttention::plan(const KvCacheParams& p) const {
  Work work;
  work.parts.resize(static_cast<std::size_t>(p.batch_size));
  std::int64_t pieces = 0;
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const Sequence s = sequence_of(p, b);
    if (s.absent || s.seqlen_q <= 0) continue;
    Parts& parts = work.parts[static_cast<std::size_t>(b)];
    const KeyRange keys = needed_keys(p, s);
    parts = parts_of(p, s, keys);
    parts.offset = work.floats;
    const std::int64_t rows = s.seqlen_q * p.num_heads_q;
    if (parts.count > 1) work.floats += static_cast<std::size_t>(rows * parts.count * (head_dim_v_ + 2));
    const std::int64_t count = selects_ ? p.key_indices.count : keys.end - keys.begin;
    work.flops +=
        2.0 * static_cast<double>(rows) * static_cast<double>(count) * static_cast<double>(head_dim_ + head_dim_v_);
    pieces += parts.count;
  }
  const int workers = workers_for(work.flops);
  // Key heads whose rows lie side by side are read together, as long as there is a task for everyone.
  std::int64_t together = heads_adjacent(p) ? decode_heads_ : 1;
  while (together > 1 && pieces * ceil_div(num_heads_k_, together) < 2 * workers) together = ceil_div(together, 2);
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const Sequence s = sequence_of(p, b);
    if (s.absent || s.seqlen_q <= 0) continue;
    if (selects_) {
      add_selected_tasks(p, b, workers, work.tasks);
    } else if (decodes(s.seqlen_q * group_)) {
      add_decode_tasks(p, b, work.parts[static_cast<std::size_t>(b)],
                       std::clamp<std::int64_t>(kRowCapacity / (group_ * s.seqlen_q), 1, together), workers == 1,
                       work.tasks);
    } else {
      add_prefill_tasks(p, b, workers, work.tasks);
    }
  }
  return work;
}

}  // namespace tilewise::backends::cpu
