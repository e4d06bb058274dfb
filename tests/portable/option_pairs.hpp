// Problems whose options come in pairs: of what kernels are asked for together, any two stand in one problem at least.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/message.hpp"

namespace tilewise::backends::portable {

/// What a problem has one of, as problem text; empty where that is the default.
using Levels = std::vector<std::string_view>;

/// Rows that hold the number of a level for each factor, such that any two levels of two factors stand in a row
/// together. Drawn greedily: of some random rows the one that has most pairs which no row has had. Of the first
/// `had_factors` factors other rows have all pairs.
class CoveringRows {
 public:
  CoveringRows(const std::vector<Levels>& factors, std::uint64_t seed, std::size_t had_factors = 0) : random_(seed) {
    for (const Levels& levels : factors) {
      first_.push_back(count_);
      count_ += levels.size();
      levels_.push_back(levels.size());
    }
    had_.assign(count_ * count_, false);
    for (std::size_t a = 0; a < levels_.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) {
        if (a >= had_factors) {
          left_ += levels_[a] * levels_[b];
        } else {
          take_all(a, b);
        }
      }
    }
  }

  [[nodiscard]] std::vector<std::vector<std::size_t>> draw() {
    constexpr int kTries = 30;
    std::vector<std::vector<std::size_t>> rows;
    while (left_ > 0) {
      std::vector<std::size_t> best;
      std::size_t most = 0;
      for (int i = 0; i < kTries || most == 0; ++i) {
        std::vector<std::size_t> row = random_row();
        const std::size_t fresh = fresh_pairs(row);
        if (fresh > most) most = fresh, best = std::move(row);
      }
      take(best);
      rows.push_back(std::move(best));
    }
    return rows;
  }

 private:
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(random_() % n); }

  /// Factors in random order, each with the level that adds most pairs to those before it.
  std::vector<std::size_t> random_row() {
    std::vector<std::size_t> order(levels_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[below(i)]);
    std::vector<std::size_t> row(levels_.size());
    for (std::size_t at = 0; at < order.size(); ++at) {
      const std::size_t factor = order[at], start = below(levels_[factor]);
      std::size_t most = 0, best = start;
      for (std::size_t i = 0; i < levels_[factor]; ++i) {
        const std::size_t level = (start + i) % levels_[factor];
        std::size_t fresh = 0;
        for (std::size_t other = 0; other < at; ++other) fresh += !had(factor, level, order[other], row[order[other]]);
        if (fresh > most) most = fresh, best = level;
      }
      row[factor] = best;
    }
    return row;
  }

  std::size_t fresh_pairs(const std::vector<std::size_t>& row) const {
    std::size_t fresh = 0;
    for (std::size_t a = 0; a < row.size(); ++a) {
      for (std::size_t b = 0; b < a; ++b) fresh += !had(a, row[a], b, row[b]);
    }
    return fresh;
  }

  void take(const std::vector<std::size_t>& row) {
    left_ -= fresh_pairs(row);
    for (std::size_t a = 0; a < row.size(); ++a) {
      for (std::size_t b = 0; b < row.size(); ++b) had_[place(a, row[a], b, row[b])] = true;
    }
  }

  void take_all(std::size_t a, std::size_t b) {
    for (std::size_t i = 0; i < levels_[a]; ++i) {
      for (std::size_t j = 0; j < levels_[b]; ++j) had_[place(a, i, b, j)] = had_[place(b, j, a, i)] = true;
    }
  }

  bool had(std::size_t a, std::size_t level_a, std::size_t b, std::size_t level_b) const {
    return had_[place(a, level_a, b, level_b)];
  }
  std::size_t place(std::size_t a, std::size_t level_a, std::size_t b, std::size_t level_b) const {
    return (first_[a] + level_a) * count_ + first_[b] + level_b;
  }

  std::mt19937_64 random_;
  std::vector<std::size_t> levels_, first_;  // of each factor: how many, and the first one's number among all
  std::size_t count_ = 0, left_ = 0;
  std::vector<bool> had_;
};

/// The levels of a row, joined to problem text.
inline std::string text_of(const std::vector<Levels>& factors, const std::vector<std::size_t>& row) {
  std::string text;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const std::string_view level = factors[i][row[i]];
    if (!level.empty()) core::append(text, core::concat(text.empty() ? "" : " ", level));
  }
  return text;
}

inline constexpr std::uint64_t kPairSeed = 20261129;

/// Each level alone. What several spell alike is compiled once.
inline std::vector<std::string> each_alone(const std::vector<Levels>& factors) {
  std::vector<std::string> texts;
  for (const Levels& levels : factors) {
    for (const std::string_view level : levels) {
      if (!level.empty()) texts.emplace_back(level);
    }
  }
  return texts;
}

/// What excludes each other of attention's options, forward and backward.
inline std::vector<Levels> attention_factors() {
  return {{"", "dtype=f16"},
          {"", "layout=thd batch_size=2"},
          {"", "mask=causal", "mask=causal alignment=top_left", "window_left=256 window_right=0",
           "mask=causal window_left=256"},
          {"", "num_heads_k=4"},
          {"", "head_dim_v=64", "head_dim_v=192"},
          {"", "softmax_scale=-0.1"},
          {"", "softcap=30"},
          {"", "alibi_slopes=[h]"},
          {"", "dropout_p=0.1", "dropout_p=0.1 seed_tensor=1"},
          {"", "seqused_q=1"},
          {"", "seqused_k=1"},
          {"", "leftpad_k=1"},
          {"", "batch_invariant=1"},
          {"", "unaligned=1"}};
}
inline std::vector<Levels> forward_factors() {
  std::vector<Levels> factors = attention_factors();
  factors.push_back({"", "bias=f32[b,h,q,k]", "bias=query[b,h,q,k]", "bias=bool[b,h,q,k]"});
  factors.push_back({"", "sink=1", "sink=query"});
  return factors;
}
inline std::vector<Levels> backward_factors() {
  std::vector<Levels> factors = attention_factors();
  factors.push_back(
      {"", "bias=f32[b,h,q,k]", "bias=query[b,h,q,k]", "bias=bool[b,h,q,k]", "bias=query[b,h,q,k] dbias=1"});
  factors.push_back({"", "sink=1", "sink=query", "sink=query dsink=1"});
  factors.push_back({"", "dlse=1"});
  factors.push_back({"", "deterministic=1"});
  return factors;
}

/// Of a step on a KV cache. Rotary tables come with new keys.
inline std::vector<Levels> kv_cache_factors() {
  return {
      {"dtype=bf16", "dtype=f16"},
      {"batch_size=64 seqlen_q=1", "batch_size=2 seqlen_q=1", "batch_size=2 seqlen_q=64"},
      {"num_heads_k=8", "num_heads_k=32"},
      {"head_dim=64", "head_dim=80", "head_dim=96", "head_dim=128", "head_dim=192 head_dim_v=128", "head_dim=256",
       "head_dim=576 head_dim_v=512"},
      {"capacity=16384", "capacity=16384 cache_batch_idx=1", "capacity=16384 cache_leftpad=1",
       "page_size=1 num_pages=4096 max_pages_per_seq=4096", "page_size=16 num_pages=4096 max_pages_per_seq=512",
       "page_size=256 num_pages=4096 max_pages_per_seq=32"},
      {"", "cache_dtype=fp8_e4m3", "cache_dtype=fp8_e4m3 scales=head", "cache_dtype=fp8_e4m3 scales=token"},
      {"", "append=1 seqlen_k_new=1", "append=1 seqlen_k_new=64", "append=1 seqlen_k_new=1 rotary=f32 rotary_dim=32",
       "append=1 seqlen_k_new=64 rotary=query rotary_dim=64 rotary_interleaved=1"},
      {"", "cache_seqlens=1"},
      {"", "mask=causal", "window_left=256 window_right=0"},
      {"", "softmax_scale=-0.1"},
      {"", "softcap=30"},
      {"", "alibi_slopes=[h]"},
      {"", "sink=1", "sink=query"},
      {"", "batch_invariant=1"},
      {"", "unaligned=1"}};
}

/// Functions of scores that look something up for each of them.
inline constexpr std::string_view kScoreMod =
    "score_mod=score+table0[h,clamp(q_idx-kv_idx,-128,128)+128] tables=f32[32,257]";
inline constexpr std::string_view kMaskMod = "mask_mod=table0[b,q_idx]==table0[b,kv_idx] tables=i32[1,4096]";

/// What leaves keys out or changes scores by more than an option does: each of them stands beside any option.
inline Levels sparse_levels() {
  return {"top_k=2048", "block_mask=128x128[b,h]+full", "top_k=512 block_mask=64x128[1,1]", kScoreMod, kMaskMod};
}

/// Of backward factors those that selected keys have: what adds in a fixed order and gradients of a bias are refused.
inline std::vector<Levels> selected_backward_factors() {
  std::vector<Levels> factors = backward_factors();
  for (Levels& levels : factors) {
    std::erase_if(levels, [](std::string_view level) {
      return level == "batch_invariant=1" || level == "deterministic=1" || level.find("dbias=1") != level.npos;
    });
  }
  return factors;
}

}  // namespace tilewise::backends::portable
