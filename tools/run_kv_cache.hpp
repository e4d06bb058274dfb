// `tilewise run --k-cache`: the KV cache step, or without --q the append alone, on .npy files.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include "operations/derived/call.hpp"
#include "operations/kv_cache/schema.hpp"
#include "run_attention.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::tools {

/// Of the options that the KV cache step alone has.
inline constexpr const char* kKvCacheGroup = "KV cache";

/// What belongs to the KV cache step alone.
struct KvCacheFiles {
  static constexpr const auto& kTensors = operations::schema::kTensors<operations::kv_cache::kSchema>;
  /// Whether the schema sums the tensor of this place up for users, and attention reads no file of its name.
  [[nodiscard]] static constexpr bool is_own(std::size_t place) {
    const auto is_it = [place](const auto& tensor) {
      return tensor.name == kTensors[place].name && !tensor.summary.empty();
    };
    return !kTensors[place].summary.empty() && std::ranges::none_of(AttentionFiles::kTensors, is_it);
  }

  std::string k_cache, v_cache;                                    ///< read
  std::array<std::string, kTensors.size()> tensors;                ///< read: members of KvCacheOptions
  std::string k_cache_out, v_cache_out, k_scale_out, v_scale_out;  ///< written
  KvCacheOptions options;                                          ///< those that are no tensors
  std::vector<const CLI::Option*> all, stated_by_problem;          ///< the second exclude PROBLEM
};

void add_kv_cache_files(CLI::App& command, KvCacheFiles& files);

/// A call: of options that attention has too, files are empty where not given, and `attention` has the others.
struct KvCacheRun {
  const KvCacheFiles& files;
  const std::string &q, &k, &v, &alibi_slopes, &sink, &key_indices, &cu_seqlens_q;  ///< read
  const std::string &out, &lse;                                                     ///< written
  const std::vector<std::string>& problem_words;
  const AttentionOptions& attention;
  const std::vector<std::string>& tables;
  const BlockMaskFiles& block_mask;
  std::string mask, implementation;
  int threads = 0;
};

/// Throws Error.
void run_kv_cache(const KvCacheRun& run);

}  // namespace tilewise::tools
