// The C interface of attention: options and tensors to arguments, and its calls and plans.
#include <cstddef>
#include <optional>
#include <string_view>

#include "core/c_api.hpp"
#include "core/device.hpp"
#include "operations/attention/names.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/c/attention.h"

namespace tilewise::operations::attention {
namespace {

using namespace core::c;
using core::invalid_argument;

static_assert(TILEWISE_LAYOUT_THD == static_cast<int>(Layout::thd));
static_assert(TILEWISE_MASK_CAUSAL == static_cast<int>(Mask::causal));
static_assert(TILEWISE_ALIGNMENT_TOP_LEFT == static_cast<int>(Alignment::top_left));

std::optional<std::int64_t> max_seqlen_of(std::int64_t value) {
  return value == -1 ? std::nullopt : std::optional(value);
}

std::optional<double> given_number(double value) { return value == 0.0 ? std::nullopt : std::optional(value); }

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
    return options;
  }
};

AttentionOptions options_of(const tilewise_attention_options& c) {
  AttentionOptions options;
  options.layout = core::value_at<Layout>("layout", c.layout);
  options.mask = core::value_at<Mask>("mask", c.mask);
  options.alignment = core::value_at<Alignment>("alignment", c.alignment);
  options.window_left = c.window_left;
  options.window_right = c.window_right;
  if (c.has_softmax_scale != 0) options.softmax_scale = c.softmax_scale;
  options.softcap = c.softcap;
  options.dropout_p = c.dropout_p;
  options.seed = c.seed;
  options.offset = c.offset;
  options.seed_and_offset = view_of(c.seed_and_offset, "seed_and_offset");
  options.bias = view_of(c.bias, "bias");
  options.alibi_slopes = view_of(c.alibi_slopes, "alibi_slopes");
  options.sink = view_of(c.sink, "sink");
  options.cu_seqlens_q = view_of(c.cu_seqlens_q, "cu_seqlens_q");
  options.cu_seqlens_k = view_of(c.cu_seqlens_k, "cu_seqlens_k");
  options.max_seqlen_q = max_seqlen_of(c.max_seqlen_q);
  options.max_seqlen_k = max_seqlen_of(c.max_seqlen_k);
  options.seqused_q = view_of(c.seqused_q, "seqused_q");
  options.seqused_k = view_of(c.seqused_k, "seqused_k");
  options.leftpad_k = view_of(c.leftpad_k, "leftpad_k");
  options.deterministic = c.deterministic != 0;
  options.batch_invariant = c.batch_invariant != 0;
  options.clear_rest = c.clear_rest != 0;
  options.q_scale = view_of(c.q_scale, "q_scale");
  options.k_scale = view_of(c.k_scale, "k_scale");
  options.v_scale = view_of(c.v_scale, "v_scale");
  if (c.score_mod != nullptr) options.score_mod = c.score_mod;
  if (c.mask_mod != nullptr) options.mask_mod = c.mask_mod;
  if (c.table_count < 0 || (c.table_count > 0 && c.tables == nullptr)) {
    invalid_argument("tables: must be table_count of them (got ", c.table_count,
                     c.tables == nullptr ? " and NULL)" : ")");
  }
  for (std::int64_t i = 0; i < c.table_count; ++i)
    options.tables.push_back(view_of(c.tables[i], table_name(static_cast<std::size_t>(i))));
  options.q_scale_value = given_number(c.q_scale_value);
  options.k_scale_value = given_number(c.k_scale_value);
  options.v_scale_value = given_number(c.v_scale_value);
  return options;
}

ForwardArguments arguments_of(const tilewise_forward_tensors* tensors, const tilewise_attention_options& options) {
  const tilewise_forward_tensors& t = *required(tensors, "tensors");
  return {view_of(t.q, "q"),
          view_of(t.k, "k"),
          view_of(t.v, "v"),
          view_of(t.out, "out"),
          view_of(t.softmax_lse, "softmax_lse"),
          options_of(options)};
}

BackwardArguments arguments_of(const tilewise_backward_tensors* tensors, const tilewise_attention_options& options) {
  const tilewise_backward_tensors& t = *required(tensors, "tensors");
  return {view_of(t.dout, "dout"),
          view_of(t.dlse, "dlse"),
          view_of(t.q, "q"),
          view_of(t.k, "k"),
          view_of(t.v, "v"),
          view_of(t.out, "out"),
          view_of(t.softmax_lse, "softmax_lse"),
          view_of(t.dq, "dq"),
          view_of(t.dk, "dk"),
          view_of(t.dv, "dv"),
          view_of(t.dbias, "dbias"),
          view_of(t.dsink, "dsink"),
          options_of(options)};
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
