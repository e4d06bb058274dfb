// Attention over a cache on the CPU: which rows make a task, which parts of the keys, and how parts become one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/kv_cache/cache_tiles.hpp"
#include "backends/cpu/score_functions.hpp"
#include "device/common/params.h"
#include "operations/kv_cache/params.hpp"

namespace tilewise::backends::cpu {

class CacheAttention {
 public:
  /// `prefill_kernels`: those that read chunks of keys, in f32 where the cache is in fp8.
  CacheAttention(const KvCacheProblem& problem, const KernelSet& kernels, const KernelSet& prefill_kernels);

  [[nodiscard]] std::string schedule() const;
  void run(const operations::kv_cache::KvCacheParams& params) const;

 private:
  using KeyRange = operations::kv_cache::KeyRange;
  using KvCacheParams = operations::kv_cache::KvCacheParams;
  using Sequence = operations::kv_cache::Sequence;

  static constexpr std::int64_t kRowCapacity = 256;  // no KernelSet takes more rows a tile
  static constexpr std::int64_t kMaxTiles = 16;      // key heads that a decode call visits together

  /// Rows of some key heads, and a part of what they see.
  struct Task {
    std::int64_t b;
    HeadRange heads_k;
    std::int64_t first_member, num_members;  // of each key head's query heads
    std::int64_t first_query, num_queries;
    KeyRange keys;
    std::int64_t part;   // of the sequence's
    bool decode;         // by the sequence alone, whatever its tiles are: results must not depend on threads
    std::int64_t ahead;  // decode: keys before it are fetched ahead
  };
  /// Parts of a sequence's keys, and where their results lie: [head, query, part] rows. None: its tasks finish alone.
  struct Parts {
    std::int64_t first_key = 0, keys = 0, count = 1;
    std::size_t offset = 0;  // in floats, of all sequences' parts
  };
  struct Work {
    std::vector<Task> tasks;
    std::vector<Parts> parts;  // of each sequence
    std::size_t floats = 0;
    double flops = 0.0;
  };
  struct Scratch;
  /// The cache, and the rows that attend to it.
  struct Call {
    const KvCacheParams& p;
    device::AttendedRows rows;
    ScoreParams score;
  };

  [[nodiscard]] bool decodes(std::int64_t rows) const;
  void add_selected_tasks(const KvCacheParams& p, std::int64_t b, int workers, std::vector<Task>& tasks) const;
  void attend_selected(const Call& call, const Sequence& s, const Task& task, Scratch& scratch) const;
  [[nodiscard]] Parts parts_of(const KvCacheParams& p, const Sequence& s, const KeyRange& keys) const;
  [[nodiscard]] Work plan(const KvCacheParams& p) const;
  void add_decode_tasks(const KvCacheParams& p, std::int64_t b, const Parts& parts, std::int64_t together,
                        bool in_order, std::vector<Task>& tasks) const;
  void add_prefill_tasks(const KvCacheParams& p, std::int64_t b, int workers, std::vector<Task>& tasks) const;
  [[nodiscard]] std::size_t scratch_bytes(const Task& task) const;
  void clear(const Call& call, std::int64_t b) const;
  void run_task(const Call& call, const Task& task, const Parts& parts, float* partials) const;
  void fill_rows(const Call& call, const Sequence& s, const Task& task, Scratch& scratch) const;
  void decode(const Call& call, const Sequence& s, const Task& task, Scratch& scratch) const;
  void decode_range(const Call& call, const Sequence& s, const Task& task, const KeyRange& keys, float* results,
                    Scratch& scratch) const;
  [[nodiscard]] std::vector<device::Visibility> visibility(const Call& call, const Sequence& s, const Task& task,
                                                           const KeyRange& keys, std::int64_t step, bool whole,
                                                           const Scratch& scratch) const;
  [[nodiscard]] std::vector<KeyRange> shown_keys(const Call& call, const Sequence& s, const Task& task,
                                                 const Scratch& scratch) const;
  void add_parts(const Task& task, Scratch& scratch) const;
  void prefill(const Call& call, const Sequence& s, const Task& task, Scratch& scratch) const;
  [[nodiscard]] ForwardTile show_keys(const Call& call, const Task& task, std::int64_t start, const KeyRange& keys,
                                      float* results, Scratch& scratch) const;
  [[nodiscard]] double scale_of_values(const KvCacheParams& p, const Sequence& s, std::int64_t b,
                                       std::int64_t head_k) const;
  void finish(const Call& call, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i, const float* parts,
              std::int64_t count) const;

  CacheTiles tiles_;
  const KernelSet &kernels_, &prefill_kernels_;
  // Of q and out; what kernels read q in where they read keys in the cache; and where they read chunks of them.
  ElementIndex own_, decode_element_, prefill_element_;
  DecodeFn decode_;
  bool selects_;  // each query has keys of its own
  std::int64_t head_dim_, head_dim_v_, group_, num_heads_k_, decode_heads_;
  std::size_t decode_scratch_, forward_scratch_;
  CompiledFunctions functions_;
};

}  // namespace tilewise::backends::cpu
