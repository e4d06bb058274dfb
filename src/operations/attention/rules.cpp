// The normal form of a problem, the options that it states, and what the shapes of two tensors say.
#include "operations/attention/rules.hpp"

#include <algorithm>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "operations/attention/schema.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/block_mask.hpp"
#include "operations/derived/shapes.hpp"

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

void note_bias_dims(AttentionProblem& p, const TensorView& bias) {
  if (bias.rank > 4) {
    core::invalid_argument("bias: rank must be <= 4, [batch_size, num_heads_q, seqlen_q, seqlen_k] (got ", bias.rank,
                           ")");
  }
  // Dimensions are aligned from the right; missing ones are broadcast.
  const auto has = [&](int axis, std::string_view name, std::int64_t whole) {
    const int own = axis - (4 - bias.rank);
    const std::int64_t size = own < 0 ? 1 : core::size_at(bias, own);
    if (size != 1 && size != whole) {
      core::invalid_argument("bias: dimension ", own, " must be 1 or ", name, " = ", whole, " (got ", size, ", shape ",
                             tilewise::describe(bias), ")");
    }
    return size != 1;
  };
  p.bias_dims = {has(0, "batch_size", p.batch_size), has(1, "num_heads_q", p.num_heads_q),
                 has(2, kBiasQueries.name_in(p), p.seqlen_q), has(3, kBiasKeys.name_in(p), p.seqlen_k)};
}

ScaleKind scale_kind_of(const TensorView& scale, std::int64_t heads) {
  if (scale.rank == 0 || (scale.rank == 1 && scale.shape[0] == 1 && heads != 1)) return ScaleKind::tensor;
  return scale.rank == 1 ? ScaleKind::head : ScaleKind::batch_head;
}

AttentionOptions stated_options(const AttentionProblem& p) {
  const auto nothing = [](std::size_t, std::size_t) { return TensorView(); };
  return schema::arguments_of<kSchema, ForwardArguments>(p, nothing).options;
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
  normalise_block_mask(p);
  if (p.dtables == 0) {
    normalise_score_functions(p);
  } else {  // a table of which a gradient is wanted stays, whatever functions do
    (void)normalise_texts(p.score_mod, p.mask_mod, p.tables);
  }
  normalise_selected_keys(p);
  if (p.device == DeviceType::cpu) p.unaligned = p.bias_unaligned = false;
  p.clear_rest &= p.layout == Layout::thd;
  if (p.operation == Operation::attention_forward) p.deterministic = false;  // the forward pass always is
  return p;
}

}  // namespace tilewise::operations::attention
