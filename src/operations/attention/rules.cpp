// The normal form of a problem, and the options that it states.
#include "operations/attention/rules.hpp"

#include <algorithm>

#include "operations/attention/fields.hpp"

namespace tilewise::operations::attention {
namespace {

/// Half-way cases round up, whatever the caller's rounding mode.
double rounded_dropout(double dropout_p) {
  if (!(dropout_p > 0.0 && dropout_p < 1.0)) return dropout_p;
  return std::min(std::floor(dropout_p * 65536.0 + 0.5), 65535.0) / 65536.0;
}

bool diagonal_matters(const AttentionProblem& p) {
  return p.mask != Mask::none || p.window_left != -1 || p.window_right != -1 || p.alibi_slopes != AlibiKind::none;
}

/// A bias or sink of q's dtype is just f32 where q is.
void normalise_kinds(AttentionProblem& p) {
  if (p.dtype != DType::f32) return;
  if (p.bias == BiasKind::query) p.bias = BiasKind::f32;
  if (p.sink == SinkKind::query) p.sink = SinkKind::f32;
}

/// A dimension of size 1 is broadcast.
void normalise_bias(AttentionProblem& p) {
  const bool given = p.bias != BiasKind::none;
  p.bias_dims.batch &= given && p.batch_size != 1;
  p.bias_dims.head &= given && p.num_heads_q != 1;
  p.bias_dims.query &= given && p.seqlen_q != 1;
  p.bias_dims.key &= given && p.seqlen_k != 1;
  p.bias_unaligned &= p.bias_dims.key;
}

}  // namespace

AttentionOptions stated_options(const AttentionProblem& p) {
  AttentionOptions options;
  options.layout = p.layout;
  for_each_plain_option(options, p, [](auto& option, const auto& field) { option = field; });
  options.softmax_scale = p.softmax_scale;
  if (p.layout == Layout::thd) {
    options.max_seqlen_q = p.seqlen_q;
    options.max_seqlen_k = p.seqlen_k;
  }
  return options;
}

AttentionProblem canonical(AttentionProblem p) {
  if (p.window_right == 0) {
    p.mask = Mask::causal;
    p.window_right = -1;
  }
  if (!diagonal_matters(p)) p.alignment = Alignment::bottom_right;
  p.dropout_p = rounded_dropout(p.dropout_p);
  if (p.dropout_p == 0.0) p.seed_tensor = false;
  if (p.out_dtype == default_out_dtype(p.dtype)) p.out_dtype = DType::none;
  normalise_kinds(p);
  normalise_bias(p);
  normalise_score_functions(p);
  if (p.device == DeviceType::cpu) p.unaligned = p.bias_unaligned = false;
  p.clear_rest &= p.layout == Layout::thd;
  if (p.operation == Operation::attention_forward) p.deterministic = false;  // the forward pass always is
  return p;
}

}  // namespace tilewise::operations::attention
