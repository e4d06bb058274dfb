// The one list of an attention problem's fields, by which problem text, hash and the checks of other lists go, and the
// one list of the options that a call states them by.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "core/problem_text.hpp"
#include "core/tensor_checks.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::operations::attention {

/// Kind and dimensions of a bias are one word: none, or e.g. f32[b,1,q,k].
struct BiasWord {
  BiasKind kind = BiasKind::none;
  BiasDims dims{};
  friend bool operator==(const BiasWord&, const BiasWord&) = default;
};

inline void print_value(std::string& text, const BiasWord& bias) {
  const BiasDims& d = bias.dims;
  core::append(text, core::name_of(bias.kind));
  for (const char c :
       {'[', d.batch ? 'b' : '1', ',', d.head ? 'h' : '1', ',', d.query ? 'q' : '1', ',', d.key ? 'k' : '1', ']'}) {
    core::append(text, c);
  }
}

inline void read_word(std::string_view key, std::string_view word, BiasWord& value) {
  value = {};
  if (word == core::name_of(BiasKind::none)) return;
  const std::size_t bracket = std::min(word.find('['), word.size());
  const std::string_view dims = word.substr(bracket);
  constexpr std::string_view kFull = "[b,h,q,k]";
  const auto fits = [&](std::size_t i) { return dims[i] == kFull[i] || (i % 2 == 1 && dims[i] == '1'); };
  bool good = dims.size() == kFull.size();
  for (std::size_t i = 0; good && i < kFull.size(); ++i) good = fits(i);
  if (!good) {
    core::invalid_argument(
        key, ": must be none or f32, query or bool followed by [b,h,q,k], with 1 for a broadcast one (got ",
        core::quoted(word), ")");
  }
  value = {core::value_of<BiasKind>(key, word.substr(0, bracket)),
           {dims[1] == 'b', dims[3] == 'h', dims[5] == 'q', dims[7] == 'k'}};
}

inline void add_to(core::Hasher& hasher, const BiasWord& bias) {
  hasher.add(bias.kind);
  for (const bool dim : {bias.dims.batch, bias.dims.head, bias.dims.query, bias.dims.key}) hasher.add(dim);
}

/// Tables are one word: none, or e.g. f32[16,128],i32[64].
struct TablesWord {
  std::vector<TableShape> tables;
  friend bool operator==(const TablesWord&, const TablesWord&) = default;
};

void print_value(std::string& text, const TablesWord& word);
void read_word(std::string_view key, std::string_view word, TablesWord& value);
void add_to(core::Hasher& hasher, const TablesWord& word);

[[nodiscard]] inline std::int64_t saturating_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::int64_t>::max() : product;
}

/// mask=causal_top_left is short for mask=causal alignment=top_left.
inline void expand(core::Words& words) {
  std::string_view* mask = words.find("mask");
  if (mask == nullptr || *mask != "causal_top_left") return;
  *mask = core::name_of(Mask::causal);
  const std::string_view top_left = core::name_of(Alignment::top_left);
  const auto given = words.take("alignment");
  if (given && *given != top_left) {
    core::invalid_argument("alignment: must be top_left with mask=causal_top_left (got ", core::quoted(*given), ")");
  }
  words.add("alignment", top_left);
}

/// See core/problem_text.hpp. The operation itself is a text's first word.
template <typename Visit>
void for_each_field(AttentionProblem& p, Visit&& visit) {
  using core::kRequired;
  const AttentionProblem fresh;
  visit("device", p.device, fresh.device);
  visit("dtype", p.dtype, fresh.dtype);
  visit("out_dtype", p.out_dtype, fresh.out_dtype);
  visit("layout", p.layout, fresh.layout);
  const bool packed = p.layout == Layout::thd;
  visit("batch_size", p.batch_size, fresh.batch_size);
  visit(packed ? "max_seqlen_q" : "seqlen_q", p.seqlen_q, kRequired);
  visit(packed ? "max_seqlen_k" : "seqlen_k", p.seqlen_k, p.seqlen_q);
  if (packed) visit("total_q", p.total_q, saturating_product(p.batch_size, p.seqlen_q));
  if (packed) visit("total_k", p.total_k, saturating_product(p.batch_size, p.seqlen_k));
  visit("num_heads_q", p.num_heads_q, fresh.num_heads_q);
  visit("num_heads_k", p.num_heads_k, p.num_heads_q);
  visit("head_dim", p.head_dim, kRequired);
  visit("head_dim_v", p.head_dim_v, p.head_dim);
  visit("mask", p.mask, fresh.mask);
  visit("alignment", p.alignment, fresh.alignment);
  visit("window_left", p.window_left, fresh.window_left);
  visit("window_right", p.window_right, fresh.window_right);
  visit("softmax_scale", p.softmax_scale, default_softmax_scale(p.head_dim));
  visit("softcap", p.softcap, fresh.softcap);
  BiasWord bias{p.bias, p.bias_dims};
  visit("bias", bias, BiasWord{});
  p.bias = bias.kind;
  p.bias_dims = bias.dims;
  visit("alibi_slopes", p.alibi_slopes, fresh.alibi_slopes);
  visit("sink", p.sink, fresh.sink);
  visit("dropout_p", p.dropout_p, fresh.dropout_p);
  visit("seed_tensor", p.seed_tensor, fresh.seed_tensor);
  visit("seqused_q", p.seqused_q, fresh.seqused_q);
  visit("seqused_k", p.seqused_k, fresh.seqused_k);
  visit("leftpad_k", p.leftpad_k, fresh.leftpad_k);
  visit("q_scale", p.q_scale, fresh.q_scale);
  visit("k_scale", p.k_scale, fresh.k_scale);
  visit("v_scale", p.v_scale, fresh.v_scale);
  visit("softmax_lse", p.softmax_lse, fresh.softmax_lse);
  visit("dlse", p.dlse, fresh.dlse);
  visit("dq", p.dq, fresh.dq);
  visit("dk", p.dk, fresh.dk);
  visit("dv", p.dv, fresh.dv);
  visit("dbias", p.dbias, fresh.dbias);
  visit("dsink", p.dsink, fresh.dsink);
  visit("deterministic", p.deterministic, fresh.deterministic);
  visit("batch_invariant", p.batch_invariant, fresh.batch_invariant);
  visit("clear_rest", p.clear_rest, fresh.clear_rest);
  visit("unaligned", p.unaligned, fresh.unaligned);
  visit("bias_unaligned", p.bias_unaligned, fresh.bias_unaligned);
  visit("score_mod", p.score_mod, fresh.score_mod);
  visit("mask_mod", p.mask_mod, fresh.mask_mod);
  TablesWord tables{p.tables};
  visit("tables", tables, TablesWord{});
  p.tables = tables.tables;
}

/// Throws for a word that is no key of problems like `problem`, with what was probably meant.
[[noreturn]] void refuse_key(std::string_view key, const AttentionProblem& problem);

// ---- Options ---------------------------------------------------------------------------------

// Structured bindings name every member, so that a new one does not compile until it is looked at here.

/// Calls tensor(name, view, access) for the tensors among the options, given or not, and plain(option, field) for
/// every option that the problem has a field of. The others have rules of their own: the layout and the packed maxima
/// are shapes, softmax_scale has a default, scales are a tensor or a number, seed and offset no problem depends on. `p`
/// may be other options too.
template <typename Options, typename Problem, typename Tensor, typename Plain>
void for_each_option(Options& options, Problem& p, const Tensor& tensor, const Plain& plain) {
  using enum core::Access;
  [[maybe_unused]] auto& [layout, mask, alignment, window_left, window_right, softmax_scale, softcap, dropout_p, seed,
                          offset, seed_and_offset, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, max_seqlen_q,
                          max_seqlen_k, seqused_q, seqused_k, leftpad_k, q_scale, k_scale, v_scale, q_scale_value,
                          k_scale_value, v_scale_value, deterministic, batch_invariant, clear_rest, score_mod, mask_mod,
                          tables] = options;
  plain(mask, p.mask);
  plain(alignment, p.alignment);
  plain(window_left, p.window_left);
  plain(window_right, p.window_right);
  plain(softcap, p.softcap);
  plain(dropout_p, p.dropout_p);
  plain(deterministic, p.deterministic);
  plain(batch_invariant, p.batch_invariant);
  plain(clear_rest, p.clear_rest);
  plain(score_mod, p.score_mod);
  plain(mask_mod, p.mask_mod);
  tensor("seed_and_offset", seed_and_offset, read);
  tensor("bias", bias, read);
  tensor("alibi_slopes", alibi_slopes, read);
  tensor("sink", sink, read);
  tensor("cu_seqlens_q", cu_seqlens_q, read);
  tensor("cu_seqlens_k", cu_seqlens_k, read);
  tensor("seqused_q", seqused_q, read);
  tensor("seqused_k", seqused_k, read);
  tensor("leftpad_k", leftpad_k, read);
  tensor("q_scale", q_scale, read);
  tensor("k_scale", k_scale, read);
  tensor("v_scale", v_scale, read);
  for (std::size_t i = 0; i < tables.size(); ++i) tensor(table_name(i), tables[i], read);
}

template <typename Options, typename Visit>
void for_each_option_tensor(Options& options, const Visit& visit) {
  for_each_option(options, options, visit, [](auto&, auto&) {});
}

template <typename Options, typename Problem, typename Visit>
void for_each_plain_option(Options& options, Problem& problem, const Visit& visit) {
  for_each_option(options, problem, [](auto&&...) {}, visit);
}

}  // namespace tilewise::operations::attention
