// Tensors to a merge problem: which shapes, dtypes, strides and devices a call may have.
#include <optional>
#include <string_view>

#include "core/message.hpp"
#include "core/tensor_checks.hpp"
#include "operations/layout.hpp"
#include "operations/merge/call.hpp"
#include "operations/merge/names.hpp"
#include "operations/merge/rules.hpp"
#include "operations/merge/validate.hpp"

namespace tilewise::operations::merge {
namespace {

using namespace core;  // checks of tensors, and the errors they throw

/// Fills a problem from a call, one group of tensors after another.
class Describer {
 public:
  explicit Describer(const Call& call)
      : call_(call), result_(call.backward() ? call.dout : call.out), anchor_(call.backward() ? "dout" : "out") {}

  MergeProblem describe() {
    p_.pass = call_.pass;
    p_.layout = value_at<Layout>("layout", static_cast<std::int64_t>(call_.layout));
    p_.device = result_.device.type;
    check_counts();
    describe_result();
    describe_parts();
    describe_sink();
    call_.backward() ? describe_gradients() : describe_lse();
    describe_alignment();
    return canonical(p_);
  }

 private:
  void check_counts() {
    if (call_.outs.empty()) invalid_argument("outs: must hold at least one partial result (got none)");
    check_count("lses", call_.lses);
    p_.stacked = call_.stacked();
    p_.parts = p_.stacked ? call_.outs[0].shape[0] : static_cast<std::int64_t>(call_.outs.size());
    if (p_.parts == 0) invalid_argument("outs: must hold at least one partial result (got none)");
  }
  void check_count(std::string_view name, std::span<const TensorView> list) const {
    if (list.size() == call_.outs.size()) return;
    invalid_argument(name, ": must have as many entries as outs, ", call_.outs.size(), " (got ", list.size(), ")");
  }

  /// out, or in the backward pass dout, which says what all others must be.
  void describe_result() {
    const Axes axes = axes_of(p_.layout);
    check_view(result_, anchor_, result_.device, anchor_);
    // The parts before out, which may have been made like them: they are what the caller knows of.
    if (call_.outs[0].defined()) check_element_type(call_.outs[0], name_of_part("outs", 0));
    check_element_type(result_, anchor_);
    check_rank(result_, anchor_, axes.rank(), is_packed(p_) ? "[total, heads, dim]" : "four dimensions");
    check_contiguous_last(result_, anchor_, call_.backward() ? Access::read : Access::write);
    if (!call_.backward()) check_writable(result_, anchor_);
    p_.dtype = result_.dtype;
    p_.batch_size = axes.batch < 0 ? 1 : size_at(result_, axes.batch);
    p_.seqlen_q = size_at(result_, axes.seq);
    p_.num_heads_q = size_at(result_, axes.head);
    p_.head_dim_v = size_at(result_, axes.dim);
    if (p_.head_dim_v < 1 || p_.head_dim_v > kMaxHeadDimV) {
      invalid_argument(anchor_, ": head_dim_v must be 1 to ", kMaxHeadDimV, " (got ", p_.head_dim_v, ")");
    }
  }

  static void check_element_type(const TensorView& view, const ArgumentName& name) {
    if (is_element_type(view.dtype)) return;
    invalid_type(name, ": dtype must be f32, bf16, f16 or f64 (got ", to_string(view.dtype), ")");
  }

  [[nodiscard]] Dim seq() const { return {is_packed(p_) ? "total_q" : "seqlen_q", p_.seqlen_q}; }
  [[nodiscard]] Shape rows_shape() const {
    return tensor_shape(p_.layout, {"batch_size", p_.batch_size}, seq(), {"num_heads_q", p_.num_heads_q},
                        {"head_dim_v", p_.head_dim_v});
  }
  [[nodiscard]] Shape lse_shape() const {
    const Dim heads{"num_heads_q", p_.num_heads_q};
    return is_packed(p_) ? Shape{heads, seq()} : Shape{{"batch_size", p_.batch_size}, heads, seq()};
  }
  /// Of a tensor among the parts.
  [[nodiscard]] Shape of_parts(const Shape& shape) const {
    if (!p_.stacked) return shape;
    Shape stacked;
    stacked.rank = shape.rank + 1;
    stacked.dims[0] = {"parts", p_.parts};
    for (std::size_t i = 0; i < static_cast<std::size_t>(shape.rank); ++i) stacked.dims[i + 1] = shape.dims[i];
    return stacked;
  }
  [[nodiscard]] ArgumentName name_of_part(std::string_view role, std::size_t n) const {
    return p_.stacked ? ArgumentName(role) : ArgumentName(role, n);
  }

  void describe_parts() {
    const Shape rows = of_parts(rows_shape()), statistics = of_parts(lse_shape());
    bool wide = false, narrow = false;
    for (std::size_t n = 0; n < call_.outs.size(); ++n) {
      const TensorView& out = call_.outs[n];
      const ArgumentName name = name_of_part("outs", n);
      check_view(out, name, result_.device, anchor_);
      check_part_dtype(out, name);
      check_shape(out, name, rows);
      check_contiguous_last(out, name);
      (out.dtype == p_.dtype ? narrow : wide) = true;
      check_lse(call_.lses[n], name_of_part("lses", n), statistics);
    }
    p_.parts_dtype = wide && narrow ? PartsDType::mixed : wide ? PartsDType::f32 : parts_dtype_of(p_.dtype);
  }
  void check_part_dtype(const TensorView& out, const ArgumentName& name) const {
    const DType wide = statistics_dtype(p_.dtype);
    if (out.dtype == p_.dtype || out.dtype == wide) return;
    if (wide == p_.dtype) check_dtype(out, name, wide);
    invalid_type(name, ": dtype must be f32 or that of ", anchor_, ", ", to_string(p_.dtype), " (got ",
                 to_string(out.dtype), ")");
  }
  void check_lse(const TensorView& view, const ArgumentName& name, const Shape& shape) const {
    check_view(view, name, result_.device, anchor_);
    check_dtype(view, name, statistics_dtype(p_.dtype));
    check_shape(view, name, shape);
  }

  void describe_sink() {
    const TensorView& sink = call_.sink;
    if (!sink.defined()) return;
    check_view(sink, "sink", result_.device, anchor_);
    if (sink.dtype != p_.dtype) check_dtype(sink, "sink", DType::f32);
    p_.sink = sink.dtype == DType::f32 ? MergeSink::f32 : MergeSink::query;
    check_shape(sink, "sink", {{"num_heads_q", p_.num_heads_q}});
  }

  void describe_lse() {
    p_.softmax_lse = call_.softmax_lse.defined();
    if (!p_.softmax_lse) return;
    check_lse(call_.softmax_lse, "softmax_lse", lse_shape());
    check_writable(call_.softmax_lse, "softmax_lse");
  }

  void describe_gradients() {
    p_.dlse = call_.dlse.defined();
    if (p_.dlse) check_lse(call_.dlse, "dlse", lse_shape());
    p_.douts = !call_.douts.empty();
    p_.dlses = !call_.dlses.empty();
    p_.dsink = call_.dsink.defined();
    if (p_.douts) check_count("douts", call_.douts);
    if (p_.dlses) check_count("dlses", call_.dlses);
    const Shape rows = of_parts(rows_shape()), statistics = of_parts(lse_shape());
    for (std::size_t n = 0; n < call_.douts.size(); ++n) {
      const ArgumentName name = name_of_part("douts", n);
      check_view(call_.douts[n], name, result_.device, anchor_);
      check_dtype(call_.douts[n], name, call_.outs[n].dtype);
      check_shape(call_.douts[n], name, rows);
      check_contiguous_last(call_.douts[n], name, Access::write);
      check_writable(call_.douts[n], name);
    }
    for (std::size_t n = 0; n < call_.dlses.size(); ++n) {
      check_lse(call_.dlses[n], name_of_part("dlses", n), statistics);
      check_writable(call_.dlses[n], name_of_part("dlses", n));
    }
    if (!p_.dsink || p_.sink == MergeSink::none) return;  // validate() explains
    check_view(call_.dsink, "dsink", result_.device, anchor_);
    check_dtype(call_.dsink, "dsink", sink_dtype(p_));
    check_shape(call_.dsink, "dsink", {{"num_heads_q", p_.num_heads_q}});
    check_writable(call_.dsink, "dsink");
  }

  /// Kernels of other devices move rows 16 bytes at a time where they may.
  void describe_alignment() {
    if (p_.device == DeviceType::cpu) return;
    const auto look_at = [this](const TensorView& view) { p_.unaligned |= !rows_start_on_16_bytes(view); };
    look_at(result_);
    for (const TensorView& view : call_.outs) look_at(view);
    for (const TensorView& view : call_.douts) look_at(view);
  }

  const Call& call_;
  const TensorView& result_;
  std::string_view anchor_;
  MergeProblem p_;
};

const TensorView kNotGiven;

}  // namespace

bool Call::stacked() const {
  return outs.size() == 1 && is_named(layout) && outs[0].rank == axes_of(layout).rank() + 1;
}

Call call_of(const MergeArguments& a) {
  const TensorView& none = kNotGiven;
  return {MergePass::merge, a.outs, a.lses, a.sink, a.out, a.softmax_lse, none, none, {}, {}, none, a.layout};
}

Call call_of(const MergeBackwardArguments& a) {
  const TensorView& none = kNotGiven;
  return {MergePass::merge_backward,
          a.outs,
          a.lses,
          a.sink,
          none,
          none,
          a.dout,
          a.dlse,
          a.douts,
          a.dlses,
          a.dsink,
          a.layout};
}

MergeProblem describe(const Call& call) { return Describer(call).describe(); }

}  // namespace tilewise::operations::merge
