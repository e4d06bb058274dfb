// The limits of every field of a Problem and the fields that exclude each other.
#include "operations/attention/validate.hpp"

#include <limits>

#include "core/message.hpp"
#include "core/taken_dtypes.hpp"
#include "operations/attention/block_mask.hpp"
#include "operations/attention/factors.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/selected_keys.hpp"

namespace tilewise::operations::attention {
namespace {

using core::concat, core::invalid_argument, core::invalid_type;

constexpr std::int64_t kMaxInt32 = std::numeric_limits<std::int32_t>::max();
constexpr std::int64_t kMaxHeadDim = 576;
constexpr std::int64_t kMaxHeadDimV = 512;

void check_range(std::string_view field, std::int64_t value, std::int64_t low, std::int64_t high) {
  if (value < low) invalid_argument(field, " must be >= ", low, " (got ", value, ")");
  if (value > high) invalid_argument(field, " must be <= ", high, " (got ", value, ")");
}

/// Elements times bytes of a tensor must stay below 2^63.
void check_bytes(std::string_view name, std::initializer_list<std::int64_t> sizes, std::size_t element) {
  auto bytes = static_cast<std::int64_t>(element);
  bool overflow = false;
  for (const std::int64_t size : sizes) {
    if (size == 0) return;
    overflow |= __builtin_mul_overflow(bytes, size, &bytes);
  }
  if (!overflow) return;
  std::string product;
  for (const std::int64_t size : sizes) product += concat(product.empty() ? "" : " * ", size);
  invalid_argument(name, ": must have less than 2^63 bytes (got ", product, " elements of ", element, " bytes)");
}

void validate_lengths(const AttentionProblem& p) {
  if (p.layout == Layout::thd) {
    check_range("max_seqlen_q:", p.seqlen_q, 0, kMaxInt32);
    check_range("max_seqlen_k:", p.seqlen_k, 0, kMaxInt32);
    check_range("q: total_q", p.total_q, 0, kMaxInt32);
    check_range("k: total_k", p.total_k, 0, kMaxInt32);
    return;
  }
  check_range("q: seqlen_q", p.seqlen_q, 0, kMaxInt32);
  check_range("k: seqlen_k", p.seqlen_k, 0, kMaxInt32);
  if (p.total_q != 0) invalid_argument("total_q: requires layout=thd (got ", p.total_q, ")");
  if (p.total_k != 0) invalid_argument("total_k: requires layout=thd (got ", p.total_k, ")");
}

void validate_heads(const AttentionProblem& p) {
  validate_head_counts(p);
  // Both factors are below 2^31 here. Dropout counts (batch, head) pairs in 32 bits.
  if (p.batch_size * p.num_heads_q > kMaxInt32) {
    invalid_argument("q: batch_size * num_heads_q must be <= ", kMaxInt32, " (got ", p.batch_size, " * ", p.num_heads_q,
                     ")");
  }
  check_range("q: head_dim", p.head_dim, 1, kMaxHeadDim);
  check_range("v: head_dim_v", p.head_dim_v, 1, kMaxHeadDimV);
}

void validate_sizes(const AttentionProblem& p) {
  const bool packed = p.layout == Layout::thd;
  const std::size_t element = size_of(p.dtype);
  const std::int64_t batch = packed ? 1 : p.batch_size;
  const std::int64_t rows_q = packed ? p.total_q : p.seqlen_q, rows_k = packed ? p.total_k : p.seqlen_k;
  check_bytes("q", {batch, rows_q, p.num_heads_q, p.head_dim}, element);
  check_bytes("k", {batch, rows_k, p.num_heads_k, p.head_dim}, element);
  check_bytes("v", {batch, rows_k, p.num_heads_k, p.head_dim_v}, element);
  check_bytes("out", {batch, rows_q, p.num_heads_q, p.head_dim_v}, size_of(out_dtype_of(p)));
  check_bytes("softmax_lse", {batch, p.num_heads_q, rows_q}, size_of(statistics_dtype(p.dtype)));
  const auto [bias_batch, bias_heads, bias_rows, bias_keys] = bias_shape(p);
  check_bytes("bias", {bias_batch, bias_heads, bias_rows, bias_keys}, size_of(bias_dtype(p)));
}

/// What goes with q, k and v in fp8 alone, and what does not.
void validate_fp8(const AttentionProblem& p) {
  const DType out = out_dtype_of(p);
  if (p.dtype != DType::fp8_e4m3) {
    if (out != p.dtype) {
      invalid_type("out: dtype must be that of q, ", to_string(p.dtype), " (got ", to_string(out), ")");
    }
    const auto refuse = [&p](ScaleKind kind, std::string_view name) {
      if (kind == ScaleKind::none) return;
      invalid_argument(name, ": requires q, k and v in fp8_e4m3 (got ", to_string(p.dtype), ")");
    };
    refuse(p.q_scale, "q_scale");
    refuse(p.k_scale, "k_scale");
    refuse(p.v_scale, "v_scale");
    return;
  }
  if (out != DType::bf16 && out != DType::f16) {
    invalid_type("out: dtype must be bf16 or f16 with q in fp8_e4m3 (got ", to_string(out), ")");
  }
  if (p.bias == BiasKind::query) invalid_type("bias: dtype must be f32 or bool with q in fp8_e4m3 (got fp8_e4m3)");
  if (p.sink == SinkKind::query) invalid_type("sink: dtype must be f32 with q in fp8_e4m3 (got fp8_e4m3)");
}

void validate_window(const AttentionProblem& p) {
  const auto check = [](std::string_view name, std::int64_t window) {
    if (window < -1 || window > kMaxInt32) {
      invalid_argument(name, ": must be -1 (unbounded) or 0 to ", kMaxInt32, " (got ", window, ")");
    }
  };
  check("window_left", p.window_left);
  check("window_right", p.window_right);
  if (p.mask == Mask::causal && p.window_right > 0) {
    invalid_argument("window_right: must be <= 0 with mask=causal (got ", p.window_right, ")");
  }
}

void validate_gradients(const AttentionProblem& p) {
  if (p.operation == Operation::attention_forward) {
    const auto refuse = [](bool given, std::string_view name) {
      if (given) invalid_argument(name, ": belongs to attention_backward (got it in attention_forward)");
    };
    refuse(p.dlse, "dlse");
    refuse(!p.dq, "dq");
    refuse(!p.dk, "dk");
    refuse(!p.dv, "dv");
    refuse(p.dbias, "dbias");
    refuse(p.dsink, "dsink");
    refuse(p.dtables != 0, "dtables");
    return;
  }
  if (!p.softmax_lse) invalid_argument("softmax_lse: must be given in attention_backward");
  if (p.dbias && p.bias == BiasKind::none) invalid_argument("dbias: requires bias (got none)");
  if (p.dbias && p.bias == BiasKind::boolean) invalid_argument("dbias: a bool bias has no gradient (got bias=bool)");
  if (p.dsink && p.sink == SinkKind::none) invalid_argument("dsink: requires sink (got none)");
  if (p.dtables != 0) validate_table_gradients(p);
  if (!(p.dq || p.dk || p.dv || p.dbias || p.dsink || p.dtables != 0)) {
    invalid_argument("dq: at least one of dq, dk, dv, dbias, dsink and dtables must be given (got none)");
  }
}

}  // namespace

void validate_head_counts(const AttentionProblem& p) {
  check_range("q: num_heads_q", p.num_heads_q, 1, kMaxInt32);
  check_range("k: num_heads_k", p.num_heads_k, 1, kMaxInt32);
  if (p.num_heads_q % p.num_heads_k != 0) {
    invalid_argument("q: num_heads_q must be a multiple of num_heads_k (got ", p.num_heads_q, " and ", p.num_heads_k,
                     ")");
  }
}

void validate_dtype(Operation operation, DType dtype, DeviceType device) {
  const bool backward = operation == Operation::attention_backward;
  if (is_element_type(dtype) || (dtype == DType::fp8_e4m3 && !backward)) return;
  const core::OperationInterface& attention = operation_of(static_cast<const AttentionProblem*>(nullptr));
  using enum DType;
  const std::string taken = backward ? core::taken_dtypes(attention, device, {f32, bf16, f16, f64})
                                     : core::taken_dtypes(attention, device, {f32, bf16, f16, f64, fp8_e4m3});
  invalid_type("q: dtype must be ", taken, backward ? " in attention_backward" : "", " (got ", to_string(dtype),
               dtype == fp8_e4m3 ? ", which has no gradient)" : ")");
}

void validate(const AttentionProblem& problem) {
  validate_dtype(problem.operation, problem.dtype, problem.device);
  validate_fp8(problem);
  check_range("q: batch_size", problem.batch_size, 0, kMaxInt32);
  validate_lengths(problem);
  validate_heads(problem);
  validate_sizes(problem);
  validate_window(problem);
  validate_factors(problem);
  validate_gradients(problem);
  validate_score_functions(problem);
  validate_selected_keys(problem,
                         problem.layout == Layout::thd ? problem.total_q : problem.batch_size * problem.seqlen_q);
  validate_block_mask(blocked_scores(problem), problem.tables.size());
}

}  // namespace tilewise::operations::attention
