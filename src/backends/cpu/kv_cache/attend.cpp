// Attention over a cache; see attend.hpp.
#include "backends/cpu/kv_cache/attend.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backends/attended_rows.hpp"
#include "backends/cpu/flush_denormals.hpp"
#include "backends/cpu/kv_cache/append.hpp"
#include "backends/cpu/kv_cache/cache_gatherer.hpp"
#include "backends/cpu/kv_cache/cache_stream.hpp"
#include "backends/cpu/rows.hpp"
#include "backends/cpu/selected_keys.hpp"
#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "core/parallel.hpp"
#include "operations/kv_cache/rules.hpp"
#include "operations/kv_cache/sequence.hpp"

namespace tilewise::backends::cpu {
namespace {

constexpr std::int64_t kLargestHeadDimV = 512;
constexpr float kNothingSeen = -std::numeric_limits<float>::infinity();

std::size_t round_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// A partial result: head_dim_v unnormalised outputs, their reference, the sum of weights.
void add_partial(const float* from, std::int64_t dim, float* to) {
  if (from[dim] == kNothingSeen) return;
  if (to[dim] == kNothingSeen) {
    std::memcpy(to, from, static_cast<std::size_t>(dim + 2) * sizeof(float));
    return;
  }
  const float reference = std::max(to[dim], from[dim]);
  const float own = std::exp(to[dim] - reference), other = std::exp(from[dim] - reference);
  for (std::int64_t d = 0; d < dim; ++d) to[d] = to[d] * own + from[d] * other;
  to[dim] = reference;
  to[dim + 1] = to[dim + 1] * own + from[dim + 1] * other;
}

/// As rows of attention have it: keys count from the left padding on.
device::Sequence attended(const operations::kv_cache::Sequence& s) {
  return {s.q_row, 0, s.seqlen_q, s.seqlen_k(), s.seqlen_q, s.seqlen_k(), 0};
}

}  // namespace

/// Of one task, in one piece of memory.
struct CacheAttention::Scratch {
  std::byte *kernel, *q, *chunk;
  float *total, *part;                     // partial results of all keys so far, and of one chunk
  std::array<RowInfo, kRowCapacity> rows;  // with what they see of all keys
  std::array<RowInfo, kRowCapacity> shifted;
};

CacheAttention::CacheAttention(const KvCacheProblem& p, const KernelSet& kernels, const KernelSet& prefill_kernels)
    : tiles_(p, prefill_kernels),
      kernels_(kernels),
      prefill_kernels_(prefill_kernels),
      own_(element_of(p.dtype)),
      decode_element_(operations::kv_cache::is_fp8(p) && kernels.decode_fp8[own_] == nullptr ? kElementF32 : own_),
      prefill_element_(tiles_.element()),
      decode_((operations::kv_cache::is_fp8(p) ? kernels.decode_fp8 : kernels.decode)[decode_element_]),
      selects_(p.top_k > 0),
      head_dim_(p.head_dim),
      head_dim_v_(p.head_dim_v),
      group_(p.num_heads_q / p.num_heads_k),
      num_heads_k_(p.num_heads_k),
      decode_heads_(std::clamp<std::int64_t>(num_heads_k_, 1, kMaxTiles)),
      functions_(p, {p.batch_size, p.num_heads_q, p.seqlen_q, operations::kv_cache::capacity_of(p), true},
                 sizeof(float), nullptr) {
  const auto dim = static_cast<std::int32_t>(p.head_dim), dim_v = static_cast<std::int32_t>(p.head_dim_v);
  const ScratchFn* scratch = operations::kv_cache::is_fp8(p) ? kernels.decode_fp8_scratch : kernels.decode_scratch;
  decode_scratch_ = scratch[decode_element_](dim, dim_v) * static_cast<std::size_t>(kMaxTiles);
  forward_scratch_ = prefill_kernels.forward_scratch[prefill_element_](dim, dim_v);
}

void CacheAttention::run(const KvCacheParams& p) const {
  Call call{p, attended_rows(p), {}};
  call.score = make_score_params(call.rows, {p.softmax_scale, p.softcap, 1.0});
  CapturedTables tables;
  call.score.functions = functions_.bind(p.tables, tables);
  const Work work = plan(p);
  std::unique_ptr<float[]> partials;
  if (work.floats > 0) partials = std::make_unique_for_overwrite<float[]>(work.floats);
  for (std::int64_t b = 0; b < p.batch_size; ++b) {
    if (sequence_of(p, b).absent) clear(call, b);
  }
  const int workers = workers_for(work.flops);
  core::parallel_for(static_cast<std::int64_t>(work.tasks.size()), workers, [&](std::int64_t n, int) {
    const FlushDenormals flush;
    const Task& task = work.tasks[static_cast<std::size_t>(n)];
    run_task(call, task, work.parts[static_cast<std::size_t>(task.b)], partials.get());
  });
  if (work.floats == 0) return;
  core::parallel_for(p.batch_size * p.num_heads_q, workers, [&](std::int64_t n, int) {
    const FlushDenormals flush;
    const std::int64_t b = n / p.num_heads_q, h = n % p.num_heads_q;
    const Parts& parts = work.parts[static_cast<std::size_t>(b)];
    if (parts.count <= 1) return;
    const Sequence s = sequence_of(p, b);
    for (std::int64_t i = 0; i < s.seqlen_q; ++i)
      finish(call, s, b, h, i,
             partials.get() + parts.offset +
                 static_cast<std::size_t>((h * s.seqlen_q + i) * parts.count * (head_dim_v_ + 2)),
             parts.count);
  });
}

/// A sequence without a cache: zeros, and -infinity whatever the sink.
void CacheAttention::clear(const Call& call, std::int64_t b) const {
  const device::AttendedRows& rows = call.rows;
  const device::Sequence s = attended(sequence_of(call.p, b));
  const std::size_t size = element_size(own_);
  for (std::int64_t h = 0; h < rows.num_heads_q; ++h) {
    for (std::int64_t i = 0; i < s.seqlen_q; ++i) {
      void* const out = mutable_row_address(rows.out, b, s.q_row + i, h, size);
      std::memset(out, 0, static_cast<std::size_t>(head_dim_v_) * size);
      if (void* lse = lse_address(rows.softmax_lse, s, b, i, h, own_)) *static_cast<float*>(lse) = kNothingSeen;
    }
  }
}

std::size_t CacheAttention::scratch_bytes(const Task& t) const {
  const auto rows = static_cast<std::size_t>(t.heads_k.count() * t.num_members * t.num_queries);
  return round_up(t.decode ? decode_scratch_ : forward_scratch_) +
         round_up(rows * static_cast<std::size_t>(head_dim_) * sizeof(float)) +
         2 * round_up(rows * static_cast<std::size_t>(head_dim_v_ + 2) * sizeof(float)) +
         (t.decode ? 0 : round_up(tiles_.scratch_bytes(t.heads_k.count())));
}

void CacheAttention::run_task(const Call& call, const Task& task, const Parts& parts, float* partials) const {
  const Sequence s = sequence_of(call.p, task.b);
  const auto num_rows = static_cast<std::size_t>(task.heads_k.count() * task.num_members * task.num_queries);
  const std::size_t row_bytes = round_up(num_rows * static_cast<std::size_t>(head_dim_v_ + 2) * sizeof(float));
  Scratch w;
  w.kernel = static_cast<std::byte*>(thread_scratch(scratch_bytes(task)));
  w.q = w.kernel + round_up(task.decode ? decode_scratch_ : forward_scratch_);
  std::byte* results = w.q + round_up(num_rows * static_cast<std::size_t>(head_dim_) * sizeof(float));
  w.total = reinterpret_cast<float*>(results);
  w.part = reinterpret_cast<float*>(results + row_bytes);
  w.chunk = results + 2 * row_bytes;
  fill_rows(call, s, task, w);
  const std::int64_t stride = head_dim_v_ + 2;
  for (std::size_t r = 0; r < num_rows; ++r)
    w.total[static_cast<std::int64_t>(r) * stride + head_dim_v_] = kNothingSeen;
  if (selects_) {
    attend_selected(call, s, task, w);
  } else if (task.decode) {
    decode(call, s, task, w);
  } else {
    prefill(call, s, task, w);
  }
  for (std::int64_t r = 0; r < static_cast<std::int64_t>(num_rows); ++r) {
    const std::int64_t member = r / task.num_queries, i = task.first_query + r % task.num_queries;
    const std::int64_t h =
        (task.heads_k.first + member / task.num_members) * group_ + task.first_member + member % task.num_members;
    if (parts.count <= 1) {
      finish(call, s, task.b, h, i, w.total + r * stride, 1);
      continue;
    }
    float* to =
        partials + parts.offset + static_cast<std::size_t>(((h * s.seqlen_q + i) * parts.count + task.part) * stride);
    std::memcpy(to, w.total + r * stride, static_cast<std::size_t>(stride) * sizeof(float));
  }
}

/// Rows in the order (key head, member, query), with the keys that they see of all.
void CacheAttention::fill_rows(const Call& call, const Sequence& s, const Task& task, Scratch& w) const {
  const KvCacheParams& p = call.p;
  const ElementIndex element = task.decode ? decode_element_ : prefill_element_;
  const std::size_t size = element_size(element);
  const std::int64_t position = p.rotary.dim > 0 ? rotary_position(p, s, task.b) : 0;
  const RowMaker maker(call.rows, own_, task.b, attended(s));
  RowInfo* row = w.rows.data();
  std::byte* q = w.q;
  for (std::int64_t head_k = task.heads_k.first; head_k < task.heads_k.last; ++head_k) {
    for (std::int64_t m = task.first_member; m < task.first_member + task.num_members; ++m) {
      const std::int64_t h = head_k * group_ + m;
      for (std::int64_t i = task.first_query; i < task.first_query + task.num_queries; ++i, ++row) {
        *row = maker.row(i, h);
        row->query = static_cast<std::uint32_t>(row->diagonal);
        if (p.rotary.dim > 0 || element != own_) {
          std::array<float, 576> values;
          load_row(p.dtype, row->q, head_dim_, values.data());
          if (p.rotary.dim > 0) rotate_row(p.rotary, position + (queries_advance(p) ? i : 0), values.data());
          // Rounded to q's own dtype, whatever kernels read.
          store_row(p.dtype, values.data(), head_dim_, q);
          if (element != own_) {
            load_row(p.dtype, q, head_dim_, values.data());
            std::memcpy(q, values.data(), static_cast<std::size_t>(head_dim_) * size);
          }
          row->q = q;
          q += static_cast<std::size_t>(head_dim_) * size;
        }
      }
    }
  }
}

/// What the tiles of a task have in common, with keys counted from `start` on, of which `keys` are read, and its rows
/// with what they see of these and where their results go.
ForwardTile CacheAttention::show_keys(const Call& call, const Task& task, std::int64_t start, const KeyRange& keys,
                                      float* results, Scratch& w) const {
  const std::int64_t num_rows = task.heads_k.count() * task.num_members * task.num_queries;
  for (std::int64_t r = 0; r < num_rows; ++r) {
    RowInfo& row = w.shifted[static_cast<std::size_t>(r)];
    row = w.rows[static_cast<std::size_t>(r)];
    row.partial = results + r * (head_dim_v_ + 2);
    row.key_begin = static_cast<std::int32_t>(std::clamp<std::int64_t>(row.key_begin, keys.begin, keys.end) - start);
    row.key_end = static_cast<std::int32_t>(std::clamp<std::int64_t>(row.key_end, keys.begin, keys.end) - start);
    row.diagonal -= static_cast<std::int32_t>(start);
  }
  ForwardTile tile{};
  tile.rows = w.shifted.data();
  tile.num_rows = static_cast<std::int32_t>(num_rows);
  tile.seqlen_k = tile.key_end = static_cast<std::int32_t>(keys.end - start);
  tile.key_begin = static_cast<std::int32_t>(keys.begin - start);
  tile.head_dim = static_cast<std::int32_t>(head_dim_);
  tile.head_dim_v = static_cast<std::int32_t>(head_dim_v_);
  tile.score = call.score;
  tile.score.functions.first_key = start;
  tile.score.functions.memory = function_memory(call.score.functions);
  tile.abandoned = &core::abandoned;
  return tile;
}

/// What functions leave of each `step` keys, the last of them perhaps fewer, to rows of a task: of all heads and
/// queries of its sequence where `whole`. Empty where nothing is known.
std::vector<device::Visibility> CacheAttention::visibility(const Call& call, const Sequence& s, const Task& task,
                                                           const KeyRange& keys, std::int64_t step, bool whole,
                                                           const Scratch& w) const {
  const operations::attention::ScoreBlocks* const blocks = call.score.functions.blocks;
  if (blocks == nullptr || keys.end <= keys.begin) return {};
  const std::int64_t diagonal = static_cast<std::int32_t>(w.rows[0].query) - task.first_query;
  const std::int64_t first = whole ? 0 : task.first_query, count = whole ? s.seqlen_q : task.num_queries;
  const std::int64_t head = whole ? 0 : task.heads_k.first * group_;
  const std::int64_t head_end = whole ? num_heads_k_ * group_ : task.heads_k.last * group_;
  std::vector<device::Visibility> seen(static_cast<std::size_t>(core::ceil_div(keys.end - keys.begin, step)));
  blocks->of_each({task.b, head, head_end, diagonal + first, diagonal + first + count, keys.begin, keys.end}, step,
                  seen.data());
  return seen;
}

/// The keys of a task but for blocks that functions hide: ranges in ascending order. They depend on the sequence alone,
/// since sums of other ranges would round otherwise.
std::vector<CacheAttention::KeyRange> CacheAttention::shown_keys(const Call& call, const Sequence& s, const Task& task,
                                                                 const Scratch& w) const {
  constexpr std::int64_t kStep = 256;
  if (task.keys.end <= task.keys.begin) return {};
  const std::int64_t begin = task.keys.begin / kStep * kStep;
  const std::vector<device::Visibility> seen = visibility(call, s, task, {begin, task.keys.end}, kStep, true, w);
  if (seen.empty()) return {task.keys};
  std::vector<KeyRange> ranges;
  for (std::size_t n = 0; n < seen.size(); ++n) {
    if (seen[n] == device::Visibility::none) continue;
    const std::int64_t start = begin + static_cast<std::int64_t>(n) * kStep;
    const KeyRange range{std::max(start, task.keys.begin), std::min(start + kStep, task.keys.end)};
    if (!ranges.empty() && ranges.back().end == range.begin) {
      ranges.back().end = range.end;
    } else {
      ranges.push_back(range);
    }
  }
  return ranges;
}

/// What one range of keys adds to those before it.
void CacheAttention::add_parts(const Task& task, Scratch& w) const {
  const std::int64_t num_rows = task.heads_k.count() * task.num_members * task.num_queries, stride = head_dim_v_ + 2;
  for (std::int64_t r = 0; r < num_rows; ++r) add_partial(w.part + r * stride, head_dim_v_, w.total + r * stride);
}

/// The keys of a task that are visible, where they lie in the cache.
void CacheAttention::decode(const Call& call, const Sequence& s, const Task& task, Scratch& w) const {
  bool first = true;
  for (const KeyRange& keys : shown_keys(call, s, task, w)) {
    if (core::abandoned()) return;
    decode_range(call, s, task, keys, first ? w.total : w.part, w);
    if (!first) add_parts(task, w);
    first = false;
  }
}

/// A range of them in one go.
void CacheAttention::decode_range(const Call& call, const Sequence& s, const Task& task, const KeyRange& keys,
                                  float* results, Scratch& w) const {
  const KvCacheParams& p = call.p;
  const ForwardTile tile = show_keys(call, task, 0, keys, results, w);
  const KeyStream stream = cache_stream(p, s, task.b, task.heads_k, task.ahead);
  const auto size = static_cast<std::int64_t>(size_of(p.cache_dtype));
  const bool scales_scores = p.scales != CacheScales::none && p.scales != CacheScales::token;
  const std::int64_t most = kernels_.decode_max_rows, rows_a_head = task.num_members * task.num_queries;
  const std::int64_t members = std::clamp<std::int64_t>(most / task.num_queries, 1, task.num_members);
  const std::int64_t queries = std::min(most, task.num_queries);
  std::array<ForwardTile, kMaxTiles> tiles;
  for (std::int64_t m = 0; m < task.num_members; m += members) {
    for (std::int64_t i = 0; i < task.num_queries; i += queries) {
      // Rows of a tile lie side by side: several members come with all their queries.
      const std::int64_t num_rows = std::min(members, task.num_members - m) * std::min(queries, task.num_queries - i);
      for (std::int64_t n = 0; n < task.heads_k.count(); ++n) {
        ForwardTile& own = tiles[static_cast<std::size_t>(n)];
        own = tile;
        own.rows = w.shifted.data() + n * rows_a_head + m * task.num_queries + i;
        own.num_rows = static_cast<std::int32_t>(num_rows);
        own.k = static_cast<const std::byte*>(stream.k) + n * p.k_cache.head_stride * size;
        own.v = static_cast<const std::byte*>(stream.v) + n * p.v_cache.head_stride * size;
        if (scales_scores) own.score.softmax_scale *= double{p.k_scale.load(task.b, 0, 0, task.heads_k.first + n)};
      }
      decode_(tiles.data(), static_cast<std::int32_t>(task.heads_k.count()), stream, w.kernel);
    }
  }
}

/// The keys of a task chunk after chunk, whose partial results are added up. Chunks that functions hide are not read,
/// and of others no blocks at their ends.
void CacheAttention::prefill(const Call& call, const Sequence& s, const Task& task, Scratch& w) const {
  const std::int64_t chunk_keys =
      tiles_.chunk_keys() > 0 ? tiles_.chunk_keys() : std::numeric_limits<std::int32_t>::max();
  const std::int64_t step = prefill_kernels_.forward_keys;
  bool first = true;
  for (std::int64_t start = task.keys.begin / chunk_keys * chunk_keys; start < task.keys.end && !core::abandoned();
       start += chunk_keys) {
    KeyRange keys{std::max(start, task.keys.begin), std::min(start + chunk_keys, task.keys.end)};
    const std::int64_t begin = start + (keys.begin - start) / step * step;
    const std::vector<device::Visibility> seen = visibility(call, s, task, {begin, keys.end}, step, false, w);
    const auto hidden = [](device::Visibility visibility) { return visibility == device::Visibility::none; };
    const auto shown = std::ranges::find_if_not(seen, hidden);
    if (!seen.empty()) {
      if (shown == seen.end()) continue;
      keys.begin = std::max(keys.begin, begin + (shown - seen.begin()) * step);
      const auto behind = std::find_if_not(seen.rbegin(), seen.rend(), hidden).base();
      keys.end = std::min(keys.end, begin + (behind - seen.begin()) * step);
    }
    const CacheChunk chunk = tiles_.chunk(call.p, s, task.b, task.heads_k, start, keys, w.chunk);
    ForwardTile tile = show_keys(call, task, start, keys, first ? w.total : w.part, w);
    if (!seen.empty()) tile.blocks = &*shown;
    tile.k = chunk.k;
    tile.v = chunk.v;
    tile.k_stride = chunk.k_stride;
    tile.v_stride = chunk.v_stride;
    prefill_kernels_.forward[prefill_element_](tile, w.kernel);
    if (!first) add_parts(task, w);
    first = false;
  }
}

/// The keys that a task's one query selects and sees.
void CacheAttention::attend_selected(const Call& call, const Sequence& s, const Task& task, Scratch& w) const {
  const RowInfo& query = w.rows.front();
  const SeenKeys seen = seen_keys(call.p.key_indices, {query.key_begin, query.key_end}, task.b,
                                  s.q_row + task.first_query, task.heads_k.first);
  ForwardTile tile = show_keys(call, task, 0, task.keys, w.total, w);
  show_seen_keys(seen, w.shifted.data(), tile);
  const CacheGatherer gatherer(
      {call.p, s, task.b, task.heads_k.first, prefill_kernels_.forward_keys, prefill_kernels_.dequantize}, seen, tile);
  prefill_kernels_.forward[prefill_element_](tile, w.kernel);
}

/// What the values of a key head, of which the decode kernels read what is stored, are yet to be multiplied by.
double CacheAttention::scale_of_values(const KvCacheParams& p, const Sequence& s, std::int64_t b,
                                       std::int64_t head_k) const {
  const bool scaled = p.scales == CacheScales::none || p.scales == CacheScales::token;
  return scaled || !decodes(s.seqlen_q * group_) ? 1.0 : double{p.v_scale.load(b, 0, 0, head_k)};
}

/// A row's parts, reduced in ascending order, and the sink: to out and lse.
void CacheAttention::finish(const Call& call, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
                            const float* parts, std::int64_t count) const {
  const device::AttendedRows& rows = call.rows;
  std::array<float, kLargestHeadDimV + 2> sum;
  sum[static_cast<std::size_t>(head_dim_v_)] = kNothingSeen;
  for (std::int64_t n = 0; n < count; ++n) add_partial(parts + n * (head_dim_v_ + 2), head_dim_v_, sum.data());
  const auto sink = static_cast<float>(sink_of(rows, h));
  const float reference = sum[static_cast<std::size_t>(head_dim_v_)];
  void* out = mutable_row_address(rows.out, b, s.q_row + i, h, element_size(own_));
  float lse = sink;
  if (reference == kNothingSeen) {
    std::memset(out, 0, static_cast<std::size_t>(head_dim_v_) * element_size(own_));
  } else {
    float own = 1.0f, total = sum[static_cast<std::size_t>(head_dim_v_ + 1)], top = reference;
    if (call.score.has_sink) {
      top = std::max(reference, sink);
      own = std::exp(reference - top);
      total = total * own + std::exp(sink - top);
    }
    kernels_.store_scaled[own_](sum.data(), head_dim_v_,
                                double{own} / double{total} * scale_of_values(call.p, s, b, h / group_), out);
    lse = top + std::log(total);
  }
  if (void* to = lse_address(rows.softmax_lse, attended(s), b, i, h, own_)) *static_cast<float*>(to) = lse;
}

}  // namespace tilewise::backends::cpu
