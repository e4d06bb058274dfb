// The C interface of the KV cache step: options and tensors to arguments, and its calls and plans.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/c_api.hpp"
#include "core/device.hpp"
#include "operations/derived/c_struct.hpp"
#include "operations/functions_in_c.hpp"
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
    const KvCacheOptions fresh;
    options.block_rows = fresh.block_rows;
    options.block_keys = fresh.block_keys;
    return options;
  }
};

KvCacheArguments arguments_of(const tilewise_kv_cache_tensors* tensors, const tilewise_kv_cache_options& options) {
  KvCacheArguments arguments;
  schema::take_c<kSchema>(*required(tensors, "tensors"), arguments);
  schema::take_c<kSchema>(options, arguments);
  if (options.has_softmax_scale != 0) arguments.options.softmax_scale = options.softmax_scale;
  take_tables(options, arguments.options);
  take_block_mask(options, arguments.options);
  return arguments;
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
