// A block mask's states as the last table of a cache step's call, in its workspace.
#pragma once

#include <cstddef>
#include <cstdint>

#include "operations/block_mask.hpp"
#include "operations/kv_cache/params.hpp"
#include "operations/kv_cache/rules.hpp"

namespace tilewise::backends::cpu {

class CacheBlockStates {
 public:
  /// Of a problem with a block mask.
  explicit CacheBlockStates(const KvCacheProblem& problem)
      : scores_(operations::kv_cache::blocked_scores(problem)), tables_(problem.tables.size()) {}

  [[nodiscard]] std::size_t bytes() const;

  /// Calls attend(call) with the call whose tables have one more.
  template <typename Attend>
  void run(const operations::kv_cache::KvCacheParams& call, void* workspace, const Attend& attend) const {
    auto* const states = static_cast<std::uint8_t*>(workspace);
    write(call, states);
    operations::attend_with_block_table(call, tables_, block_table(scores_, states), attend);
  }

 private:
  /// The states of those rows of blocks that queries stand in.
  void write(const operations::kv_cache::KvCacheParams& call, std::uint8_t* states) const;

  operations::BlockedScores scores_;
  std::size_t tables_;
};

}  // namespace tilewise::backends::cpu
