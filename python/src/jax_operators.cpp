// What JAX calls: attention and its backward pass as handlers of XLA's interface for foreign functions, one for each
// platform. tilewise.jax registers them and says in attributes what a call's arrays and options are.
#include <nanobind/nanobind.h>

#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "bindings.hpp"
#include "operations/attention/names.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/error.hpp"
#include "xla_call.hpp"

namespace tilewise::python {
namespace {

namespace nb = nanobind;

template <typename Arguments>
using Slot = std::pair<std::string_view, TensorView Arguments::*>;

using Forward = ForwardArguments;
using Backward = BackwardArguments;
using Options = AttentionOptions;

/// Where the arrays of a call go, by the names that Python gives them.
template <typename Arguments>
constexpr std::array<Slot<Arguments>, 0> kSlots{};
template <>
constexpr std::array kSlots<Forward>{Slot<Forward>{"q", &Forward::q}, Slot<Forward>{"k", &Forward::k},
                                     Slot<Forward>{"v", &Forward::v}, Slot<Forward>{"out", &Forward::out},
                                     Slot<Forward>{"softmax_lse", &Forward::softmax_lse}};
template <>
constexpr std::array kSlots<Backward>{
    Slot<Backward>{"q", &Backward::q},         Slot<Backward>{"k", &Backward::k},
    Slot<Backward>{"v", &Backward::v},         Slot<Backward>{"out", &Backward::out},
    Slot<Backward>{"dout", &Backward::dout},   Slot<Backward>{"softmax_lse", &Backward::softmax_lse},
    Slot<Backward>{"dlse", &Backward::dlse},   Slot<Backward>{"dq", &Backward::dq},
    Slot<Backward>{"dk", &Backward::dk},       Slot<Backward>{"dv", &Backward::dv},
    Slot<Backward>{"dbias", &Backward::dbias}, Slot<Backward>{"dsink", &Backward::dsink}};
template <>
constexpr std::array kSlots<Options>{Slot<Options>{"bias", &Options::bias},
                                     Slot<Options>{"alibi_slopes", &Options::alibi_slopes},
                                     Slot<Options>{"sink", &Options::sink},
                                     Slot<Options>{"seed_and_offset", &Options::seed_and_offset},
                                     Slot<Options>{"cu_seqlens_q", &Options::cu_seqlens_q},
                                     Slot<Options>{"cu_seqlens_k", &Options::cu_seqlens_k},
                                     Slot<Options>{"seqused_q", &Options::seqused_q},
                                     Slot<Options>{"seqused_k", &Options::seqused_k},
                                     Slot<Options>{"leftpad_k", &Options::leftpad_k},
                                     Slot<Options>{"q_scale", &Options::q_scale},
                                     Slot<Options>{"k_scale", &Options::k_scale},
                                     Slot<Options>{"v_scale", &Options::v_scale}};

template <typename Arguments>
bool put(Arguments& arguments, std::string_view name, const TensorView& view) {
  for (const auto& [slot, field] : kSlots<Arguments>) {
    if (slot == name) {
      arguments.*field = view;
      return true;
    }
  }
  return false;
}

/// Gives each buffer to the slot whose name stands at its place in `names`, which blanks separate.
template <typename Arguments, typename ViewOf>
void put_all(Arguments& arguments, std::string_view names, std::int64_t count, const ViewOf& view_of) {
  for (std::int64_t i = 0; i < count; ++i) {
    const std::string_view name = names.substr(0, names.find(' '));
    names.remove_prefix(name.size() < names.size() ? name.size() + 1 : names.size());
    const TensorView view = view_of(i, name);
    if (!put(arguments, name, view) && !put(arguments.options, name, view)) {
      throw Error(ErrorCode::runtime, "unknown array '" + std::string(name) + "' of an XLA call");
    }
  }
}

Options options_of(const xla::Call& call) {
  Options value;
  value.layout = core::value_of<Layout>("layout", std::string(call.text("layout")));
  value.mask = call.flag("causal") ? Mask::causal : Mask::none;
  value.alignment = call.flag("top_left") ? Alignment::top_left : Alignment::bottom_right;
  value.window_left = call.integer("window_left");
  value.window_right = call.integer("window_right");
  value.softmax_scale = call.optional_number("softmax_scale");
  value.softcap = call.number("softcap");
  value.dropout_p = call.number("dropout_p");
  value.max_seqlen_q = call.optional_integer("max_seqlen_q");
  value.max_seqlen_k = call.optional_integer("max_seqlen_k");
  value.deterministic = call.flag("deterministic");
  value.batch_invariant = call.flag("batch_invariant");
  value.q_scale_value = call.optional_number("q_scale_value");
  value.k_scale_value = call.optional_number("k_scale_value");
  value.v_scale_value = call.optional_number("v_scale_value");
  value.clear_rest = true;
  return value;
}

/// The host can't read a GPU's lengths: there a sequence may be as long as all rows together.
template <typename Arguments>
void bound_lengths(const xla::Call& call, Arguments& arguments) {
  Options& options = arguments.options;
  if (call.device_type() == DeviceType::cpu || !options.cu_seqlens_q.defined()) return;
  if (!options.max_seqlen_q) options.max_seqlen_q = arguments.q.shape[0];
  if (!options.max_seqlen_k) options.max_seqlen_k = arguments.k.shape[0];
}

void run_call(const Forward& arguments, const SelectOptions& select, void* stream) {
  attention_forward(arguments, select, stream);
}
void run_call(const Backward& arguments, const SelectOptions& select, void* stream) {
  attention_backward(arguments, select, stream);
}

template <typename Arguments, DeviceType type>
xla::Error* handle(xla::CallFrame* frame) noexcept {
  if (xla::answer_metadata(*frame)) return nullptr;
  try {
    const xla::Call call(*frame, type);
    Arguments arguments;
    arguments.options = options_of(call);
    put_all(arguments, call.text("arguments"), call.num_arguments(),
            [&](std::int64_t i, std::string_view name) { return call.argument(i, name); });
    put_all(arguments, call.text("results"), call.num_results(),
            [&](std::int64_t i, std::string_view name) { return call.result(i, name); });
    bound_lengths(call, arguments);
    run_call(arguments, {std::string(call.text("implementation"))}, call.stream());
    return nullptr;
  } catch (...) {
    return xla::error_in_flight(*frame);
  }
}

using Handler = xla::Error*(xla::CallFrame*) noexcept;

nb::capsule capsule_of(Handler* handler) { return nb::capsule(reinterpret_cast<const void*>(handler)); }

/// (target, platform, handler) of all.
nb::list jax_targets() {
  nb::list targets;
  const auto add = [&targets](const char* platform, Handler* forward, Handler* backward) {
    targets.append(nb::make_tuple("tilewise_attention_forward", platform, capsule_of(forward)));
    targets.append(nb::make_tuple("tilewise_attention_backward", platform, capsule_of(backward)));
  };
  add("cpu", &handle<Forward, DeviceType::cpu>, &handle<Backward, DeviceType::cpu>);
  add("CUDA", &handle<Forward, DeviceType::cuda>, &handle<Backward, DeviceType::cuda>);
  add("ROCM", &handle<Forward, DeviceType::hip>, &handle<Backward, DeviceType::hip>);
  return targets;
}

}  // namespace

void bind_jax_operators(nb::module_& module) {
  module.def("jax_targets", &jax_targets, "(target, platform, capsule) of each handler that jax.ffi is to register.");
}

}  // namespace tilewise::python
