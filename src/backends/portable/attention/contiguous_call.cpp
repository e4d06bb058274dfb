// A call whose tensors are contiguous, on stand-ins: what launch.json tells of strides and pointers.
#include "backends/portable/attention/lowering.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/tensors.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::backends::portable {
namespace {

/// The tensors of a call as contiguous views of no memory.
class ContiguousCall {
 public:
  explicit ContiguousCall(const Problem& problem) : p_(problem) {
    forward_.q = rows(p_.seqlen_q, p_.total_q, p_.num_heads_q, p_.head_dim);
    forward_.k = rows(p_.seqlen_k, p_.total_k, p_.num_heads_k, p_.head_dim);
    forward_.v = rows(p_.seqlen_k, p_.total_k, p_.num_heads_k, p_.head_dim_v);
    forward_.out = rows(p_.seqlen_q, p_.total_q, p_.num_heads_q, p_.head_dim_v);
    forward_.out.dtype = operations::attention::out_dtype_of(p_);
    const bool backward = p_.operation == Operation::attention_backward;
    if (p_.softmax_lse || backward) forward_.softmax_lse = lse();
    set_options(forward_.options);
    if (backward) set_gradients();
  }

  [[nodiscard]] gpu::DescribedCall describe() const {
    return p_.operation == Operation::attention_backward ? described(backward_) : described(forward_);
  }

 private:
  template <typename Arguments>
  [[nodiscard]] gpu::DescribedCall described(const Arguments& arguments) const {
    namespace attention = operations::attention;
    return gpu::describe_call(
        arguments, [](Arguments& a, const auto& visit) { attention::change_each_tensor(a, visit); },
        [](const Arguments& a, const auto& visit) { attention::for_each_tensor(attention::call_of(a), visit); },
        [this](const Arguments& a) { return attention::make_params(attention::call_of(a), p_); });
  }

  [[nodiscard]] TensorView rows(std::int64_t seqlen, std::int64_t total, std::int64_t heads, std::int64_t dim) const {
    switch (p_.layout) {
      case Layout::bshd:
        return {nullptr, p_.dtype, {p_.batch_size, seqlen, heads, dim}};
      case Layout::sbhd:
        return {nullptr, p_.dtype, {seqlen, p_.batch_size, heads, dim}};
      case Layout::bhsd:
        return {nullptr, p_.dtype, {p_.batch_size, heads, seqlen, dim}};
      case Layout::thd:
        break;
    }
    return {nullptr, p_.dtype, {total, heads, dim}};
  }
  [[nodiscard]] TensorView lse() const {
    if (p_.layout == Layout::thd) return {nullptr, DType::f32, {p_.num_heads_q, p_.total_q}};
    return {nullptr, DType::f32, {p_.batch_size, p_.num_heads_q, p_.seqlen_q}};
  }
  [[nodiscard]] TensorView bias() const {
    const auto size = [](bool own, std::int64_t whole) { return own ? whole : std::int64_t{1}; };
    return {nullptr,
            operations::attention::bias_dtype(p_),
            {size(p_.bias_dims.batch, p_.batch_size), size(p_.bias_dims.head, p_.num_heads_q),
             size(p_.bias_dims.query, p_.seqlen_q), size(p_.bias_dims.key, p_.seqlen_k)}};
  }

  [[nodiscard]] TensorView scales(ScaleKind kind, std::int64_t heads) const {
    if (kind == ScaleKind::tensor) return {nullptr, DType::f32, {1}};
    if (kind == ScaleKind::head) return {nullptr, DType::f32, {heads}};
    if (kind == ScaleKind::batch_head) return {nullptr, DType::f32, {p_.batch_size, p_.num_heads_k}};
    return {};
  }

  [[nodiscard]] TensorView lengths(bool given, std::int64_t count) const {
    return given ? TensorView(nullptr, DType::i32, {count}) : TensorView{};
  }

  [[nodiscard]] static TensorView contiguous(const TableShape& table) {
    TensorView view(nullptr, table.dtype, {});
    view.rank = table.rank;
    std::int64_t stride = 1;
    for (auto d = static_cast<std::size_t>(table.rank); d-- > 0;) {
      view.shape[d] = table.shape[d];
      view.strides[d] = stride;
      stride *= table.shape[d];
    }
    return view;
  }

  /// Tensors alone: make_params() takes every other option from the problem.
  void set_options(AttentionOptions& options) const {
    const bool packed = p_.layout == Layout::thd;
    options.cu_seqlens_q = lengths(packed, p_.batch_size + 1);
    options.cu_seqlens_k = lengths(packed, p_.batch_size + 1);
    options.seqused_q = lengths(p_.seqused_q, p_.batch_size);
    options.seqused_k = lengths(p_.seqused_k, p_.batch_size);
    options.leftpad_k = lengths(p_.leftpad_k, p_.batch_size);
    if (p_.bias != BiasKind::none) options.bias = bias();
    if (p_.alibi_slopes == AlibiKind::per_head) options.alibi_slopes = {nullptr, DType::f32, {p_.num_heads_q}};
    if (p_.alibi_slopes == AlibiKind::per_batch_head) {
      options.alibi_slopes = {nullptr, DType::f32, {p_.batch_size, p_.num_heads_q}};
    }
    if (p_.sink != SinkKind::none) options.sink = {nullptr, operations::attention::sink_dtype(p_), {p_.num_heads_q}};
    options.q_scale = scales(p_.q_scale, p_.num_heads_q);
    options.k_scale = scales(p_.k_scale, p_.num_heads_k);
    options.v_scale = scales(p_.v_scale, p_.num_heads_k);
    for (const TableShape& table : p_.tables) options.tables.push_back(contiguous(table));
    if (p_.seed_tensor) options.seed_and_offset = {nullptr, DType::i64, {2}};
  }

  void set_gradients() {
    const ForwardArguments& f = forward_;
    backward_.q = f.q, backward_.k = f.k, backward_.v = f.v;
    backward_.out = backward_.dout = f.out;
    backward_.softmax_lse = f.softmax_lse;
    backward_.options = f.options;
    if (p_.dlse) backward_.dlse = f.softmax_lse;
    if (p_.dq) backward_.dq = f.q;
    if (p_.dk) backward_.dk = f.k;
    if (p_.dv) backward_.dv = f.v;
    if (p_.dbias) backward_.dbias = f.options.bias;
    if (p_.dsink) backward_.dsink = f.options.sink;
  }

  const Problem& p_;
  ForwardArguments forward_;
  BackwardArguments backward_;
};

}  // namespace

gpu::DescribedCall contiguous_call(const Problem& problem) { return ContiguousCall(problem).describe(); }

}  // namespace tilewise::backends::portable
