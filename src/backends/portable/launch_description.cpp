// Names, offsets and types of the parameter block, taken from the structs themselves.
#include "backends/portable/launch_description.hpp"

#include <cstring>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "core/message.hpp"
#include "operations/attention/call.hpp"
#include "operations/attention/rules.hpp"
#include "operations/layout.hpp"

namespace tilewise::backends::portable {
namespace {

using device::AttentionParams, device::BiasTensor, device::GridParams, device::KernelParams, device::LseTensor,
    device::Tensor4;

template <typename Type>
struct Member {
  std::string_view name;
  std::size_t offset;
};

/// The members of a struct; empty for what is no struct of ours.
template <typename Struct>
struct Description {};

// The compiler checks each list: members that are not there, are missing, or are listed twice don't compile.
#define TILEWISE_MEMBER(name) \
  Member<decltype(Self::name)> { #name, offsetof(Self, name) }
#define TILEWISE_NAME(name) name
#define TILEWISE_DESCRIBE(Struct, LIST)                                                                                \
  template <>                                                                                                          \
  struct Description<Struct> {                                                                                         \
    using Self = Struct;                                                                                               \
    static constexpr std::tuple kMembers{LIST(TILEWISE_MEMBER)};                                                       \
    static void expect_every_member(const Self& value) { [[maybe_unused]] const auto& [LIST(TILEWISE_NAME)] = value; } \
  }

#define TILEWISE_TENSOR4(X) X(data), X(batch_stride), X(seq_stride), X(head_stride)
#define TILEWISE_LSE_TENSOR(X) X(data), X(batch_stride), X(head_stride), X(seq_stride)
#define TILEWISE_BIAS_TENSOR(X) X(data), X(batch_stride), X(head_stride), X(query_stride), X(key_stride)
#define TILEWISE_ATTENTION_PARAMS(X)                                                                               \
  X(batch_size), X(seqlen_q), X(seqlen_k), X(num_heads_q), X(num_heads_k), X(head_dim), X(head_dim_v), X(total_q), \
      X(total_k), X(q), X(k), X(v), X(out), X(softmax_lse), X(cu_seqlens_q), X(cu_seqlens_k), X(seqused_q),        \
      X(seqused_k), X(leftpad_k), X(window_left), X(window_right), X(top_left), X(softmax_scale), X(softcap),      \
      X(bias_type), X(sink_type), X(bias), X(alibi_slopes), X(alibi_batch_stride), X(alibi_head_stride), X(sink),  \
      X(sink_stride), X(dropout_threshold), X(dropout_scale), X(seed), X(offset), X(seed_and_offset),              \
      X(seed_and_offset_stride), X(dout), X(dq), X(dk), X(dv), X(dlse), X(dbias), X(dbias_shape), X(dsink),        \
      X(dsink_stride), X(deterministic), X(batch_invariant)
#define TILEWISE_GRID_PARAMS(X)                                                                                  \
  X(num_tiles), X(num_splits), X(heads), X(key_splits), X(partial_out), X(partial_lse), X(delta), X(query_sums), \
      X(query_sums_a_head), X(key_sums), X(key_sums_a_block)
#define TILEWISE_KERNEL_PARAMS(X) X(call), X(grid)

TILEWISE_DESCRIBE(Tensor4, TILEWISE_TENSOR4);
TILEWISE_DESCRIBE(LseTensor, TILEWISE_LSE_TENSOR);
TILEWISE_DESCRIBE(BiasTensor, TILEWISE_BIAS_TENSOR);
TILEWISE_DESCRIBE(AttentionParams, TILEWISE_ATTENTION_PARAMS);
TILEWISE_DESCRIBE(GridParams, TILEWISE_GRID_PARAMS);
TILEWISE_DESCRIBE(KernelParams, TILEWISE_KERNEL_PARAMS);

template <typename Type>
concept Described = requires { Description<Type>::kMembers; };

template <typename Type>
std::string c_type() {
  if constexpr (std::is_pointer_v<Type>) return c_type<std::remove_pointer_t<Type>>() + "*";
  if constexpr (std::is_const_v<Type>) return "const " + c_type<std::remove_const_t<Type>>();
  if constexpr (std::is_void_v<Type>) return "void";
  if constexpr (std::is_same_v<Type, float>) return "float";
  if constexpr (std::is_integral_v<Type>) {
    return core::concat(std::is_signed_v<Type> ? "int" : "uint", 8 * sizeof(Type), "_t");
  }
}

template <typename Type>
void add_fields(const std::string& name, std::size_t offset, std::vector<ParameterField>& fields) {
  if constexpr (Described<Type>) {
    const auto add = [&]<typename Field>(const Member<Field>& member) {
      add_fields<Field>(core::concat(name, name.empty() ? "" : ".", member.name), offset + member.offset, fields);
    };
    std::apply([&](const auto&... members) { (add(members), ...); }, Description<Type>::kMembers);
  } else if constexpr (std::is_array_v<Type>) {
    using Element = std::remove_extent_t<Type>;
    for (std::size_t i = 0; i < std::extent_v<Type>; ++i) {
      add_fields<Element>(core::concat(name, "[", i, "]"), offset + i * sizeof(Element), fields);
    }
  } else {
    fields.push_back({name, c_type<Type>(), offset, sizeof(Type)});
  }
}

template <typename Number>
Number number_at(const device::KernelParams& params, std::size_t offset) {
  Number number;
  std::memcpy(&number, reinterpret_cast<const std::byte*>(&params) + offset, sizeof number);
  return number;
}

/// The tensors of a call as contiguous views of no memory.
class ContiguousCall {
 public:
  explicit ContiguousCall(const Problem& problem) : p_(problem) {
    forward_.q = rows(p_.seqlen_q, p_.total_q, p_.num_heads_q, p_.head_dim);
    forward_.k = rows(p_.seqlen_k, p_.total_k, p_.num_heads_k, p_.head_dim);
    forward_.v = rows(p_.seqlen_k, p_.total_k, p_.num_heads_k, p_.head_dim_v);
    forward_.out = rows(p_.seqlen_q, p_.total_q, p_.num_heads_q, p_.head_dim_v);
    const bool backward = p_.operation == Operation::attention_backward;
    if (p_.softmax_lse || backward) forward_.softmax_lse = lse();
    set_options(forward_.options);
    if (backward) set_gradients();
  }

  [[nodiscard]] AttentionParams params() const {
    const bool backward = p_.operation == Operation::attention_backward;
    return operations::attention::make_params(
        backward ? operations::attention::call_of(backward_) : operations::attention::call_of(forward_), p_);
  }

 private:
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

  /// Only what has strides: make_params() takes every other option from the problem.
  void set_options(AttentionOptions& options) const {
    if (p_.bias != BiasKind::none) options.bias = bias();
    if (p_.alibi_slopes == AlibiKind::per_head) options.alibi_slopes = {nullptr, DType::f32, {p_.num_heads_q}};
    if (p_.alibi_slopes == AlibiKind::per_batch_head) {
      options.alibi_slopes = {nullptr, DType::f32, {p_.batch_size, p_.num_heads_q}};
    }
    if (p_.sink != SinkKind::none) options.sink = {nullptr, operations::attention::sink_dtype(p_), {p_.num_heads_q}};
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

ParameterField::Value ParameterField::value_in(const device::KernelParams& params) const {
  if (type == "float") return number_at<float>(params, offset);
  if (type == "int32_t") return std::int64_t{number_at<std::int32_t>(params, offset)};
  if (type == "int64_t") return number_at<std::int64_t>(params, offset);
  if (type == "uint32_t") return std::uint64_t{number_at<std::uint32_t>(params, offset)};
  if (type == "uint64_t") return number_at<std::uint64_t>(params, offset);
  return {};
}

std::vector<ParameterField> parameter_fields() {
  std::vector<ParameterField> fields;
  add_fields<KernelParams>({}, 0, fields);
  return fields;
}

AttentionParams contiguous_params(const Problem& problem) { return ContiguousCall(problem).params(); }

}  // namespace tilewise::backends::portable
