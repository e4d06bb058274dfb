// The C interface of routing.
#include <cstddef>
#include <string_view>

#include "core/c_api.hpp"
#include "operations/route/route.hpp"
#include "tilewise/c/route.h"

namespace tilewise::operations::route {
namespace {

using namespace core::c;

/// Options of C; see core/c_api.hpp.
struct COptions {
  using Options = tilewise_route_options;
  static constexpr std::size_t kSmallest = offsetof(Options, outside_groups) + sizeof(Options::outside_groups);
  static constexpr std::string_view kInit = "tilewise_route_options_init";
  static Options defaults() {
    Options options{};
    options.routed_scaling_factor = RouteArguments().routed_scaling_factor;
    options.n_group = RouteArguments().n_group;
    options.topk_group = RouteArguments().topk_group;
    return options;
  }
};

template <typename Enum>
void take(const char* name, std::string_view argument, Enum& value) {
  if (name != nullptr) value = core::value_of<Enum>(argument, name);
}

/// What both passes have.
template <typename Tensors, typename Arguments>
void take(const Tensors& tensors, const tilewise_route_options& options, Arguments& arguments) {
  arguments.logits = view_of(tensors.logits, "logits");
  arguments.scale_of_expert = view_of(tensors.scale_of_expert, "scale_of_expert");
  arguments.topk_ids = view_of(tensors.topk_ids, "topk_ids");
  take(options.score, "score", arguments.score);
  take(options.weigh, "weigh", arguments.weigh);
  take(options.normalise, "normalise", arguments.normalise);
  arguments.epsilon = options.epsilon;
  arguments.routed_scaling_factor = options.routed_scaling_factor;
}

void take_choice(const tilewise_route_options& options, RouteArguments& arguments) {
  take(options.chosen_by, "chosen_by", arguments.chosen_by);
  arguments.n_group = options.n_group;
  arguments.topk_group = options.topk_group;
  take(options.group_value, "group_value", arguments.group_value);
  take(options.outside_groups, "outside_groups", arguments.outside_groups);
}

/// The backward pass is told what was chosen.
void refuse_choice(const tilewise_route_options& options) {
  RouteArguments given;
  take_choice(options, given);
  const RouteArguments fresh;
  const auto refuse = [](bool other, std::string_view name) {
    if (other) core::invalid_argument(name, ": belongs to route (got it in route_backward)");
  };
  refuse(given.chosen_by != fresh.chosen_by, "chosen_by");
  refuse(given.n_group != fresh.n_group, "n_group");
  refuse(given.topk_group != fresh.topk_group, "topk_group");
  refuse(given.group_value != fresh.group_value, "group_value");
  refuse(given.outside_groups != fresh.outside_groups, "outside_groups");
}

}  // namespace
}  // namespace tilewise::operations::route

using namespace tilewise;  // the functions below are C's
using namespace tilewise::core::c;
using operations::route::COptions;

tilewise_status tilewise_route_options_init(tilewise_route_options* options, size_t struct_size) {
  return init_options<COptions>(options, struct_size);
}

tilewise_status tilewise_route(const tilewise_route_tensors* tensors, const tilewise_route_options* options) {
  return guarded([&] {
    const tilewise_route_tensors& t = *required(tensors, "tensors");
    const tilewise_route_options o = complete<COptions>(options);
    RouteArguments arguments;
    operations::route::take(t, o, arguments);
    operations::route::take_choice(o, arguments);
    arguments.bias = view_of(t.bias, "bias");
    arguments.topk_weights = view_of(t.topk_weights, "topk_weights");
    route(arguments, select_of(o.implementation));
  });
}

tilewise_status tilewise_route_backward(const tilewise_route_backward_tensors* tensors,
                                        const tilewise_route_options* options) {
  return guarded([&] {
    const tilewise_route_backward_tensors& t = *required(tensors, "tensors");
    const tilewise_route_options o = complete<COptions>(options);
    operations::route::refuse_choice(o);
    RouteBackwardArguments arguments;
    operations::route::take(t, o, arguments);
    arguments.dtopk_weights = view_of(t.dtopk_weights, "dtopk_weights");
    arguments.dlogits = view_of(t.dlogits, "dlogits");
    route_backward(arguments, select_of(o.implementation));
  });
}
