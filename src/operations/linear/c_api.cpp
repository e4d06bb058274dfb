// The C interface of linear layers.
#include <cstddef>
#include <string_view>

#include "core/c_api.hpp"
#include "operations/derived/stored.hpp"
#include "operations/linear/linear.hpp"
#include "tilewise/c/linear.h"

namespace tilewise::operations::linear {
namespace {

using namespace core::c;

/// Options of C; see core/c_api.hpp.
struct COptions {
  using Options = tilewise_linear_options;
  static constexpr std::size_t kSmallest = offsetof(Options, batch_invariant) + sizeof(Options::batch_invariant);
  static constexpr std::string_view kInit = "tilewise_linear_options_init";
  static Options defaults() { return {}; }
};

BlockFormat format_of(const char* name, std::string_view argument) {
  return name == nullptr ? BlockFormat{} : parse_block_format(name, argument);
}

template <typename Arguments>
void state(const tilewise_linear_options& c, Arguments& arguments) {
  arguments.w_format = format_of(c.w_format, "w_format");
  if (c.activation != nullptr) arguments.activation = core::value_of<Activation>("activation", c.activation);
  arguments.batch_invariant = c.batch_invariant != 0;
}

/// The tensors that both passes have.
template <typename Tensors, typename Arguments>
void take(const Tensors& c, Arguments& arguments) {
  arguments.x = view_of(c.x, "x");
  arguments.w = view_of(c.w, "w");
  arguments.bias = view_of(c.bias, "bias");
  arguments.w_scale = view_of(c.w_scale, "w_scale");
  arguments.w_global_scale = view_of(c.w_global_scale, "w_global_scale");
  arguments.offsets = view_of(c.offsets, "offsets");
  arguments.counts = view_of(c.counts, "counts");
}

}  // namespace
}  // namespace tilewise::operations::linear

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;
using operations::linear::COptions;

tilewise_status tilewise_linear_options_init(tilewise_linear_options* options, size_t struct_size) {
  return init_options<COptions>(options, struct_size);
}

tilewise_status tilewise_linear(const tilewise_linear_tensors* tensors, const tilewise_linear_options* options) {
  return guarded([&] {
    const tilewise_linear_tensors& t = *required(tensors, "tensors");
    const tilewise_linear_options o = complete<COptions>(options);
    LinearArguments arguments;
    operations::linear::take(t, arguments);
    operations::linear::state(o, arguments);
    arguments.x_scale = view_of(t.x_scale, "x_scale");
    arguments.x_format = operations::linear::format_of(o.x_format, "x_format");
    arguments.out = view_of(t.out, "out");
    operations::schema::read_bytes<operations::linear::kSchema>(arguments);
    core::run_call<operations::Linear>(operations::Linear::Call(arguments), select_of(o.implementation), nullptr,
                                       nullptr);
  });
}

tilewise_status tilewise_linear_backward(const tilewise_linear_backward_tensors* tensors,
                                         const tilewise_linear_options* options) {
  return guarded([&] {
    const tilewise_linear_backward_tensors& t = *required(tensors, "tensors");
    const tilewise_linear_options o = complete<COptions>(options);
    if (o.x_format != nullptr && operations::linear::format_of(o.x_format, "x_format").defined())
      core::invalid_argument("x_format: belongs to linear (got ", o.x_format, " in linear_backward)");
    LinearBackwardArguments arguments;
    operations::linear::take(t, arguments);
    operations::linear::state(o, arguments);
    arguments.dout = view_of(t.dout, "dout");
    arguments.dx = view_of(t.dx, "dx");
    arguments.dw = view_of(t.dw, "dw");
    arguments.dbias = view_of(t.dbias, "dbias");
    operations::schema::read_bytes<operations::linear::kSchema>(arguments);
    linear_backward(arguments, select_of(o.implementation));
  });
}
