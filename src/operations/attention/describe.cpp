// Tensors and options to a Problem: what the schema does not say of them, which is what they say together.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "core/message.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/layout_advice.hpp"
#include "operations/attention/lengths.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/attention/validate.hpp"
#include "operations/derived/describe.hpp"
#include "operations/layout.hpp"

namespace tilewise::operations::attention {
namespace {

using core::invalid_argument, core::size_at;

constexpr std::string_view kAnchor = "q";  // its device is the call's

/// C's callers may have given any number.
void check_names(const AttentionOptions& o) {
  (void)core::value_at<Layout>("layout", static_cast<std::int64_t>(o.layout));
  (void)core::value_at<Mask>("mask", static_cast<std::int64_t>(o.mask));
  (void)core::value_at<Alignment>("alignment", static_cast<std::int64_t>(o.alignment));
}

/// Heads that do not go together are nearly always a wrong layout, which shapes of other tensors would hide.
void check_heads(const Call& call, AttentionProblem& p) {
  const Axes axes = axes_of(p.layout);
  const TensorView &q = call.one("q"), &k = call.one("k");
  if (q.rank != axes.rank() || k.rank != axes.rank()) return;  // the schema says so
  p.num_heads_q = size_at(q, axes.head);
  p.num_heads_k = size_at(k, axes.head);
  validate_head_counts(p);
}

/// The number that a call states, or else the longest sequence, where the host can read them.
std::int64_t packed_max(const TensorView& cu_seqlens, std::string_view name, const TensorView& rows,
                        const std::optional<std::int64_t>& given, std::string_view given_name) {
  if (rows.device.type != DeviceType::cpu) {
    if (!given) invalid_argument(given_name, ": must be given, since the host can't read ", name);
    return *given;
  }
  core::check_view(cu_seqlens, name, rows.device, kAnchor);
  core::check_dtype(cu_seqlens, name, DType::i32);
  core::check_rank(cu_seqlens, name, 1, "[batch_size + 1]");
  core::check_contiguous_last(cu_seqlens, name);
  if (cu_seqlens.shape[0] < 1) invalid_argument(name, ": must have batch_size + 1 >= 1 elements (got 0)");
  const std::int64_t longest = check_cu_seqlens(cu_seqlens, name, rows.shape[0], given, given_name);
  return given.value_or(longest);
}

/// What shapes of other tensors depend on.
void note_packed_lengths(const Call& call, AttentionProblem& p) {
  const AttentionOptions& o = call.options;
  const TensorView &q = call.one("q"), &k = call.one("k");
  if (q.rank != 3 || k.rank != 3) return;  // the schema says so
  if (!o.cu_seqlens_q.defined()) invalid_argument("cu_seqlens_q: must be given with layout=thd (got none)");
  if (!o.cu_seqlens_k.defined()) invalid_argument("cu_seqlens_k: must be given with layout=thd (got none)");
  p.seqlen_q = packed_max(o.cu_seqlens_q, "cu_seqlens_q", q, o.max_seqlen_q, "max_seqlen_q");
  p.seqlen_k = packed_max(o.cu_seqlens_k, "cu_seqlens_k", k, o.max_seqlen_k, "max_seqlen_k");
  if (o.cu_seqlens_q.rank == 1) p.batch_size = o.cu_seqlens_q.shape[0] - 1;
}

void note_scale(ScaleKind& kind, const std::optional<double>& number, std::string_view name) {
  if (!number) return;
  if (!is_scale(*number)) invalid_argument(name, ": must be positive and finite in f32 (got ", *number, ")");
  kind = ScaleKind::tensor;
}

/// What a call states, and what its tensors say beyond what each says by itself.
AttentionProblem begun(const Call& call) {
  const AttentionOptions& o = call.options;
  AttentionProblem p = call.stated();
  const TensorView& q = call.one("q");
  const auto operation = call.backward() ? Operation::attention_backward : Operation::attention_forward;
  if (q.defined()) validate_dtype(operation, q.dtype, q.device.type);
  check_heads(call, p);
  if (is_packed(p)) note_packed_lengths(call, p);
  note_scale(p.q_scale, o.q_scale_value, "q_scale");
  note_scale(p.k_scale, o.k_scale_value, "k_scale");
  note_scale(p.v_scale, o.v_scale_value, "v_scale");
  return p;
}

void check_options(const AttentionOptions& o, const AttentionProblem& p) {
  if (!is_packed(p)) {
    if (o.max_seqlen_q) invalid_argument("max_seqlen_q: requires layout=thd");
    if (o.max_seqlen_k) invalid_argument("max_seqlen_k: requires layout=thd");
  }
  if (o.seed_and_offset.defined() && (o.seed != 0 || o.offset != 0)) {
    invalid_argument("seed_and_offset: excludes seed and offset (got seed ", o.seed, ", offset ", o.offset, ")");
  }
}

void describe_tables(const Call& call, AttentionProblem& p) {
  const auto& tables = call.options.tables;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    core::check_view(tables[i], table_name(i), call.one("q").device, kAnchor);
    p.tables.push_back(table_shape_of(tables[i], table_name(i)));
  }
  if (call.backward()) p.dtables = described_table_gradients(call.options, call.one("q").device);
}

/// Whether TMA can load parts of the bias: rows on 16 bytes, keys side by side, and rows in their order.
bool comes_in_boxes(const TensorView& bias) {
  bool fits = core::rows_start_on_16_bytes(bias) && bias.strides[static_cast<std::size_t>(bias.rank - 1)] == 1;
  for (int axis = 0; axis + 1 < bias.rank; ++axis)
    fits = fits && (size_at(bias, axis) == 1 || core::stride_at(bias, axis) >= 0);
  return fits;
}

AttentionProblem described(const Call& call) {
  const AttentionOptions& o = call.options;
  AttentionProblem p = schema::Describer(call, begun(call)).describe();
  if (!p.softmax_lse && call.backward()) invalid_argument("softmax_lse: must be given");
  check_options(o, p);
  p.softmax_scale = o.softmax_scale.value_or(default_softmax_scale(p.head_dim));
  describe_tables(call, p);
  p.block_mask =
      described_block_mask(o.block_mask, o.block_rows, o.block_keys, blocked_scores(p), call.one("q").device);
  if (o.bias.defined() && p.device != DeviceType::cpu) p.bias_unaligned = p.bias_dims.key && !comes_in_boxes(o.bias);
  if (p.device == DeviceType::cpu) check_used_lengths(o, p);
  return canonical(std::move(p));
}

}  // namespace

AttentionProblem describe(const Call& call) {
  check_names(call.options);
  try {
    return described(call);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_argument) throw;
    const std::string advice = layout_advice(call.options.layout, call.one("q"), call.one("k"), call.one("v"),
                                             call.options.cu_seqlens_q.defined());
    if (advice.empty()) throw;
    throw Error(error.code(), error.what() + advice);
  }
}

}  // namespace tilewise::operations::attention
