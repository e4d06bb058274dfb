// The C interface: DLPack tensors in, status codes out.
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "core/device.hpp"
#include "core/message.hpp"
#include "core/names.hpp"
#include "tilewise/attention.hpp"
#include "tilewise/tilewise.h"

struct tilewise_plan {
  tilewise::Plan plan;
};

namespace tilewise {
namespace {

using core::invalid_argument;

static_assert(TILEWISE_INVALID_ARGUMENT == static_cast<int>(ErrorCode::invalid_argument));
static_assert(TILEWISE_INVALID_TYPE == static_cast<int>(ErrorCode::invalid_type));
static_assert(TILEWISE_UNSUPPORTED == static_cast<int>(ErrorCode::unsupported));
static_assert(TILEWISE_RUNTIME_ERROR == static_cast<int>(ErrorCode::runtime));
static_assert(TILEWISE_LAYOUT_THD == static_cast<int>(Layout::thd));
static_assert(TILEWISE_MASK_CAUSAL == static_cast<int>(Mask::causal));
static_assert(TILEWISE_ALIGNMENT_TOP_LEFT == static_cast<int>(Alignment::top_left));

/// The options as version 1 knew them; no caller may bring fewer.
constexpr std::size_t kSmallestOptions =
    offsetof(tilewise_attention_options, implementation) + sizeof(tilewise_attention_options::implementation);

std::string& last_error() {
  thread_local std::string sentence;
  return sentence;
}

tilewise_status failed(tilewise_status status, const char* sentence) noexcept {
  try {
    last_error() = sentence;
  } catch (...) {
    last_error().clear();  // not even memory for the sentence: the status must do
  }
  return status;
}

/// Runs fn and turns whatever it throws into a status.
template <typename Function>
tilewise_status guarded(const Function& fn) noexcept {
  try {
    fn();
    return TILEWISE_OK;
  } catch (const Error& error) {
    return failed(static_cast<tilewise_status>(error.code()), error.what());
  } catch (const std::bad_alloc&) {
    return failed(TILEWISE_RUNTIME_ERROR, "memory: could not allocate");
  } catch (const std::exception& error) {
    return failed(TILEWISE_RUNTIME_ERROR, error.what());
  } catch (...) {
    return failed(TILEWISE_RUNTIME_ERROR, "unknown failure");
  }
}

template <typename Pointer>
Pointer* required(Pointer* pointer, std::string_view name) {
  if (pointer == nullptr) invalid_argument(name, ": must not be null");
  return pointer;
}

TensorView view_of(const DLTensor* tensor, std::string_view name) {
  return tensor == nullptr ? TensorView{} : from_dlpack(*tensor, name);
}

template <typename Enum>
Enum enum_of(std::int32_t value, std::string_view name) {
  const auto count = static_cast<std::int32_t>(core::kNamesOf<Enum>.size());
  if (value < 0 || value >= count) {
    invalid_argument(name, ": must be 0 to ", count - 1, ", one of ", core::names_text<Enum>(), " (got ", value, ")");
  }
  return static_cast<Enum>(value);
}

std::optional<std::int64_t> max_seqlen_of(std::int64_t value) {
  return value == -1 ? std::nullopt : std::optional(value);
}

void check_struct_size(std::size_t size) {
  if (size < kSmallestOptions || size > sizeof(tilewise_attention_options)) {
    invalid_argument("options: struct_size must be ", kSmallestOptions, " to ", sizeof(tilewise_attention_options),
                     ", as tilewise_attention_options_init() sets it (got ", size, ")");
  }
}

tilewise_attention_options default_options(std::size_t size) {
  const AttentionOptions fresh;
  tilewise_attention_options options{};
  options.struct_size = size;
  options.window_left = fresh.window_left;
  options.window_right = fresh.window_right;
  options.max_seqlen_q = options.max_seqlen_k = -1;
  return options;
}

/// The caller's fields over the defaults of those it does not know.
tilewise_attention_options complete(const tilewise_attention_options* given) {
  tilewise_attention_options options = default_options(sizeof(tilewise_attention_options));
  if (given == nullptr) return options;
  check_struct_size(given->struct_size);
  std::memcpy(&options, given, given->struct_size);
  return options;
}

AttentionOptions options_of(const tilewise_attention_options& c) {
  AttentionOptions options;
  options.layout = enum_of<Layout>(c.layout, "layout");
  options.mask = enum_of<Mask>(c.mask, "mask");
  options.alignment = enum_of<Alignment>(c.alignment, "alignment");
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
  return options;
}

/// Null stands for no choice.
SelectOptions select_of(const char* implementation) { return {implementation == nullptr ? "" : implementation}; }

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

char* text_for_caller(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

template <typename Tensors>
tilewise_status plan_call(const Tensors* tensors, const tilewise_attention_options* given, tilewise_plan** result) {
  return guarded([&] {
    required(result, "plan");
    const tilewise_attention_options options = complete(given);
    const auto arguments = arguments_of(tensors, options);
    const core::DeviceScope scope(arguments.q.device, nullptr);
    *result = new tilewise_plan{plan(describe(arguments), select_of(options.implementation))};
  });
}

template <typename Tensors>
tilewise_status run_planned(const tilewise_plan* planned, const Tensors* tensors,
                            const tilewise_attention_options* given, void* workspace, void* stream) {
  return guarded(
      [&] { run(required(planned, "plan")->plan, arguments_of(tensors, complete(given)), workspace, stream); });
}

template <typename Tensors>
tilewise_status describe_call(const Tensors* tensors, const tilewise_attention_options* given, char** problem) {
  return guarded([&] {
    required(problem, "problem");
    *problem = text_for_caller(to_string(describe(arguments_of(tensors, complete(given)))));
  });
}

std::vector<TensorView> views_of(const DLTensor* const* tensors, std::size_t count, std::string_view name) {
  std::vector<TensorView> views;
  if (count > 0) required(tensors, name);
  for (std::size_t n = 0; n < count; ++n) {
    const std::string entry = core::concat(name, "[", n, "]");
    views.push_back(from_dlpack(*required(tensors[n], entry), entry));
  }
  return views;
}

}  // namespace
}  // namespace tilewise

using namespace tilewise;  // the functions below are C's

tilewise_status tilewise_attention_options_init(tilewise_attention_options* options, size_t struct_size) {
  return guarded([&] {
    required(options, "options");
    check_struct_size(struct_size);
    const tilewise_attention_options fresh = default_options(struct_size);
    std::memcpy(options, &fresh, struct_size);
  });
}

tilewise_status tilewise_attention_forward(const tilewise_forward_tensors* tensors,
                                           const tilewise_attention_options* given) {
  return guarded([&] {
    const tilewise_attention_options options = complete(given);
    attention_forward(arguments_of(tensors, options), select_of(options.implementation));
  });
}

tilewise_status tilewise_attention_backward(const tilewise_backward_tensors* tensors,
                                            const tilewise_attention_options* given) {
  return guarded([&] {
    const tilewise_attention_options options = complete(given);
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

tilewise_status tilewise_plan_problem(const char* problem, const char* implementation, tilewise_plan** result) {
  return guarded([&] {
    required(result, "plan");
    *result = new tilewise_plan{plan(parse_problem(required(problem, "problem")), select_of(implementation))};
  });
}

tilewise_status tilewise_plan_run_forward(const tilewise_plan* plan, const tilewise_forward_tensors* tensors,
                                          const tilewise_attention_options* options, void* workspace, void* stream) {
  return run_planned(plan, tensors, options, workspace, stream);
}

tilewise_status tilewise_plan_run_backward(const tilewise_plan* plan, const tilewise_backward_tensors* tensors,
                                           const tilewise_attention_options* options, void* workspace, void* stream) {
  return run_planned(plan, tensors, options, workspace, stream);
}

tilewise_status tilewise_plan_workspace_size(const tilewise_plan* plan, size_t* size) {
  return guarded([&] { *required(size, "size") = required(plan, "plan")->plan.workspace_size(); });
}

tilewise_status tilewise_plan_implementation(const tilewise_plan* plan, const char** name) {
  // Implementations name themselves with string literals, which end in a null.
  return guarded([&] { *required(name, "name") = required(plan, "plan")->plan.implementation().data(); });
}

void tilewise_plan_destroy(tilewise_plan* plan) { delete plan; }

tilewise_status tilewise_describe_forward(const tilewise_forward_tensors* tensors,
                                          const tilewise_attention_options* options, char** problem) {
  return describe_call(tensors, options, problem);
}

tilewise_status tilewise_describe_backward(const tilewise_backward_tensors* tensors,
                                           const tilewise_attention_options* options, char** problem) {
  return describe_call(tensors, options, problem);
}

tilewise_status tilewise_parse_problem(const char* problem, char** normal_form) {
  return guarded([&] {
    required(normal_form, "normal_form");
    *normal_form = text_for_caller(to_string(parse_problem(required(problem, "problem"))));
  });
}

tilewise_status tilewise_explain(const char* problem, const char* implementation, char** table) {
  return guarded([&] {
    required(table, "table");
    const Problem parsed = parse_problem(required(problem, "problem"));
    *table = text_for_caller(explain(parsed, select_of(implementation)).to_string());
  });
}

void tilewise_free_text(char* text) { std::free(text); }

tilewise_status tilewise_merge(const DLTensor* const* outs, const DLTensor* const* lses, size_t count,
                               const DLTensor* sink, const DLTensor* out, const DLTensor* softmax_lse,
                               tilewise_layout layout) {
  return guarded([&] {
    tilewise::merge(views_of(outs, count, "outs"), views_of(lses, count, "lses"), view_of(sink, "sink"),
                    view_of(out, "out"), view_of(softmax_lse, "softmax_lse"),
                    enum_of<Layout>(static_cast<std::int32_t>(layout), "layout"));
  });
}

tilewise_status tilewise_set_num_threads(int num_threads) {
  return guarded([&] { set_num_threads(num_threads); });
}

tilewise_status tilewise_get_num_threads(int* num_threads) {
  return guarded([&] { *required(num_threads, "num_threads") = get_num_threads(); });
}

const char* tilewise_last_error(void) { return last_error().c_str(); }

const char* tilewise_version(void) {
  return version().data();  // a literal: it ends in a zero
}
