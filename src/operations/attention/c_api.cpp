// The C interface of attention: options and tensors to arguments, and its calls and plans.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "core/c_api.hpp"
#include "core/device.hpp"
#include "operations/attention/schema.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/derived/c_struct.hpp"
#include "operations/functions_in_c.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/c/attention.h"

namespace tilewise::operations::attention {
namespace {

using namespace core::c;

static_assert(TILEWISE_LAYOUT_THD == static_cast<int>(Layout::thd));
static_assert(TILEWISE_MASK_CAUSAL == static_cast<int>(Mask::causal));
static_assert(TILEWISE_ALIGNMENT_TOP_LEFT == static_cast<int>(Alignment::top_left));

/// Options of C; see core/c_api.hpp.
struct COptions {
  using Options = tilewise_attention_options;
  static constexpr std::size_t kSmallest = offsetof(Options, implementation) + sizeof(Options::implementation);
  static constexpr std::string_view kInit = "tilewise_attention_options_init";
  static Options defaults() {
    const AttentionOptions fresh;
    tilewise_attention_options options{};
    options.window_left = fresh.window_left;
    options.window_right = fresh.window_right;
    options.max_seqlen_q = options.max_seqlen_k = -1;
    options.block_rows = fresh.block_rows;
    options.block_keys = fresh.block_keys;
    return options;
  }
};

void take_options(const tilewise_attention_options& c, AttentionOptions& options) {
  if (c.has_softmax_scale != 0) options.softmax_scale = c.softmax_scale;
  options.seed = c.seed;
  options.offset = c.offset;
  take_tables(c, options);
  for (std::int64_t i = 0; c.dtables != nullptr && i < c.table_count; ++i)
    options.dtables.push_back(view_of(c.dtables[i], dtable_name(static_cast<std::size_t>(i))));
  take_block_mask(c, options);
}

template <typename Tensors>
using ArgumentsOf =
    std::conditional_t<std::is_same_v<Tensors, tilewise_forward_tensors>, ForwardArguments, BackwardArguments>;

template <typename Tensors>
ArgumentsOf<Tensors> arguments_of(const Tensors* tensors, const tilewise_attention_options& options) {
  ArgumentsOf<Tensors> arguments;
  schema::take_c<kSchema>(*required(tensors, "tensors"), arguments);
  schema::take_c<kSchema>(options, arguments);
  take_options(options, arguments.options);
  return arguments;
}

template <typename Tensors>
tilewise_status plan_call(const Tensors* tensors, const tilewise_attention_options* given, tilewise_plan** result) {
  return guarded([&] {
    required(result, "plan");
    const tilewise_attention_options options = complete<COptions>(given);
    const auto arguments = arguments_of(tensors, options);
    const core::DeviceScope scope(arguments.q.device, nullptr);
    *result = new tilewise_plan{plan(describe(arguments), select_of(options.implementation))};
  });
}

template <typename Tensors>
tilewise_status run_planned(const tilewise_plan* planned, const Tensors* tensors,
                            const tilewise_attention_options* given, void* workspace, void* stream) {
  return guarded([&] {
    run(required(planned, "plan")->plan, arguments_of(tensors, complete<COptions>(given)), workspace, stream);
  });
}

template <typename Tensors>
tilewise_status describe_call(const Tensors* tensors, const tilewise_attention_options* given, char** problem) {
  return guarded([&] {
    required(problem, "problem");
    *problem = text_for_caller(to_string(describe(arguments_of(tensors, complete<COptions>(given)))));
  });
}

}  // namespace
}  // namespace tilewise::operations::attention

using namespace tilewise;  // the functions below are C's
using namespace tilewise::operations::attention;

tilewise_status tilewise_attention_options_init(tilewise_attention_options* options, size_t struct_size) {
  return init_options<COptions>(options, struct_size);
}

tilewise_status tilewise_attention_forward(const tilewise_forward_tensors* tensors,
                                           const tilewise_attention_options* given) {
  return guarded([&] {
    const tilewise_attention_options options = complete<COptions>(given);
    attention_forward(arguments_of(tensors, options), select_of(options.implementation));
  });
}

tilewise_status tilewise_attention_backward(const tilewise_backward_tensors* tensors,
                                            const tilewise_attention_options* given) {
  return guarded([&] {
    const tilewise_attention_options options = complete<COptions>(given);
    attention_backward(arguments_of(tensors, options), select_of(options.implementation));
  });
}

tilewise_status tilewise_plan_forward(const tilewise_forward_tensors* tensors,
                                      const tilewise_attention_options* options, tilewise_plan** plan) {
  return plan_call(tensors, options, plan);
}

tilewise_status tilewise_plan_backward(const tilewise_backward_tensors* tensors,
                                       const tilewise_attention_options* options, tilewise_plan** plan) {
  return plan_call(tensors, options, plan);
}

tilewise_status tilewise_plan_run_forward(const tilewise_plan* plan, const tilewise_forward_tensors* tensors,
                                          const tilewise_attention_options* options, void* workspace, void* stream) {
  return run_planned(plan, tensors, options, workspace, stream);
}

tilewise_status tilewise_plan_run_backward(const tilewise_plan* plan, const tilewise_backward_tensors* tensors,
                                           const tilewise_attention_options* options, void* workspace, void* stream) {
  return run_planned(plan, tensors, options, workspace, stream);
}

tilewise_status tilewise_describe_forward(const tilewise_forward_tensors* tensors,
                                          const tilewise_attention_options* options, char** problem) {
  return describe_call(tensors, options, problem);
}

tilewise_status tilewise_describe_backward(const tilewise_backward_tensors* tensors,
                                           const tilewise_attention_options* options, char** problem) {
  return describe_call(tensors, options, problem);
}
