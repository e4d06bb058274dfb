// The normal form and the hash of a Problem.
#include "tilewise/problem.hpp"

#include <algorithm>
#include <bit>

#include "core/problem_rules.hpp"

namespace tilewise {
namespace core {
namespace {

/// Feeds 64-bit words to a multiply-and-fold hash: a few cycles a word.
class Hasher {
 public:
  void add(std::int64_t value) {
    state_ = (state_ ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15u;
    state_ ^= state_ >> 32;
  }
  /// Adding zero turns -0.0 into 0.0: equal values hash equally.
  void add(double value) { add(std::bit_cast<std::int64_t>(value + 0.0)); }
  /// Packs small values (enumerations, flags) into one word, `bits` each.
  template <typename... Values>
  void add_packed(int bits, Values... values) {
    std::uint64_t word = 0;
    ((word = word << bits | static_cast<std::uint64_t>(values)), ...);
    add(static_cast<std::int64_t>(word));
  }
  [[nodiscard]] std::size_t value() const { return static_cast<std::size_t>(state_); }

 private:
  std::uint64_t state_ = 0x243F6A8885A308D3u;
};

/// Half-way cases round up, whatever the caller's rounding mode.
double rounded_dropout(double dropout_p) {
  if (!(dropout_p > 0.0 && dropout_p < 1.0)) return dropout_p;
  return std::min(std::floor(dropout_p * 65536.0 + 0.5), 65535.0) / 65536.0;
}

bool diagonal_matters(const Problem& p) {
  return p.mask != Mask::none || p.window_left != -1 || p.window_right != -1 || p.alibi_slopes != AlibiKind::none;
}

/// A bias or sink of q's dtype is just f32 where q is.
void normalise_kinds(Problem& p) {
  if (p.dtype != DType::f32) return;
  if (p.bias == BiasKind::query) p.bias = BiasKind::f32;
  if (p.sink == SinkKind::query) p.sink = SinkKind::f32;
}

/// A dimension of size 1 is broadcast.
void normalise_bias(Problem& p) {
  const bool given = p.bias != BiasKind::none;
  p.bias_dims.batch &= given && p.batch_size != 1;
  p.bias_dims.head &= given && p.num_heads_q != 1;
  p.bias_dims.query &= given && p.seqlen_q != 1;
  p.bias_dims.key &= given && p.seqlen_k != 1;
}

}  // namespace

AttentionOptions stated_options(const Problem& p) {
  AttentionOptions options;
  options.layout = p.layout;
  options.mask = p.mask;
  options.alignment = p.alignment;
  options.window_left = p.window_left;
  options.window_right = p.window_right;
  options.softmax_scale = p.softmax_scale;
  options.softcap = p.softcap;
  options.dropout_p = p.dropout_p;
  options.deterministic = p.deterministic;
  options.batch_invariant = p.batch_invariant;
  if (p.layout == Layout::thd) {
    options.max_seqlen_q = p.seqlen_q;
    options.max_seqlen_k = p.seqlen_k;
  }
  return options;
}

Problem canonical(Problem p) {
  if (p.window_right == 0) {
    p.mask = Mask::causal;
    p.window_right = -1;
  }
  if (!diagonal_matters(p)) p.alignment = Alignment::bottom_right;
  p.dropout_p = rounded_dropout(p.dropout_p);
  if (p.dropout_p == 0.0) p.seed_tensor = false;
  normalise_kinds(p);
  normalise_bias(p);
  if (p.device == DeviceType::cpu) p.unaligned = false;
  if (p.operation == Operation::attention_forward) p.deterministic = false;  // the forward pass always is
  return p;
}

}  // namespace core

std::size_t hash_value(const Problem& p) noexcept {
  core::Hasher hash;
  hash.add_packed(8, p.operation, p.dtype, p.device, p.layout, p.mask, p.alignment, p.bias, p.alibi_slopes);
  hash.add_packed(1, p.seed_tensor, p.bias_dims.batch, p.bias_dims.head, p.bias_dims.query, p.bias_dims.key,
                  p.sink != SinkKind::none, p.sink == SinkKind::query, p.seqused_q, p.seqused_k, p.leftpad_k,
                  p.softmax_lse, p.dlse, p.dq, p.dk, p.dv, p.dbias, p.dsink, p.deterministic, p.batch_invariant,
                  p.unaligned);
  for (const std::int64_t value : {p.batch_size, p.seqlen_q, p.seqlen_k, p.total_q, p.total_k, p.num_heads_q,
                                   p.num_heads_k, p.head_dim, p.head_dim_v, p.window_left, p.window_right}) {
    hash.add(value);
  }
  for (const double value : {p.softmax_scale, p.softcap, p.dropout_p}) hash.add(value);
  return hash.value();
}

}  // namespace tilewise
