// The features of `tilewise verify --report` and a problem for each.
#include "report_features.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string_view>

namespace tilewise::tools {
namespace {

/// What a row of the table adds to the base problem, or sets anew.
struct FeatureRow {
  std::string_view name, words;
  bool forward = true, backward = true;
  bool some_gpus = false;  // see FeatureProblem
};

constexpr std::string_view kBase = "batch_size=2 seqlen_q=70 seqlen_k=150 num_heads_q=4 num_heads_k=2";
constexpr std::string_view kHeadDim = "head_dim=64";
constexpr std::string_view kPacked =
    "layout=thd batch_size=3 max_seqlen_q=70 max_seqlen_k=150 total_q=160 total_k=300 num_heads_q=4 num_heads_k=2";

constexpr std::array<FeatureRow, 43> kRows{{
    {"bf16", "dtype=bf16"},
    {"f16", "dtype=f16"},
    {"layout sbhd", "layout=sbhd"},
    {"layout bhsd", "layout=bhsd"},
    {"packed", "layout=thd"},
    {"packed causal", "layout=thd mask=causal"},
    {"equal heads", "num_heads_k=4"},
    {"multi-query", "num_heads_k=1"},
    {"head_dim 128", "head_dim=128"},
    {"head_dim 256", "head_dim=256"},
    {"head_dim 80", "head_dim=80"},
    {"head_dim 33", "head_dim=33"},
    {"head_dim_v", "head_dim=96 head_dim_v=64"},
    {"causal", "mask=causal"},
    {"causal top_left", "mask=causal alignment=top_left"},
    {"window", "window_left=40 window_right=9"},
    {"softmax_scale negative", "softmax_scale=-0.2"},
    {"softcap", "softcap=2.5"},
    {"bias f32", "bias=f32[b,h,q,k]"},
    {"bias of q's dtype", "bias=query[1,h,q,k]"},
    {"bias bool", "bias=bool[b,1,q,k]"},
    {"dbias", "bias=f32[1,h,q,k] dbias=1", false},
    {"alibi", "alibi_slopes=[h] mask=causal"},
    {"sink", "sink=1"},
    {"sink of q's dtype", "sink=query"},
    {"dsink", "sink=1 dsink=1", false},
    {"dsink of q's dtype", "sink=query dsink=1", false},
    {"dropout", "dropout_p=0.25"},
    {"dropout, seed tensor", "dropout_p=0.25 seed_tensor=1"},
    {"seqused, leftpad", "seqused_q=1 seqused_k=1 leftpad_k=1"},
    {"gradient of lse", "dlse=1", false},
    {"deterministic", "deterministic=1", false},
    {"batch_invariant", "batch_invariant=1"},
    {"packed, rest cleared", "layout=thd clear_rest=1"},
    {"score_mod", "score_mod=4.0*tanh(score/4.0)+table0[h]*kv_idx tables=f32[4]"},
    {"mask_mod", "mask_mod=(q_idx-kv_idx)%3!=1"},
    {"block_mask", "block_mask=32x48[b,h]+full mask_mod=(q_idx-kv_idx)%3!=1"},
    {"key_indices", "top_k=40 key_indices_per_head=1 mask=causal"},
    {"decode, split keys", "seqlen_q=1 seqlen_k=3000", true, false},
    {"unaligned rows", "head_dim=63"},
    {"fp8", "dtype=fp8_e4m3", true, false, true},
    {"fp8, scales of heads", "dtype=fp8_e4m3 q_scale=head k_scale=head v_scale=head mask=causal", true, false, true},
    {"fp8, scales of batch and head",
     "dtype=fp8_e4m3 seqlen_q=5 q_scale=batch_head k_scale=batch_head v_scale=tensor out_dtype=f16", true, false, true},
}};

/// One text of several, where a later word stands in for an earlier one of the same key.
std::string merged_words(std::initializer_list<std::string_view> texts) {
  std::vector<std::string> words;
  for (std::string_view text : texts) {
    while (!text.empty()) {
      const std::size_t end = std::min(text.find(' '), text.size());
      const std::string word(text.substr(0, end));
      text.remove_prefix(std::min(end + 1, text.size()));
      const std::string key = word.substr(0, word.find('=') + 1);
      if (!key.empty()) std::erase_if(words, [&key](const std::string& other) { return other.starts_with(key); });
      words.push_back(word);
    }
  }
  std::string merged;
  for (const std::string& word : words) merged += (merged.empty() ? "" : " ") + word;
  return merged;
}

std::string attention_text(const FeatureRow& row, bool backward) {
  const bool packed = row.words.find("layout=thd") != std::string_view::npos;
  return merged_words({backward ? "attention_backward" : "attention_forward", "dtype=bf16", packed ? kPacked : kBase,
                       kHeadDim, row.words});
}

/// A row of the KV cache step: a call, where its cache lies, and what the row is about.
struct StepRow {
  std::string_view name, call, cache, words;
};

constexpr std::string_view kStep =
    "kv_cache_attention dtype=bf16 batch_size=3 seqlen_q=2 num_heads_q=8 num_heads_k=2 head_dim=64 cache_seqlens=1";
constexpr std::string_view kMixed =
    "kv_cache_attention dtype=bf16 layout=thd batch_size=4 total_q=80 max_seqlen_q=60 num_heads_q=8 num_heads_k=2 "
    "head_dim=64 cache_seqlens=1 append=1 total_k_new=80 max_seqlen_k_new=60";
constexpr std::string_view kMla =
    "kv_cache_attention dtype=bf16 mla=1 batch_size=2 num_heads_q=16 num_heads_k=1 head_dim=576 head_dim_v=512 "
    "cache_seqlens=1 append=1";
constexpr std::string_view kAppend = "append_kv dtype=bf16 batch_size=3 seqlen_k_new=5 num_heads_k=2 head_dim=64";
constexpr std::string_view kPages = "page_size=16 num_pages=60 max_pages_per_seq=12",
                           kSlots = "page_size=16 num_pages=60";
constexpr std::string_view kPlain = "capacity=150";

constexpr std::array<StepRow, 30> kStepRows{{
    {"pages of 16", kStep, kPages, "softmax_lse=1"},
    {"pages of 16, f16", kStep, kPages, "dtype=f16"},
    {"pages of 1", kStep, "page_size=1 num_pages=300 max_pages_per_seq=90", ""},
    {"pages of 3", kStep, "page_size=3 num_pages=90 max_pages_per_seq=30", ""},
    {"pages of 256", kStep, "page_size=256 num_pages=3 max_pages_per_seq=1", ""},
    {"contiguous cache", kStep, kPlain, ""},
    {"cache_batch_idx, cache_leftpad", kStep, kPlain, "batch_size_cache=5 cache_batch_idx=1 cache_leftpad=1"},
    {"append and attend", kStep, kPages, "append=1 mask=causal"},
    {"fp8, one scale", kStep, kPages, "cache_dtype=fp8_e4m3 append=1"},
    {"fp8, scales of heads", kStep, kPlain, "cache_dtype=fp8_e4m3 append=1 scales=head"},
    {"fp8, scales of batch and head", kStep, kPages, "cache_dtype=fp8_e4m3 append=1 scales=batch_head"},
    {"fp8, scales of tokens", kStep, kPages, "cache_dtype=fp8_e4m3 append=1 scales=token"},
    {"rotary embedding", kStep, kPages, "append=1 rotary_dim=64 mask=causal"},
    {"rotary, interleaved", kStep, kPlain,
     "append=1 rotary_dim=24 rotary=query rotary_offset=5 rotary_interleaved=1 rotary_seqlens=1"},
    {"prefill beside decode", kMixed, kPages, "mask=causal"},
    {"cache: window, softcap, alibi", kStep, kPages, "window_left=20 window_right=3 softcap=5 alibi_slopes=[h]"},
    {"cache: sink", kStep, kPages, "sink=1 mask=causal softmax_lse=1"},
    {"cache: score_mod, mask_mod", kStep, kPages,
     "score_mod=score-table0[h]*abs(q_idx-kv_idx) mask_mod=(q_idx-kv_idx)%3!=1 tables=f32[8]"},
    {"cache: block_mask", kStep, kPages, "block_mask=32x48[b,h]+full mask_mod=(q_idx-kv_idx)%3!=1"},
    {"cache: key_indices", kStep, kPages, "top_k=40 softmax_lse=1"},
    {"cache: softmax_scale negative", kStep, kPages, "softmax_scale=-0.2"},
    {"num_splits", kStep, kPages, "num_splits=5 softmax_lse=1"},
    {"cache: batch_invariant", kStep, kPages, "batch_invariant=1"},
    {"MLA, decode", kMla, kPages, "seqlen_q=1"},
    {"MLA, prefill", kMla, kPages, "seqlen_q=40 mask=causal"},
    {"MLA, fp8", kMla, kPages, "seqlen_q=1 cache_dtype=fp8_e4m3"},
    {"head_dim 192, values 128", kStep, kPages, "head_dim=192 head_dim_v=128 append=1"},
    {"append alone", kAppend, kPages, "cache_seqlens=1"},
    {"append by slots", kAppend, kSlots, "slots=i32"},
    {"append by slots, fp8", kAppend, kSlots, "slots=i64 cache_dtype=fp8_e4m3 scales=token"},
}};

}  // namespace

std::vector<FeatureProblem> feature_table() {
  std::vector<FeatureProblem> table;
  for (const FeatureRow& row : kRows) {
    if (row.forward) table.push_back({std::string(row.name), "forward", attention_text(row, false), row.some_gpus});
    if (row.backward) table.push_back({std::string(row.name), "backward", attention_text(row, true), row.some_gpus});
  }
  for (const StepRow& row : kStepRows) {
    const char* pass = row.call == kAppend ? "append" : "step";
    table.push_back({std::string(row.name), pass, merged_words({row.call, row.cache, row.words}), false});
  }
  return table;
}

}  // namespace tilewise::tools
