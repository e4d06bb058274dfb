// Schemas and kernels of attention's torch operators. The registration from Python takes the same text.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "attention_options.hpp"
#include "core/message.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/names.hpp"
#include "outputs.hpp"
#include "tilewise/attention.hpp"
#include "torch_attention.hpp"
#include "torch_kernel.hpp"
#include "torch_options.hpp"
#include "torch_shim.hpp"
#include "torch_stack.hpp"

namespace tilewise::python {
namespace shim = torch_shim;

namespace {

std::string options_schema() {
  std::string text;
  for_each_option([&text](const auto& option) { text += option_text(option) + default_text(option) + ", "; });
  return text + "str? implementation=None";
}

/// All that most calls give. torch takes some 100 ns to pass an argument and 60 ns to look up the name of one that is
/// left out, so these calls have schemas of their own. `form` is 2 * layout, in the order of layout_names(), + causal.
constexpr const char* kPlainSchema = "int form=0, float? softmax_scale=None";
/// What calls on packed sequences, with windows and with softcap give besides. Without defaults: these are all passed.
constexpr const char* kShortSchema =
    "int form, float? softmax_scale, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, SymInt? max_seqlen_q, "
    "SymInt? max_seqlen_k, SymInt window_left, SymInt window_right, float softcap";

/// The options of a call in the order of options_schema().
class TorchOptions {
 public:
  explicit TorchOptions(shim::StackReader& stack) : values_(stack), implementation_(stack.optional_string()) {}

  [[nodiscard]] AttentionOptions options() const {
    AttentionOptions options;
    values_.set(options);
    return options;
  }
  [[nodiscard]] SelectOptions select() const { return {std::string(implementation_.view())}; }

 private:
  OptionsOnStack<kAttentionOptions> values_;
  shim::String implementation_;
};

/// A forward or backward call on the current stream.
template <typename Arguments>
void run_on_current_stream(const Arguments& arguments, const SelectOptions& select, void* stream) {
  run_on_stream<operations::Attention>(operations::attention::call_of(arguments), arguments.q.device, select, stream);
}

/// Allocates the outputs that are asked for. A huge call is judged first, so that a wrong shape
/// is reported as such and not as memory that torch could not find.
void allocate_outputs(ForwardArguments* arguments, shim::Tensor* out, shim::Tensor* lse) {
  if (out != nullptr) arguments->out = planned_out(arguments->q, arguments->v);
  if (lse != nullptr) arguments->softmax_lse = planned_lse(arguments->q, arguments->options.layout);
  if (is_huge(arguments->out) || is_huge(arguments->softmax_lse))
    static_cast<void>(operations::attention::describe(operations::attention::call_of(*arguments)));
  if (out != nullptr) {
    arguments->out = in_order_of(arguments->q, arguments->options.layout, arguments->out);
    *out = shim::Tensor::empty(&arguments->out);
  }
  if (lse != nullptr) *lse = shim::Tensor::empty(&arguments->softmax_lse);
}

}  // namespace

AttentionOptions plain_options(shim::StackReader& stack) {
  AttentionOptions options;
  const std::int64_t form = stack.integer();
  options.mask = form & 1 ? Mask::causal : Mask::none;
  options.layout = core::value_at<Layout>("layout", form >> 1);
  options.softmax_scale = stack.optional_number();
  return options;
}

void run_forward(ForwardArguments arguments, const SelectOptions& select, shim::Tensor* out, shim::Tensor* lse) {
  arguments.options.clear_rest = true;
  allocate_outputs(&arguments, out, lse);
  run_on_current_stream(arguments, select, shim::current_stream(arguments.q.device));
}

BackwardTensors BackwardTensors::read(shim::StackReader& stack) {
  return {stack.tensor(), stack.optional_tensor(), stack.tensor(), stack.tensor(),
          stack.tensor(), stack.tensor(),          stack.tensor()};
}
BackwardArguments BackwardTensors::arguments(AttentionOptions options) const {
  return {dout.view("dout"),
          dlse.view("dlse"),
          q.view("q"),
          k.view("k"),
          v.view("v"),
          out.view("out"),
          softmax_lse.view("softmax_lse"),
          {},
          {},
          {},
          {},
          {},
          std::move(options)};
}

shim::Tensor gradient(const TensorView& q, const TensorView& like, Layout layout, bool wanted, std::string_view name,
                      TensorView* view) {
  if (!wanted) {
    TensorView nothing = contiguous(q.dtype, q.device, 1, {0});
    return shim::Tensor::empty(&nothing);
  }
  if (!like.defined()) {
    throw Error(ErrorCode::invalid_argument, core::concat(name, ": cannot be asked for without its input"));
  }
  *view = in_order_of(like, layout, contiguous(like.dtype, like.device, like.rank, like.shape));
  return shim::Tensor::empty(view);
}

Gradients run_backward(BackwardArguments a, const Needed& needed, std::size_t count, const SelectOptions& select) {
  Gradients gradients;
  const Layout layout = a.options.layout;
  gradients[0] = gradient(a.q, a.q, layout, needed[0], "dq", &a.dq);
  gradients[1] = gradient(a.q, a.k, layout, needed[1], "dk", &a.dk);
  gradients[2] = gradient(a.q, a.v, layout, needed[2], "dv", &a.dv);
  if (count > kPlainGradients) {
    constexpr Layout kNone = Layout::bshd;  // they have no rows in an order of their own: contiguous
    gradients[3] = gradient(a.q, a.options.bias, kNone, needed[3], "dbias", &a.dbias);
    gradients[4] = gradient(a.q, a.options.sink, kNone, needed[4], "dsink", &a.dsink);
  }
  a.options.clear_rest = true;
  run_on_current_stream(a, select, shim::current_stream(a.q.device));
  return gradients;
}

void give(Gradients& gradients, std::size_t count, shim::StableIValue* stack) {
  for (std::size_t i = 0; i < count; ++i) stack[i] = reinterpret_cast<std::uintptr_t>(gradients[i].release());
}

namespace {

void forward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor(), k = reader.tensor(), v = reader.tensor();
  const TorchOptions options(reader);
  shim::Tensor out, lse;
  run_kernel([&] {
    run_forward({q.view("q"), k.view("k"), v.view("v"), {}, {}, options.options()}, options.select(), &out, &lse);
  });
  stack[0] = reinterpret_cast<std::uintptr_t>(out.release());
  stack[1] = reinterpret_cast<std::uintptr_t>(lse.release());
}

/// `with_lse`: the caller keeps the logsumexp, for a backward pass or for itself.
template <bool with_lse>
void plain_forward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor(), k = reader.tensor(), v = reader.tensor();
  shim::Tensor out, lse;
  run_kernel([&] {
    run_forward({q.view("q"), k.view("k"), v.view("v"), {}, {}, plain_options(reader)}, {}, &out,
                with_lse ? &lse : nullptr);
  });
  stack[0] = reinterpret_cast<std::uintptr_t>(out.release());
  if (with_lse) stack[1] = reinterpret_cast<std::uintptr_t>(lse.release());
}

/// The same with the options in kShortSchema.
template <bool with_lse>
void short_forward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor(), k = reader.tensor(), v = reader.tensor();
  shim::Tensor cu_seqlens_q, cu_seqlens_k, out, lse;
  run_kernel([&] {
    AttentionOptions options = plain_options(reader);
    cu_seqlens_q = reader.optional_tensor();
    cu_seqlens_k = reader.optional_tensor();
    options.max_seqlen_q = reader.optional_integer();
    options.max_seqlen_k = reader.optional_integer();
    options.window_left = reader.integer();
    options.window_right = reader.integer();
    options.softcap = reader.number();
    options.cu_seqlens_q = cu_seqlens_q.view("cu_seqlens_q");
    options.cu_seqlens_k = cu_seqlens_k.view("cu_seqlens_k");
    run_forward({q.view("q"), k.view("k"), v.view("v"), {}, {}, options}, {}, &out, with_lse ? &lse : nullptr);
  });
  stack[0] = reinterpret_cast<std::uintptr_t>(out.release());
  if (with_lse) stack[1] = reinterpret_cast<std::uintptr_t>(lse.release());
}

void forward_out_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const shim::Tensor q = reader.tensor(), k = reader.tensor(), v = reader.tensor(), out = reader.tensor();
  const TorchOptions options(reader);
  shim::Tensor lse;
  run_kernel([&] {
    ForwardArguments arguments{q.view("q"), k.view("k"), v.view("v"), out.view("out"), {}, options.options()};
    allocate_outputs(&arguments, nullptr, &lse);
    void* stream = shim::current_stream(arguments.q.device);
    clear_lse_before(arguments.softmax_lse, arguments.options.cu_seqlens_q, stream);
    run_on_current_stream(arguments, options.select(), stream);
    clear_rest_of_lse(arguments.softmax_lse, arguments.options.cu_seqlens_q);
  });
  stack[0] = reinterpret_cast<std::uintptr_t>(lse.release());
}

void backward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const BackwardTensors tensors = BackwardTensors::read(reader);
  const Needed needed{reader.boolean(), reader.boolean(), reader.boolean(), reader.boolean(), reader.boolean()};
  const TorchOptions options(reader);
  Gradients gradients;
  run_kernel([&] {
    gradients = run_backward(tensors.arguments(options.options()), needed, gradients.size(), options.select());
  });
  give(gradients, gradients.size(), stack);
}

/// `needed`: 1 for dq, 2 for dk and 4 for dv, added up.
void plain_backward_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const BackwardTensors tensors = BackwardTensors::read(reader);
  const std::int64_t needed = reader.integer();
  Gradients gradients;
  run_kernel([&] {
    gradients = run_backward(tensors.arguments(plain_options(reader)),
                             {(needed & 1) != 0, (needed & 2) != 0, (needed & 4) != 0}, kPlainGradients, {});
  });
  give(gradients, kPlainGradients, stack);
}

/// Writes into gradients that the caller has, such as views of one packed tensor. Rows of no sequence stay as they are.
void backward_out_kernel(shim::StableIValue* stack, std::uint64_t /*num_inputs*/, std::uint64_t /*num_outputs*/) {
  shim::StackReader reader(stack);
  const BackwardTensors tensors = BackwardTensors::read(reader);
  const shim::Tensor dq = reader.optional_tensor(), dk = reader.optional_tensor(), dv = reader.optional_tensor();
  const TorchOptions options(reader);
  run_kernel([&] {
    BackwardArguments a = tensors.arguments(options.options());
    a.dq = dq.view("dq");
    a.dk = dk.view("dk");
    a.dv = dv.view("dv");
    run_on_current_stream(a, options.select(), shim::current_stream(a.q.device));
  });
}

struct Operator {
  const char* name;
  const char* tensors;
  const char* needed;   // "", or which gradients are, or where they go
  const char* options;  // null: all of them
  const char* returns;
  shim::BoxedKernel kernel;
};
constexpr std::array<Operator, 9> kOperators{{
    {"attention_forward", kForwardTensors, "", nullptr, "(Tensor out, Tensor softmax_lse)", forward_kernel},
    {"attention_forward.plain", kForwardTensors, "", kPlainSchema, "Tensor", plain_forward_kernel<false>},
    {"attention_forward.plain_lse", kForwardTensors, "", kPlainSchema, "(Tensor out, Tensor softmax_lse)",
     plain_forward_kernel<true>},
    {"attention_forward.short", kForwardTensors, "", kShortSchema, "Tensor", short_forward_kernel<false>},
    {"attention_forward.short_lse", kForwardTensors, "", kShortSchema, "(Tensor out, Tensor softmax_lse)",
     short_forward_kernel<true>},
    {"attention_forward_out", "Tensor q, Tensor k, Tensor v, Tensor(a!) out", "", nullptr, "Tensor",
     forward_out_kernel},
    {"attention_backward", kBackwardTensors,
     ", bool need_dq, bool need_dk, bool need_dv, bool need_dbias, bool need_dsink", nullptr,
     "(Tensor, Tensor, Tensor, Tensor, Tensor)", backward_kernel},
    {"attention_backward_out", kBackwardTensors, ", Tensor(a!)? dq, Tensor(b!)? dk, Tensor(c!)? dv", nullptr, "()",
     backward_out_kernel},
    {"attention_backward.plain", kBackwardTensors, ", int needed", kPlainSchema, "(Tensor, Tensor, Tensor)",
     plain_backward_kernel},
}};

std::string schema_of(const Operator& op) {
  return core::concat(op.name, '(', op.tensors, op.needed, ", ", op.options != nullptr ? op.options : options_schema(),
                      ") -> ", op.returns);
}

}  // namespace

std::vector<TorchOperator> attention_operators() {
  std::vector<TorchOperator> operators;
  for (const Operator& op : kOperators) operators.push_back({op.name, schema_of(op), op.kernel});
  for (TorchOperator& op : function_operators()) operators.push_back(std::move(op));
  return operators;
}

}  // namespace tilewise::python
