// The C interface of experts.
#include <cstddef>
#include <string_view>

#include "core/c_api.hpp"
#include "operations/derived/stored.hpp"
#include "operations/moe/moe.hpp"
#include "tilewise/c/moe.h"

namespace tilewise::operations::moe {
namespace {

using namespace core::c;

/// Options of C; see core/c_api.hpp.
struct COptions {
  using Options = tilewise_moe_options;
  static constexpr std::size_t kSmallest = offsetof(Options, batch_invariant) + sizeof(Options::batch_invariant);
  static constexpr std::string_view kInit = "tilewise_moe_options_init";
  static Options defaults() {
    Options options{};
    options.alpha = kSwigluOaiAlpha;
    options.norm_epsilon = kMoeNormEpsilon;
    return options;
  }
};

BlockFormat format_of(const char* name, std::string_view argument) {
  return name == nullptr ? BlockFormat{} : parse_block_format(name, argument);
}

template <typename Enum>
void state_name(Enum& value, const char* name, std::string_view argument) {
  if (name != nullptr) value = core::value_of<Enum>(argument, name);
}

template <typename Arguments>
void state(const tilewise_moe_options& c, Arguments& arguments) {
  arguments.w_format = format_of(c.w_format, "w_format");
  state_name(arguments.gate, c.gate, "gate");
  state_name(arguments.activation, c.activation, "activation");
  state_name(arguments.clamp, c.clamp, "clamp");
  arguments.alpha = c.alpha;
  arguments.limit = c.limit;
  arguments.first_expert = c.first_expert;
  arguments.weight_on_input = c.weight_on_input != 0;
  arguments.batch_invariant = c.batch_invariant != 0;
  arguments.save_gate_up = c.save_gate_up != 0;
}

/// The tensors that both passes have.
template <typename Tensors, typename Arguments>
void take(const Tensors& c, Arguments& arguments) {
  arguments.x = view_of(c.x, "x");
  arguments.topk_ids = view_of(c.topk_ids, "topk_ids");
  arguments.topk_weights = view_of(c.topk_weights, "topk_weights");
  arguments.gate_up = view_of(c.gate_up, "gate_up");
  arguments.down = view_of(c.down, "down");
  arguments.gate_up_bias = view_of(c.gate_up_bias, "gate_up_bias");
  arguments.down_bias = view_of(c.down_bias, "down_bias");
  arguments.gate_up_scale = view_of(c.gate_up_scale, "gate_up_scale");
  arguments.down_scale = view_of(c.down_scale, "down_scale");
  arguments.gate_up_global_scale = view_of(c.gate_up_global_scale, "gate_up_global_scale");
  arguments.down_global_scale = view_of(c.down_global_scale, "down_global_scale");
}

void refuse_of_forward(const char* format, std::string_view argument) {
  if (format_of(format, argument).defined())
    core::invalid_argument(argument, ": belongs to moe (got ", format, " in moe_backward)");
}

}  // namespace
}  // namespace tilewise::operations::moe

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;
using operations::moe::COptions;

tilewise_status tilewise_moe_options_init(tilewise_moe_options* options, size_t struct_size) {
  return init_options<COptions>(options, struct_size);
}

tilewise_status tilewise_moe(const tilewise_moe_tensors* tensors, const tilewise_moe_options* options) {
  return guarded([&] {
    const tilewise_moe_tensors& t = *required(tensors, "tensors");
    const tilewise_moe_options o = complete<COptions>(options);
    MoeArguments arguments;
    operations::moe::take(t, arguments);
    operations::moe::state(o, arguments);
    arguments.norm_weight = view_of(t.norm_weight, "norm_weight");
    arguments.norm_epsilon = o.norm_epsilon;
    arguments.x_scale = view_of(t.x_scale, "x_scale");
    arguments.x_format = operations::moe::format_of(o.x_format, "x_format");
    arguments.h_format = operations::moe::format_of(o.h_format, "h_format");
    arguments.out = view_of(t.out, "out");
    if (arguments.save_gate_up) arguments.gate_up_out = view_of(t.gate_up_out, "gate_up_out");
    operations::schema::read_bytes<operations::moe::kSchema>(arguments);
    moe(arguments, select_of(o.implementation));
  });
}

tilewise_status tilewise_moe_backward(const tilewise_moe_backward_tensors* tensors,
                                      const tilewise_moe_options* options) {
  return guarded([&] {
    const tilewise_moe_backward_tensors& t = *required(tensors, "tensors");
    const tilewise_moe_options o = complete<COptions>(options);
    operations::moe::refuse_of_forward(o.x_format, "x_format");
    operations::moe::refuse_of_forward(o.h_format, "h_format");
    MoeBackwardArguments arguments;
    operations::moe::take(t, arguments);
    operations::moe::state(o, arguments);
    arguments.dout = view_of(t.dout, "dout");
    if (arguments.save_gate_up) arguments.gate_up_out = view_of(t.gate_up_out, "gate_up_out");
    arguments.dx = view_of(t.dx, "dx");
    arguments.dtopk_weights = view_of(t.dtopk_weights, "dtopk_weights");
    arguments.dgate_up = view_of(t.dgate_up, "dgate_up");
    arguments.ddown = view_of(t.ddown, "ddown");
    arguments.dgate_up_bias = view_of(t.dgate_up_bias, "dgate_up_bias");
    arguments.ddown_bias = view_of(t.ddown_bias, "ddown_bias");
    operations::schema::read_bytes<operations::moe::kSchema>(arguments);
    moe_backward(arguments, select_of(o.implementation));
  });
}
