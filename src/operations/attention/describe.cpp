// Tensors and options to a Problem: which shapes, dtypes, strides and devices a call may have.
#include <algorithm>
#include <cmath>
#include <optional>

#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/fields.hpp"
#include "operations/attention/layout_advice.hpp"
#include "operations/attention/lengths.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/validate.hpp"
#include "operations/layout.hpp"

namespace tilewise::operations::attention {
namespace {

using namespace core;  // checks of tensors, and the errors they throw

constexpr std::string_view kAnchor = "q";  // its device is the call's

/// Fills a Problem from a call, one group of tensors after another.
class Describer {
 public:
  explicit Describer(const Call& call) : call_(call), options_(call.options), device_(call.q.device) {}

  AttentionProblem describe() {
    p_.operation = call_.operation;
    p_.layout = value_at<Layout>("layout", static_cast<std::int64_t>(options_.layout));
    p_.device = device_.type;
    describe_qkv();
    packed() ? describe_packed_lengths() : refuse_packed_options();
    check_outputs();
    describe_scalars();
    describe_bias();
    describe_head_options();
    describe_used_lengths();
    describe_scales();
    describe_tables();
    if (call_.backward()) describe_gradients();
    describe_alignment();
    return canonical(p_);
  }

 private:
  [[nodiscard]] bool packed() const { return p_.layout == Layout::thd; }

  /// Shapes of tensors with query rows and with key rows.
  [[nodiscard]] Shape query_shape(Dim dim) const {
    const Dim seq = packed() ? Dim{"total_q", p_.total_q} : Dim{"seqlen_q", p_.seqlen_q};
    return tensor_shape(p_.layout, {"batch_size", p_.batch_size}, seq, {"num_heads_q", p_.num_heads_q}, dim);
  }
  [[nodiscard]] Shape key_shape(Dim dim) const {
    const Dim seq = packed() ? Dim{"total_k", p_.total_k} : Dim{"seqlen_k", p_.seqlen_k};
    return tensor_shape(p_.layout, {"batch_size", p_.batch_size}, seq, {"num_heads_k", p_.num_heads_k}, dim);
  }
  [[nodiscard]] Dim head_dim() const { return {"head_dim", p_.head_dim}; }
  [[nodiscard]] Dim head_dim_v() const { return {"head_dim_v", p_.head_dim_v}; }

  void check_data(const TensorView& view, std::string_view name, Access access = Access::read) const {
    check_rows(view, name, p_.dtype, access);
  }
  void check_rows(const TensorView& view, std::string_view name, DType dtype, Access access) const {
    check_view(view, name, device_, kAnchor);
    check_dtype(view, name, dtype);
    check_rank(view, name, axes_of(p_.layout).rank(), packed() ? "[total, heads, dim]" : "four dimensions");
    check_contiguous_last(view, name, access);
  }
  void check_data(const TensorView& view, std::string_view name, const Shape& shape,
                  Access access = Access::read) const {
    check_data(view, name, access);
    check_shape(view, name, shape);
  }
  void check_output(const TensorView& view, std::string_view name, const Shape& shape) const {
    check_data(view, name, shape, Access::write);
    check_writable(view, name);
  }
  void check_lse(const TensorView& view, std::string_view name) const {
    const Dim heads{"num_heads_q", p_.num_heads_q};
    check_typed(view, name, statistics_dtype(p_.dtype),
                packed() ? Shape{heads, {"total_q", p_.total_q}}
                         : Shape{{"batch_size", p_.batch_size}, heads, {"seqlen_q", p_.seqlen_q}});
  }
  void check_typed(const TensorView& view, std::string_view name, DType dtype, const Shape& shape) const {
    check_view(view, name, device_, kAnchor);
    check_dtype(view, name, dtype);
    check_shape(view, name, shape);
  }
  void check_lengths(const TensorView& view, std::string_view name, const Shape& shape) const {
    check_typed(view, name, DType::i32, shape);
    check_contiguous_last(view, name);
  }

  void describe_qkv() {
    try {
      check_qkv();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::invalid_argument) throw;
      const std::string advice = layout_advice(p_.layout, call_.q, call_.k, call_.v, options_.cu_seqlens_q.defined());
      if (advice.empty()) throw;
      throw Error(error.code(), error.what() + advice);
    }
  }

  void check_qkv() {
    const Axes axes = axes_of(p_.layout);
    p_.dtype = call_.q.dtype;
    if (call_.q.defined()) validate_dtype(call_.operation, p_.dtype, device_.type);
    check_data(call_.q, "q");
    check_data(call_.k, "k");
    check_data(call_.v, "v");
    p_.num_heads_q = size_at(call_.q, axes.head);
    p_.num_heads_k = size_at(call_.k, axes.head);
    p_.head_dim = size_at(call_.q, axes.dim);
    p_.head_dim_v = size_at(call_.v, axes.dim);
    (packed() ? p_.total_q : p_.seqlen_q) = size_at(call_.q, axes.seq);
    (packed() ? p_.total_k : p_.seqlen_k) = size_at(call_.k, axes.seq);
    p_.batch_size = packed() ? 0 : size_at(call_.q, axes.batch);
    check_shape(call_.k, "k", key_shape(head_dim()));
    check_shape(call_.v, "v", key_shape(head_dim_v()));
    validate_head_counts(p_);
  }

  void describe_packed_lengths() {
    const TensorView& cu_q = options_.cu_seqlens_q;
    if (!cu_q.defined()) invalid_argument("cu_seqlens_q: must be given with layout=thd");
    if (!options_.cu_seqlens_k.defined()) invalid_argument("cu_seqlens_k: must be given with layout=thd");
    check_rank(cu_q, "cu_seqlens_q", 1, "[batch_size + 1]");
    if (cu_q.shape[0] < 1) invalid_argument("cu_seqlens_q: must have batch_size + 1 >= 1 elements (got 0)");
    p_.batch_size = cu_q.shape[0] - 1;
    p_.seqlen_q = packed_max(cu_q, "cu_seqlens_q", p_.total_q, options_.max_seqlen_q, "max_seqlen_q");
    p_.seqlen_k = packed_max(options_.cu_seqlens_k, "cu_seqlens_k", p_.total_k, options_.max_seqlen_k, "max_seqlen_k");
  }

  [[nodiscard]] std::int64_t packed_max(const TensorView& cu_seqlens, std::string_view name, std::int64_t total,
                                        std::optional<std::int64_t> given, std::string_view given_name) const {
    check_lengths(cu_seqlens, name, {{"batch_size + 1", p_.batch_size + 1}});
    if (device_.type == DeviceType::cpu) {
      const std::int64_t longest = check_cu_seqlens(cu_seqlens, name, total, given, given_name);
      return given.value_or(longest);
    }
    if (!given) invalid_argument(given_name, ": must be given, since the host can't read ", name);
    return *given;
  }

  void refuse_packed_options() const {
    const auto refuse = [](bool given, std::string_view name) {
      if (given) invalid_argument(name, ": requires layout=thd");
    };
    refuse(options_.cu_seqlens_q.defined(), "cu_seqlens_q");
    refuse(options_.cu_seqlens_k.defined(), "cu_seqlens_k");
    refuse(options_.max_seqlen_q.has_value(), "max_seqlen_q");
    refuse(options_.max_seqlen_k.has_value(), "max_seqlen_k");
  }

  void check_outputs() {
    p_.softmax_lse = call_.softmax_lse.defined() || call_.backward();
    if (call_.backward()) {
      check_data(call_.out, "out", query_shape(head_dim_v()));
    } else {
      describe_out();
    }
    if (!p_.softmax_lse) return;
    check_lse(call_.softmax_lse, "softmax_lse");
    if (!call_.backward()) check_writable(call_.softmax_lse, "softmax_lse");
  }

  /// In fp8 the caller chooses out's dtype by giving such a tensor.
  void describe_out() {
    const DType given = call_.out.dtype;
    if (p_.dtype == DType::fp8_e4m3 && (given == DType::bf16 || given == DType::f16)) p_.out_dtype = given;
    check_rows(call_.out, "out", out_dtype_of(p_), Access::write);
    check_shape(call_.out, "out", query_shape(head_dim_v()));
    check_writable(call_.out, "out");
  }

  void describe_scalars() {
    for_each_plain_option(options_, p_, [](const auto& option, auto& field) { field = option; });
    p_.clear_rest &= packed();
    // C's callers may have given any number.
    p_.mask = value_at<Mask>("mask", static_cast<std::int64_t>(options_.mask));
    p_.alignment = value_at<Alignment>("alignment", static_cast<std::int64_t>(options_.alignment));
    p_.softmax_scale = options_.softmax_scale ? *options_.softmax_scale : default_softmax_scale(p_.head_dim);
    p_.seed_tensor = options_.seed_and_offset.defined();
    if (!p_.seed_tensor) return;
    check_typed(options_.seed_and_offset, "seed_and_offset", DType::i64, {{"2", 2}});
    if (options_.seed != 0 || options_.offset != 0) {
      invalid_argument("seed_and_offset: excludes seed and offset (got seed ", options_.seed, ", offset ",
                       options_.offset, ")");
    }
  }

  void describe_bias() {
    const TensorView& bias = options_.bias;
    if (!bias.defined()) return;
    check_view(bias, "bias", device_, kAnchor);
    if (bias.dtype == DType::f32) {
      p_.bias = BiasKind::f32;
    } else if (bias.dtype == p_.dtype) {
      p_.bias = BiasKind::query;
    } else if (bias.dtype == DType::boolean) {
      p_.bias = BiasKind::boolean;
    } else {
      invalid_type("bias: dtype must be f32, bool or that of q, ", to_string(p_.dtype), " (got ", to_string(bias.dtype),
                   ")");
    }
    if (bias.rank > 4) {
      invalid_argument("bias: rank must be <= 4, [batch_size, num_heads_q, seqlen_q, seqlen_k] (got ", bias.rank, ")");
    }
    p_.bias_dims = {bias_dim(0, {"batch_size", p_.batch_size}), bias_dim(1, {"num_heads_q", p_.num_heads_q}),
                    bias_dim(2, {packed() ? "max_seqlen_q" : "seqlen_q", p_.seqlen_q}),
                    bias_dim(3, {packed() ? "max_seqlen_k" : "seqlen_k", p_.seqlen_k})};
  }

  /// Whether the bias has this dimension (aligned from the right) or broadcasts it.
  [[nodiscard]] bool bias_dim(int axis, Dim expected) const {
    const int own = axis - (4 - options_.bias.rank);
    const std::int64_t size = own < 0 ? 1 : size_at(options_.bias, own);
    if (size != 1 && size != expected.size) {
      invalid_argument("bias: dimension ", own, " must be 1 or ", expected.name, " = ", expected.size, " (got ", size,
                       ", shape ", tilewise::describe(options_.bias), ")");
    }
    return size != 1;
  }

  void describe_head_options() {
    const Dim heads{"num_heads_q", p_.num_heads_q};
    if (const TensorView& slopes = options_.alibi_slopes; slopes.defined()) {
      const bool per_batch = slopes.rank == 2;
      p_.alibi_slopes = per_batch ? AlibiKind::per_batch_head : AlibiKind::per_head;
      check_typed(slopes, "alibi_slopes", statistics_dtype(p_.dtype),
                  per_batch ? Shape{{"batch_size", p_.batch_size}, heads} : Shape{heads});
    }
    if (options_.sink.defined()) describe_sink({heads});
  }

  void describe_sink(const Shape& shape) {
    const TensorView& sink = options_.sink;
    check_view(sink, "sink", device_, kAnchor);
    if (sink.dtype != DType::f32 && sink.dtype != p_.dtype) {
      invalid_type("sink: dtype must be f32 or that of q, ", to_string(p_.dtype), " (got ", to_string(sink.dtype), ")");
    }
    p_.sink = sink.dtype == DType::f32 ? SinkKind::f32 : SinkKind::query;
    check_shape(sink, "sink", shape);
  }

  void describe_used_lengths() {
    const Shape shape{{"batch_size", p_.batch_size}};
    p_.seqused_q = options_.seqused_q.defined();
    p_.seqused_k = options_.seqused_k.defined();
    p_.leftpad_k = options_.leftpad_k.defined();
    if (p_.seqused_q) check_lengths(options_.seqused_q, "seqused_q", shape);
    if (p_.seqused_k) check_lengths(options_.seqused_k, "seqused_k", shape);
    if (p_.leftpad_k) check_lengths(options_.leftpad_k, "leftpad_k", shape);
    if (device_.type == DeviceType::cpu) check_used_lengths(call_, p_);
  }

  void describe_scales() {
    const AttentionOptions& o = options_;
    p_.q_scale = scale_kind(o.q_scale, "q_scale", o.q_scale_value, {"num_heads_q", p_.num_heads_q});
    p_.k_scale = scale_kind(o.k_scale, "k_scale", o.k_scale_value, {"num_heads_k", p_.num_heads_k});
    p_.v_scale = scale_kind(o.v_scale, "v_scale", o.v_scale_value, {"num_heads_k", p_.num_heads_k});
  }

  /// `heads`: the tensor's own.
  [[nodiscard]] ScaleKind scale_kind(const TensorView& view, std::string_view name, const std::optional<double>& number,
                                     Dim heads) const {
    if (number) {
      if (view.defined()) invalid_argument(name, ": must be a tensor or a number (got both)");
      if (!(*number > 0.0 && std::isfinite(static_cast<float>(*number)))) {
        invalid_argument(name, ": must be positive and finite in f32 (got ", *number, ")");
      }
      return ScaleKind::tensor;
    }
    if (!view.defined()) return ScaleKind::none;
    check_view(view, name, device_, kAnchor);
    check_dtype(view, name, DType::f32);
    if (view.rank == 0 || (view.rank == 1 && view.shape[0] == 1 && heads.size != 1)) return ScaleKind::tensor;
    if (view.rank == 1) {
      check_shape(view, name, {heads});
      return ScaleKind::head;
    }
    check_rank(view, name, 2, "a number, [its heads] or [batch_size, num_heads_k]");
    check_shape(view, name, {{"batch_size", p_.batch_size}, {"num_heads_k", p_.num_heads_k}});
    return ScaleKind::batch_head;
  }

  void describe_tables() {
    for (std::size_t i = 0; i < options_.tables.size(); ++i) {
      const TensorView& table = options_.tables[i];
      check_view(table, table_name(i), device_, kAnchor);
      check_table_rank(i, table.rank);
      TableShape& shape = p_.tables.emplace_back(TableShape{table.dtype, table.rank});
      std::copy_n(table.shape.begin(), table.rank, shape.shape.begin());
    }
  }

  void describe_gradients() {
    check_data(call_.dout, "dout", query_shape(head_dim_v()));
    p_.dlse = call_.dlse.defined();
    if (p_.dlse) check_lse(call_.dlse, "dlse");
    p_.dq = call_.dq.defined();
    p_.dk = call_.dk.defined();
    p_.dv = call_.dv.defined();
    if (p_.dq) check_output(call_.dq, "dq", query_shape(head_dim()));
    if (p_.dk) check_output(call_.dk, "dk", key_shape(head_dim()));
    if (p_.dv) check_output(call_.dv, "dv", key_shape(head_dim_v()));
    p_.dbias = call_.dbias.defined();
    if (p_.dbias) check_dbias();
    p_.dsink = call_.dsink.defined();
    if (!p_.dsink) return;
    if (p_.sink == SinkKind::none) return;  // validate() explains
    check_typed(call_.dsink, "dsink", sink_dtype(p_), {{"num_heads_q", p_.num_heads_q}});
    check_writable(call_.dsink, "dsink");
  }

  /// Whether TMA can load parts of the bias: rows on 16 bytes, keys side by side, and rows in their order.
  [[nodiscard]] bool comes_in_boxes(const TensorView& bias) const {
    bool fits = rows_start_on_16_bytes(bias) && bias.strides[static_cast<std::size_t>(bias.rank - 1)] == 1;
    for (int axis = 0; axis + 1 < bias.rank; ++axis)
      fits = fits && (size_at(bias, axis) == 1 || stride_at(bias, axis) >= 0);
    return fits;
  }

  /// Kernels of other devices move rows 16 bytes at a time where they may.
  void describe_alignment() {
    if (device_.type == DeviceType::cpu) return;
    for (const TensorView* view :
         {&call_.q, &call_.k, &call_.v, &call_.out, &call_.dout, &call_.dq, &call_.dk, &call_.dv}) {
      p_.unaligned |= view->defined() && !rows_start_on_16_bytes(*view);
    }
    if (options_.bias.defined()) p_.bias_unaligned = p_.bias_dims.key && !comes_in_boxes(options_.bias);
  }

  void check_dbias() const {
    const TensorView& bias = options_.bias;
    if (!bias.defined()) return;  // validate() explains
    Shape shape;
    shape.rank = bias.rank;
    for (int axis = 0; axis < bias.rank; ++axis) {
      shape.dims[static_cast<std::size_t>(axis)] = {"as bias", size_at(bias, axis)};
    }
    check_typed(call_.dbias, "dbias", bias.dtype, shape);
    check_writable(call_.dbias, "dbias");
  }

  const Call& call_;
  const AttentionOptions& options_;
  Device device_;
  AttentionProblem p_;
};

const TensorView kNotGiven;

}  // namespace

Call call_of(const ForwardArguments& a) {
  const TensorView& none = kNotGiven;
  return {Operation::attention_forward,
          a.q,
          a.k,
          a.v,
          a.out,
          a.softmax_lse,
          none,
          none,
          none,
          none,
          none,
          none,
          none,
          a.options};
}

Call call_of(const BackwardArguments& a) {
  return {Operation::attention_backward,
          a.q,
          a.k,
          a.v,
          a.out,
          a.softmax_lse,
          a.dout,
          a.dlse,
          a.dq,
          a.dk,
          a.dv,
          a.dbias,
          a.dsink,
          a.options};
}

AttentionProblem describe(const Call& call) { return Describer(call).describe(); }

}  // namespace tilewise::operations::attention
