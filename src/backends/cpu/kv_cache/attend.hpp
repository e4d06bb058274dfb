// Attention over a cache on the CPU: which rows make a task, which parts of the keys, and how parts become one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backends/cpu/kernels.hpp"
#include "backends/cpu/kv_cache/cache_tiles.hpp"
#include "operations/kv_cache/params.hpp"

namespace tilewise::backends::cpu {

class CacheAttention {
 public:
  CacheAttention(const KvCacheProblem& problem, const KernelSet& kernels);

  [[nodiscard]] std::string schedule() const;
  void run(const operations::kv_cache::KvCacheParams& params) const;

 private:
  using KeyRange = operations::kv_cache::KeyRange;
  using KvCacheParams = operations::kv_cache::KvCacheParams;
  using Sequence = operations::kv_cache::Sequence;

  /// Rows of some key heads, and a part of what they see.
  struct Task {
    std::int64_t b;
    HeadRange heads_k;
    std::int64_t first_member, num_members;  // of each key head's query heads
    std::int64_t first_query, num_queries;
    KeyRange keys;
    std::int64_t part;  // of the sequence's
    bool decode;        // by the sequence alone, whatever its tiles are: results must not depend on threads
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

  [[nodiscard]] bool decodes(std::int64_t rows) const;
  [[nodiscard]] Parts parts_of(const KvCacheParams& p, const Sequence& s, const KeyRange& keys) const;
  [[nodiscard]] Work plan(const KvCacheParams& p) const;
  void add_decode_tasks(const KvCacheParams& p, std::int64_t b, const Parts& parts, std::int64_t together,
                        std::vector<Task>& tasks) const;
  void add_prefill_tasks(const KvCacheParams& p, std::int64_t b, int workers, std::vector<Task>& tasks) const;
  [[nodiscard]] std::size_t scratch_bytes(const Task& task) const;
  void clear(const KvCacheParams& p, std::int64_t b) const;
  void run_task(const KvCacheParams& p, const Task& task, const Parts& parts, float* partials) const;
  void fill_rows(const KvCacheParams& p, const Sequence& s, const Task& task, Scratch& scratch) const;
  void run_chunk(const KvCacheParams& p, const Task& task, const CacheChunk& chunk, std::int64_t start,
                 const KeyRange& keys, bool first, Scratch& scratch) const;
  void finish(const KvCacheParams& p, const Sequence& s, std::int64_t b, std::int64_t h, std::int64_t i,
              const float* parts, std::int64_t count) const;

  CacheTiles tiles_;
  const KernelSet& kernels_;
  ElementIndex element_, own_;  // what kernels read; of q and out
  std::int64_t head_dim_, head_dim_v_, group_, num_heads_k_, decode_heads_;
  bool converts_;  // q is rotated or widened before kernels read it
  std::size_t decode_scratch_, forward_scratch_;
};

}  // namespace tilewise::backends::cpu
