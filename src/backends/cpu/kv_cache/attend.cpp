// Attention over a cache; see attend.hpp.
#include "backends/cpu/kv_cache/attend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>

#include "backends/cpu/kv_cache/append.hpp"
#include "backends/cpu/rows.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/elements.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::int64_t kKeysPerPart = 1024;
constexpr std::int64_t kRowCapacity = 256;   // no KernelSet takes more rows a tile
constexpr std::int64_t kMaxTiles = 16;       // key heads that a decode call visits together
constexpr std::int64_t kFewestQueries = 24;  // packing keys for fewer costs more than it saves
constexpr std::int64_t kLargestHeadDimV = 512;
constexpr float kNothingSeen = -std::numeric_limits<float>::infinity();
constexpr float kLog2E = 1.44269504088896340736f, kLn2 = 0.69314718055994530942f;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }
std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A partial result: head_dim_v unnormalised outputs, their reference in log2 units, the sum of weights.
void add_partial(const float* from, std::int64_t dim, float* to) {
  if (from[dim] == kNothingSeen) return;
  if (to[dim] == kNothingSeen) {
    std::memcpy(to, from, static_cast<std::size_t>(dim + 2) * sizeof(float));
    return;
  }
  const float reference = std::max(to[dim], from[dim]);
  const float own = std::exp2(to[dim] - reference), other = std::exp2(from[dim] - reference);
  for (std::int64_t d = 0; d < dim; ++d) to[d] = to[d] * own + from[d] * other;
  to[dim] = reference;
  to[dim + 1] = to[dim + 1] * own + from[dim + 1] * other;
}

}  // namespace

/// Of one task, in one piece of memory.
struct CacheAttention::Scratch {
  std::byte *kernel, *q, *chunk;
  float *total, *part;                     // partial results of all keys so far, and of one chunk
  std::array<RowInfo, kRowCapacity> rows;  // with what they see of all keys
  std::array<RowInfo, kRowCapacity> shifted;
};

CacheAttention::CacheAttention(const KvCacheProblem& p, const KernelSet& kernels)
    : tiles_(p, kernels),
      kernels_(kernels),
      element_(tiles_.element()),
      own_(element_of(p.dtype)),
      head_dim_(p.head_dim),
      head_dim_v_(p.head_dim_v),
      group_(p.num_heads_q / p.num_heads_k),
      num_heads_k_(p.num_heads_k),
      decode_heads_(std::clamp<std::int64_t>(num_heads_k_, 1, kMaxTiles)),
      converts_(p.rotary_dim > 0 || element_ != own_) {
  const auto dim = static_cast<std::int32_t>(p.head_dim), dim_v = static_cast<std::int32_t>(p.head_dim_v);
  decode_scratch_ = kernels.decode_scratch[element_](dim, dim_v) * static_cast<std::size_t>(kMaxTiles);
  forward_scratch_ = kernels.forward_scratch[element_](dim, dim_v);
}

std::string CacheAttention::schedule() const {
  const std::int64_t keys = tiles_.chunk_keys();
  return keys == 0 ? "keys read in the cache, parts of " + std::to_string(kKeysPerPart)
                   : "chunks of " + std::to_string(keys) + " keys, parts of " +
                         std::to_string(ceil_div(kKeysPerPart, keys) * keys);
}

/// Whether packing the keys for so many rows of a key head would cost more than it saves.
bool CacheAttention::decodes(std::int64_t rows) const { return rows <= 2 * std::int64_t{kernels_.decode_max_rows}; }

CacheAttention::Parts CacheAttention::parts_of(const KvCacheParams& p, const Sequence& s, const KeyRange& keys) const {
  Parts parts;
  if (!decodes(s.seqlen_q * group_) || keys.end <= keys.begin) return parts;
  const std::int64_t chunk = std::max<std::int64_t>(tiles_.chunk_keys(), 1);
  const std::int64_t wanted = p.num_splits > 0 ? ceil_div(s.seqlen_k(), p.num_splits) : kKeysPerPart;
  parts.keys = ceil_div(std::max<std::int64_t>(wanted, 1), chunk) * chunk;
  parts.first_key = keys.begin / parts.keys * parts.keys;
  parts.count = ceil_div(keys.end - parts.first_key, parts.keys);
  return parts;
}

void CacheAttention::add_decode_tasks(const KvCacheParams& p, std::int64_t b, const Parts& parts, std::int64_t together,
                                      std::vector<Task>& tasks) const {
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
                       true});
  }
}

void CacheAttention::add_prefill_tasks(const KvCacheParams& p, std::int64_t b, int workers,
                                       std::vector<Task>& tasks) const {
  const Sequence s = sequence_of(p, b);
  const std::int64_t most = std::min<std::int64_t>(kernels_.max_rows, kRowCapacity);
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
                         false});
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
    work.flops += 2.0 * static_cast<double>(rows) * static_cast<double>(keys.end - keys.begin) *
                  static_cast<double>(head_dim_ + head_dim_v_);
    pieces += parts.count;
  }
  const int workers = workers_for(work.flops);
  // Key heads whose rows lie side by side are read together, as long as there is a task for everyone.
  std::int64_t together = decode_heads_;
  while (together > 1 && pieces * ceil_div(num_heads_k_, together) < 2 * workers) together = ceil_div(together, 2);
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    const Sequence s = sequence_of(p, b);
    if (s.absent || s.seqlen_q <= 0) continue;
    if (decodes(s.seqlen_q * group_)) {
      add_decode_tasks(p, b, work.parts[static_cast<std::size_t>(b)],
                       std::clamp<std::int64_t>(kRowCapacity / (group_ * s.seqlen_q), 1, together), work.tasks);
    } else {
      add_prefill_tasks(p, b, workers, work.tasks);
    }
  }
  return work;
}

void CacheAttention::run(const KvCacheParams& p) const {
  const Work work = plan(p);
  std::unique_ptr<float[]> partials;
  if (work.floats > 0) partials = std::make_unique_for_overwrite<float[]>(work.floats);
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    if (sequence_of(p, b).absent) clear(p, b);
  }
  const int workers = workers_for(work.flops);
  core::parallel_for(static_cast<std::int64_t>(work.tasks.size()), workers, [&](std::int64_t n, int) {
    const Task& task = work.tasks[static_cast<std::size_t>(n)];
    run_task(p, task, work.parts[static_cast<std::size_t>(task.b)], partials.get());
  });
  if (work.floats == 0) return;
  core::parallel_for(p.batch_size * p.num_heads_q, workers, [&](std::int64_t n, int) {
    const std::int64_t b = n / p.num_heads_q, h = n % p.num_heads_q;
    const Parts& parts = work.parts[static_cast<std::size_t>(b)];
    if (parts.count <= 1) return;
    const Sequence s = sequence_of(p, b);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i)
      finish(p, s, b, h, i,
             partials.get() + parts.offset +
                 static_cast<std::size_t>((h * s.seqlen_q + i) * parts.count * (head_dim_v_ + 2)),
             parts.count);
  });
}

/// A sequence without a cache: zeros, and -infinity whatever the sink.
void CacheAttention::clear(const KvCacheParams& p, std::int64_t b) const {
  const Sequence s = sequence_of(p, b);
  const std::size_t size = element_size(own_);
  for (std::int64_t h = 0; h < p.num_heads_q; ++h) {
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      std::memset(mutable_row_address(p.out, b, s.q_row + i, h, size), 0, static_cast<std::size_t>(head_dim_v_) * size);
      const device::LseTensor& t = p.softmax_lse;
      if (t.data != nullptr)
        t.data[b * t.batch_stride + h * t.head_stride + (s.q_row + i) * t.seq_stride] = kNothingSeen;
    }
  }
}

std::size_t CacheAttention::scratch_bytes(const Task& t) const {
  const auto rows = static_cast<std::size_t>(t.heads_k.count() * t.num_members * t.num_queries);
  return round_up(std::max(decode_scratch_, forward_scratch_)) +
         round_up(rows * static_cast<std::size_t>(head_dim_) * element_size(element_)) +
         2 * round_up(rows * static_cast<std::size_t>(head_dim_v_ + 2) * sizeof(float)) +
         round_up(tiles_.scratch_bytes(t.heads_k.count()));
}

void CacheAttention::run_task(const KvCacheParams& p, const Task& task, const Parts& parts, float* partials) const {
  const Sequence s = sequence_of(p, task.b);
  const auto num_rows = static_cast<std::size_t>(task.heads_k.count() * task.num_members * task.num_queries);
  const std::size_t row_bytes = round_up(num_rows * static_cast<std::size_t>(head_dim_v_ + 2) * sizeof(float));
  Scratch w;
  w.kernel = static_cast<std::byte*>(thread_scratch(scratch_bytes(task)));
  w.q = w.kernel + round_up(std::max(decode_scratch_, forward_scratch_));
  std::byte* results = w.q + round_up(num_rows * static_cast<std::size_t>(head_dim_) * element_size(element_));
  w.total = reinterpret_cast<float*>(results);
  w.part = reinterpret_cast<float*>(results + row_bytes);
  w.chunk = results + 2 * row_bytes;
  fill_rows(p, s, task, w);
  const std::int64_t stride = head_dim_v_ + 2;
  for (std::size_t r = 0; r < num_rows; ++r)
    w.total[static_cast<std::int64_t>(r) * stride + head_dim_v_] = kNothingSeen;
  const std::int64_t chunk = tiles_.chunk_keys() > 0 ? tiles_.chunk_keys() : std::numeric_limits<std::int32_t>::max();
  bool first = true;
  for (std::int64_t start = task.keys.begin / chunk * chunk; start < task.keys.end && !core::abandoned();
       start += chunk) {
    const KeyRange keys{std::max(start, task.keys.begin), std::min(start + chunk, task.keys.end)};
    run_chunk(p, task, tiles_.chunk(p, s, task.b, task.heads_k, start, keys, w.chunk), start, keys, first, w);
    first = false;
  }
  for (std::int64_t r = 0; r < static_cast<std::int64_t>(num_rows); ++r) {
    const std::int64_t member = r / task.num_queries, i = task.first_query + r % task.num_queries;
    const std::int64_t h =
        (task.heads_k.first + member / task.num_members) * group_ + task.first_member + member % task.num_members;
    if (parts.count <= 1) {
      finish(p, s, task.b, h, i, w.total + r * stride, 1);
      continue;
    }
    float* to =
        partials + parts.offset + static_cast<std::size_t>(((h * s.seqlen_q + i) * parts.count + task.part) * stride);
    std::memcpy(to, w.total + r * stride, static_cast<std::size_t>(stride) * sizeof(float));
  }
}

/// Rows in the order (key head, member, query), with the keys that they see of all.
void CacheAttention::fill_rows(const KvCacheParams& p, const Sequence& s, const Task& task, Scratch& w) const {
  const std::size_t own_size = element_size(own_), size = element_size(element_);
  const std::int64_t position = p.rotary.dim > 0 ? rotary_position(p, s, task.b) : 0;
  RowInfo* row = w.rows.data();
  std::byte* q = w.q;
  for (std::int64_t head_k = task.heads_k.first; head_k < task.heads_k.last; ++head_k) {
    for (std::int64_t m = task.first_member; m < task.first_member + task.num_members; ++m) {
      const std::int64_t h = head_k * group_ + m;
      for (std::int64_t i = task.first_query; i < task.first_query + task.num_queries; ++i, ++row) {
        *row = {};
        row->q = row_address(p.q, task.b, s.q_row + i, h, own_size);
        if (converts_) {
          std::array<float, 576> values;
          load_row(p.dtype, row->q, head_dim_, values.data());
          if (p.rotary.dim > 0) rotate_row(p.rotary, position + (queries_advance(p) ? i : 0), values.data());
          // Rounded to q's own dtype, whatever kernels read.
          store_row(p.dtype, values.data(), head_dim_, q);
          if (element_ != own_) {
            load_row(p.dtype, q, head_dim_, values.data());
            std::memcpy(q, values.data(), static_cast<std::size_t>(head_dim_) * size);
          }
          row->q = q;
          q += static_cast<std::size_t>(head_dim_) * size;
        }
        const KeyRange keys = visible_keys(p, s, i);
        row->key_begin = static_cast<std::int32_t>(keys.begin);
        row->key_end = static_cast<std::int32_t>(keys.end);
        row->diagonal = static_cast<std::int32_t>(i + s.diagonal());
        if (p.alibi_slopes != nullptr)
          row->alibi_slope = p.alibi_slopes[task.b * p.alibi_batch_stride + h * p.alibi_head_stride];
      }
    }
  }
}

/// Adds keys of one chunk to the partial results.
void CacheAttention::run_chunk(const KvCacheParams& p, const Task& task, const CacheChunk& chunk, std::int64_t start,
                               const KeyRange& keys, bool first, Scratch& w) const {
  const std::int64_t stride = head_dim_v_ + 2, rows_a_head = task.num_members * task.num_queries;
  const std::int64_t num_rows = task.heads_k.count() * rows_a_head;
  float* results = first ? w.total : w.part;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    RowInfo& row = w.shifted[static_cast<std::size_t>(r)];
    row = w.rows[static_cast<std::size_t>(r)];
    row.partial = results + r * stride;
    row.key_begin = static_cast<std::int32_t>(std::clamp<std::int64_t>(row.key_begin, keys.begin, keys.end) - start);
    row.key_end = static_cast<std::int32_t>(std::clamp<std::int64_t>(row.key_end, keys.begin, keys.end) - start);
    row.diagonal -= static_cast<std::int32_t>(start);
  }
  ForwardTile tile{};
  tile.seqlen_k = tile.key_end = static_cast<std::int32_t>(keys.end - start);
  tile.key_begin = static_cast<std::int32_t>(keys.begin - start);
  tile.k_stride = chunk.k_stride;
  tile.v_stride = chunk.v_stride;
  tile.head_dim = static_cast<std::int32_t>(head_dim_);
  tile.head_dim_v = static_cast<std::int32_t>(head_dim_v_);
  tile.score.softmax_scale = p.softmax_scale;
  tile.score.softcap = p.softcap;
  tile.score.has_alibi = p.alibi_slopes != nullptr;
  tile.abandoned = &core::abandoned;
  const auto size = static_cast<std::int64_t>(element_size(element_));
  const auto head_address = [&](const void* base, std::int64_t head, std::int64_t step) {
    return static_cast<const std::byte*>(base) + head * step * size;
  };
  const bool decode = task.decode;
  const std::int64_t tile_members =
      decode ? std::clamp<std::int64_t>(kernels_.decode_max_rows / task.num_queries, 1, task.num_members)
             : task.num_members;
  const std::int64_t tile_queries =
      decode ? std::min<std::int64_t>(kernels_.decode_max_rows, task.num_queries) : task.num_queries;
  const KeyStream stream{chunk.k,
                         chunk.v,
                         chunk.k_stride * size,
                         chunk.v_stride * size,
                         ((task.heads_k.count() - 1) * chunk.k_head_stride + head_dim_) * size,
                         ((task.heads_k.count() - 1) * chunk.v_head_stride + head_dim_v_) * size,
                         chunk.in_cache ? tile.key_end : 0};
  std::array<ForwardTile, kMaxTiles> tiles;
  for (std::int64_t m = 0; m < task.num_members; m += tile_members) {
    const std::int64_t members = std::min(tile_members, task.num_members - m);
    for (std::int64_t i = 0; i < task.num_queries; i += tile_queries) {
      // Rows of a tile lie side by side: several members come with all their queries.
      for (std::int64_t n = 0; n < task.heads_k.count(); ++n) {
        ForwardTile& own = tiles[static_cast<std::size_t>(n)];
        own = tile;
        own.rows = w.shifted.data() + n * rows_a_head + m * task.num_queries + i;
        own.num_rows = static_cast<std::int32_t>(members * std::min(tile_queries, task.num_queries - i));
        own.k = head_address(chunk.k, n, chunk.k_head_stride);
        own.v = head_address(chunk.v, n, chunk.v_head_stride);
      }
      if (decode) {
        kernels_.decode[element_](tiles.data(), static_cast<std::int32_t>(task.heads_k.count()), stream, w.kernel);
      } else {
        kernels_.forward[element_](tiles[0], w.kernel);
      }
    }
  }
  if (first) return;
  for (std::int64_t r = 0; r < num_rows; ++r) add_partial(w.part + r * stride, head_dim_v_, w.total + r * stride);
}

/// A row's parts, reduced in ascending order, and the sink: to out and lse.
void CacheAttention::finish(const KvCacheParams& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
                            const float* parts, std::int64_t count) const {
  std::array<float, kLargestHeadDimV + 2> sum;
  sum[static_cast<std::size_t>(head_dim_v_)] = kNothingSeen;
  for (std::int64_t n = 0; n < count; ++n) add_partial(parts + n * (head_dim_v_ + 2), head_dim_v_, sum.data());
  const auto sink = p.sink == nullptr
                        ? kNothingSeen
                        : static_cast<float>(operations::load_element(p.sink_dtype, p.sink, h * p.sink_stride));
  const float reference = sum[static_cast<std::size_t>(head_dim_v_)];
  void* out = mutable_row_address(p.out, b, s.q_row + i, h, element_size(own_));
  float lse = sink;
  if (reference == kNothingSeen) {
    std::memset(out, 0, static_cast<std::size_t>(head_dim_v_) * element_size(own_));
  } else {
    float own = 1.0f, total = sum[static_cast<std::size_t>(head_dim_v_ + 1)], top = reference;
    if (p.sink != nullptr) {
      top = std::max(reference, sink * kLog2E);
      own = std::exp2(reference - top);
      total = total * own + std::exp2(sink * kLog2E - top);
    }
    kernels_.store_scaled[own_](sum.data(), head_dim_v_, double{own} / double{total}, out);
    lse = (top + std::log2(total)) * kLn2;
  }
  const device::LseTensor& t = p.softmax_lse;
  if (t.data != nullptr) t.data[b * t.batch_stride + h * t.head_stride + (s.q_row + i) * t.seq_stride] = lse;
}

}  // namespace tilewise::backends::cpu
