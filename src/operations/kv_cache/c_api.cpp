// The C interface of the KV cache step: options and tensors to arguments, and its calls and plans.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/c_api.hpp"
#include "core/device.hpp"
#include "operations/kv_cache/schema.hpp"
#include "tilewise/c/kv_cache.h"
#include "tilewise/kv_cache.hpp"

namespace tilewise::operations::kv_cache {
namespace {

using namespace core::c;
using core::invalid_argument;

/// Options of C; see core/c_api.hpp.
struct COptions {
  using Options = tilewise_kv_cache_options;
  static constexpr std::size_t kSmallest = offsetof(Options, implementation) + sizeof(Options::implementation);
  static constexpr std::string_view kInit = "tilewise_kv_cache_options_init";
  static Options defaults() {
    tilewise_kv_cache_options options{};
    options.window_left = options.window_right = -1;
    options.cache_seqlen = options.max_seqlen_q = options.max_seqlen_k_new = options.head_dim_v = -1;
    return options;
  }
};

std::optional<std::int64_t> given_integer(std::int64_t value) {
  return value == -1 ? std::nullopt : std::optional(value);
}
std::optional<double> given_number(double value) { return value == 0.0 ? std::nullopt : std::optional(value); }

KvCacheOptions options_of(const tilewise_kv_cache_options& c) {
  KvCacheOptions o;
  o.rotary_cos = view_of(c.rotary_cos, "rotary_cos");
  o.rotary_sin = view_of(c.rotary_sin, "rotary_sin");
  o.rotary_seqlens = view_of(c.rotary_seqlens, "rotary_seqlens");
  o.rotary_offset = c.rotary_offset;
  o.rotary_interleaved = c.rotary_interleaved != 0;
  o.mask = core::value_at<Mask>("mask", c.mask);
  o.cache_seqlens = view_of(c.cache_seqlens, "cache_seqlens");
  o.cache_seqlen = given_integer(c.cache_seqlen);
  o.cache_batch_idx = view_of(c.cache_batch_idx, "cache_batch_idx");
  o.cache_leftpad = view_of(c.cache_leftpad, "cache_leftpad");
  o.block_table = view_of(c.block_table, "block_table");
  o.slots = view_of(c.slots, "slots");
  o.cu_seqlens_q = view_of(c.cu_seqlens_q, "cu_seqlens_q");
  o.cu_seqlens_k_new = view_of(c.cu_seqlens_k_new, "cu_seqlens_k_new");
  o.max_seqlen_q = given_integer(c.max_seqlen_q);
  o.max_seqlen_k_new = given_integer(c.max_seqlen_k_new);
  o.head_dim_v = given_integer(c.head_dim_v);
  o.k_scale = view_of(c.k_scale, "k_scale");
  o.v_scale = view_of(c.v_scale, "v_scale");
  o.k_scale_value = given_number(c.k_scale_value);
  o.v_scale_value = given_number(c.v_scale_value);
  if (c.has_softmax_scale != 0) o.softmax_scale = c.softmax_scale;
  o.batch_invariant = c.batch_invariant != 0;
  o.softcap = c.softcap;
  o.window_left = c.window_left;
  o.window_right = c.window_right;
  o.alibi_slopes = view_of(c.alibi_slopes, "alibi_slopes");
  o.sink = view_of(c.sink, "sink");
  o.num_splits = c.num_splits;
  return o;
}

KvCacheArguments arguments_of(const tilewise_kv_cache_tensors* tensors, const tilewise_kv_cache_options& options) {
  const tilewise_kv_cache_tensors& t = *required(tensors, "tensors");
  return {view_of(t.q, "q"), view_of(t.k_cache, "k_cache"), view_of(t.v_cache, "v_cache"),         view_of(t.k, "k"),
          view_of(t.v, "v"), view_of(t.out, "out"),         view_of(t.softmax_lse, "softmax_lse"), options_of(options)};
}

AppendKvArguments append_arguments_of(const tilewise_kv_cache_tensors* tensors,
                                      const tilewise_kv_cache_options& options) {
  KvCacheArguments a = arguments_of(tensors, options);
  const auto refuse = [](const TensorView& view, std::string_view name) {
    if (view.defined()) invalid_argument(name, ": belongs to kv_cache_attention (got it in append_kv)");
  };
  refuse(a.q, "q");
  refuse(a.out, "out");
  refuse(a.softmax_lse, "softmax_lse");
  return {a.k_cache, a.v_cache, a.k, a.v, a.options};
}

template <typename Arguments>
void make_plan(const Arguments& arguments, const tilewise_kv_cache_options& options, tilewise_plan** result) {
  const core::DeviceScope scope(arguments.k_cache.device, nullptr);
  *result = new tilewise_plan{plan(describe(arguments), select_of(options.implementation))};
}

}  // namespace
}  // namespace tilewise::operations::kv_cache

using namespace tilewise;  // the functions below are C's
using namespace tilewise::operations::kv_cache;

tilewise_status tilewise_kv_cache_options_init(tilewise_kv_cache_options* options, size_t struct_size) {
  return init_options<COptions>(options, struct_size);
}

tilewise_status tilewise_kv_cache_attention(const tilewise_kv_cache_tensors* tensors,
                                            const tilewise_kv_cache_options* given) {
  return guarded([&] {
    const tilewise_kv_cache_options options = complete<COptions>(given);
    kv_cache_attention(arguments_of(tensors, options), select_of(options.implementation));
  });
}

tilewise_status tilewise_append_kv(const tilewise_kv_cache_tensors* tensors, const tilewise_kv_cache_options* given) {
  return guarded([&] {
    const tilewise_kv_cache_options options = complete<COptions>(given);
    append_kv(append_arguments_of(tensors, options), select_of(options.implementation));
  });
}

tilewise_status tilewise_plan_kv_cache_attention(const tilewise_kv_cache_tensors* tensors,
                                                 const tilewise_kv_cache_options* given, tilewise_plan** plan) {
  return guarded([&] {
    const tilewise_kv_cache_options options = complete<COptions>(given);
    make_plan(arguments_of(tensors, options), options, required(plan, "plan"));
  });
}

tilewise_status tilewise_plan_append_kv(const tilewise_kv_cache_tensors* tensors,
                                        const tilewise_kv_cache_options* given, tilewise_plan** plan) {
  return guarded([&] {
    const tilewise_kv_cache_options options = complete<COptions>(given);
    make_plan(append_arguments_of(tensors, options), options, required(plan, "plan"));
  });
}

tilewise_status tilewise_plan_run_kv_cache_attention(const tilewise_plan* plan,
                                                     const tilewise_kv_cache_tensors* tensors,
                                                     const tilewise_kv_cache_options* given, void* workspace,
                                                     void* stream) {
  return guarded(
      [&] { run(required(plan, "plan")->plan, arguments_of(tensors, complete<COptions>(given)), workspace, stream); });
}

tilewise_status tilewise_plan_run_append_kv(const tilewise_plan* plan, const tilewise_kv_cache_tensors* tensors,
                                            const tilewise_kv_cache_options* given, void* workspace, void* stream) {
  return guarded([&] {
    run(required(plan, "plan")->plan, append_arguments_of(tensors, complete<COptions>(given)), workspace, stream);
  });
}
