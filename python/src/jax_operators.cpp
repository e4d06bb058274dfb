// What JAX calls: attention, its backward pass, and the operations that are bound by their schema, as handlers of XLA's
// interface for foreign functions, one for each platform. tilewise.jax registers them and says in attributes what a
// call's arrays and options are.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "attention_options.hpp"
#include "bindings.hpp"
#include "jax_by_schema.hpp"
#include "operations/attention/names.hpp"
#include "schema_calls.hpp"
#include "tilewise/attention.hpp"
#include "xla_call.hpp"

namespace tilewise::python {
namespace {

namespace nb = nanobind;

using Forward = ForwardArguments;
using Backward = BackwardArguments;
using Options = AttentionOptions;

/// What attributes say of an option; tensors, and with them the seed, are arrays of the call.
template <typename Option>
void read_option(const xla::Call& call, Options& options, const Option& option) {
  using Value = typename Option::Value;
  if constexpr (std::is_same_v<Value, TensorView> || std::is_same_v<Value, std::uint64_t>)
    return;
  else if constexpr (std::is_same_v<Value, Layout>)
    set_option(options, option, call.text(option.name));
  else if constexpr (std::is_enum_v<Value> || std::is_same_v<Value, bool>)
    set_option(options, option, call.flag(option.name));
  else if constexpr (std::is_same_v<Value, double>)
    set_option(options, option, call.number(option.name));
  else if constexpr (std::is_same_v<Value, std::int64_t>)
    set_option(options, option, call.integer(option.name));
  else if constexpr (std::is_same_v<Value, std::optional<double>>)
    set_option(options, option, call.optional_number(option.name));
  else
    set_option(options, option, call.optional_integer(option.name));
}
Options options_of(const xla::Call& call) {
  Options options;
  for_each_option([&](const auto& option) { read_option(call, options, option); });
  options.score_mod = call.text("score_mod");
  options.mask_mod = call.text("mask_mod");
  options.block_rows = call.integer("block_rows");
  options.block_keys = call.integer("block_keys");
  options.clear_rest = true;
  return options;
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

template <typename Arguments>
void run_attention(const xla::Call& call) {
  Arguments arguments;
  arguments.options = options_of(call);
  // Those that functions of scores have are in the order of their names.
  for_each_buffer(call, [&arguments](std::string_view name, const TensorView& view) {
    if (name.starts_with("table"))
      arguments.options.tables.push_back(view);
    else if (name.starts_with("block_") || name.starts_with("full_block_"))
      arguments.options.block_mask.push_back(view);
    else
      put_array<operations::attention::kSchema>(arguments, name, view);
  });
  bound_lengths(call, arguments);
  run_call(arguments, {std::string(call.text("implementation"))}, call.stream());
}

using Run = void(const xla::Call&);

template <Run run, DeviceType type>
xla::Error* handle(xla::CallFrame* frame) noexcept {
  if (xla::answer_metadata(*frame)) return nullptr;
  try {
    run(xla::Call(*frame, type));
    return nullptr;
  } catch (...) {
    return xla::error_in_flight(*frame);
  }
}

using Handler = xla::Error*(xla::CallFrame*) noexcept;

nb::capsule capsule_of(Handler* handler) { return nb::capsule(reinterpret_cast<const void*>(handler)); }

template <Run run>
void add_targets(nb::list& targets, const std::string& name) {
  const auto add = [&](const char* platform, Handler* handler) {
    targets.append(nb::make_tuple("tilewise_" + name, platform, capsule_of(handler)));
  };
  add("cpu", &handle<run, DeviceType::cpu>);
  add("CUDA", &handle<run, DeviceType::cuda>);
  add("ROCM", &handle<run, DeviceType::hip>);
}

/// (target, platform, handler) of all.
nb::list jax_targets() {
  nb::list targets;
  add_targets<&run_attention<Forward>>(targets, "attention_forward");
  add_targets<&run_attention<Backward>>(targets, "attention_backward");
  for_each_call_by_schema([&targets]<typename Op, typename Arguments> {
    using Binding = JaxBinding<Op, Arguments>;
    if constexpr (Binding::kIsServed) add_targets<&Binding::run>(targets, std::string(Binding::kName));
  });
  return targets;
}

}  // namespace

void bind_jax_operators(nb::module_& module) {
  module.def("jax_targets", &jax_targets, "(target, platform, capsule) of each handler that jax.ffi is to register.");
  for_each_call_by_schema([&module]<typename Op, typename Arguments> {
    using Binding = JaxBinding<Op, Arguments>;
    if constexpr (Binding::kIsServed) Binding::define_check(module);
  });
}

}  // namespace tilewise::python
