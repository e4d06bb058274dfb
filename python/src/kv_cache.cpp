// kv_cache_attention and append_kv on Arrays. Outputs are allocated by the caller, as those of attention.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "array.hpp"
#include "bindings.hpp"
#include "core/num_threads.hpp"
#include "operations/kv_cache/schema.hpp"
#include "outputs.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::python {
namespace {

/// KvCacheOptions with the arrays that it borrows kept alive.
struct CacheOptions {
  KvCacheOptions value;
  std::vector<Array> arrays;

  void take(std::optional<Array> array, TensorView KvCacheOptions::* field) {
    if (!array) return;
    value.*field = array->view();
    arrays.push_back(std::move(*array));
  }
};

/// `fresh_out`: out was allocated for this call, as softmax_lse always is.
void attend(const Array& q, const Array& k_cache, const Array* v_cache, const Array* k, const Array* v,
            const Array& out, const Array* softmax_lse, const CacheOptions& options, const std::string& implementation,
            int torch_threads, bool fresh_out, std::uintptr_t stream) {
  const KvCacheArguments arguments{q.view(),   k_cache.view(), view_of(v_cache),     view_of(k),
                                   view_of(v), out.view(),     view_of(softmax_lse), options.value};
  const nb::gil_scoped_release release;
  const core::FrameworkThreads threads(torch_threads);
  const TensorView& cu_seqlens = arguments.options.cu_seqlens_q;
  if (fresh_out) clear_before(arguments.out, cu_seqlens, stream_pointer(stream));
  clear_lse_before(arguments.softmax_lse, cu_seqlens, stream_pointer(stream));
  kv_cache_attention(arguments, {implementation}, stream_pointer(stream));
  if (fresh_out) clear_rest(arguments.out, cu_seqlens);
  clear_rest_of_lse(arguments.softmax_lse, cu_seqlens);
}

void append(const Array& k_cache, const Array* v_cache, const Array& k, const Array* v, const CacheOptions& options,
            const std::string& implementation, int torch_threads, std::uintptr_t stream) {
  const AppendKvArguments arguments{k_cache.view(), view_of(v_cache), k.view(), view_of(v), options.value};
  const nb::gil_scoped_release release;
  const core::FrameworkThreads threads(torch_threads);
  append_kv(arguments, {implementation}, stream_pointer(stream));
}

void bind_cache_options(nb::module_& module) {
  using OptionalArray = std::optional<Array>;
  using OptionalInteger = std::optional<std::int64_t>;
  nb::class_<CacheOptions>(module, "KvCacheOptions", "Everything about a step that is not q, a cache, k, v or out.")
      .def(
          "__init__",
          [](CacheOptions* self, bool rotary_interleaved, std::int64_t rotary_offset, OptionalInteger cache_seqlen,
             OptionalInteger max_seqlen_q, OptionalInteger max_seqlen_k_new, OptionalInteger head_dim_v,
             std::optional<double> k_scale_value, std::optional<double> v_scale_value, bool causal,
             std::int64_t window_left, std::int64_t window_right, std::optional<double> softmax_scale, double softcap,
             std::int64_t num_splits, bool batch_invariant, OptionalArray rotary_cos, OptionalArray rotary_sin,
             OptionalArray rotary_seqlens, OptionalArray cache_seqlens, OptionalArray cache_batch_idx,
             OptionalArray cache_leftpad, OptionalArray block_table, OptionalArray slots, OptionalArray cu_seqlens_q,
             OptionalArray cu_seqlens_k_new, OptionalArray k_scale, OptionalArray v_scale, OptionalArray alibi_slopes,
             OptionalArray sink) {
            CacheOptions options;
            KvCacheOptions& value = options.value;
            value.rotary_interleaved = rotary_interleaved;
            value.rotary_offset = rotary_offset;
            value.cache_seqlen = cache_seqlen;
            value.max_seqlen_q = max_seqlen_q;
            value.max_seqlen_k_new = max_seqlen_k_new;
            value.head_dim_v = head_dim_v;
            value.k_scale_value = k_scale_value;
            value.v_scale_value = v_scale_value;
            value.mask = causal ? Mask::causal : Mask::none;
            value.window_left = window_left;
            value.window_right = window_right;
            value.softmax_scale = softmax_scale;
            value.softcap = softcap;
            value.num_splits = num_splits;
            value.batch_invariant = batch_invariant;
            options.take(std::move(rotary_cos), &KvCacheOptions::rotary_cos);
            options.take(std::move(rotary_sin), &KvCacheOptions::rotary_sin);
            options.take(std::move(rotary_seqlens), &KvCacheOptions::rotary_seqlens);
            options.take(std::move(cache_seqlens), &KvCacheOptions::cache_seqlens);
            options.take(std::move(cache_batch_idx), &KvCacheOptions::cache_batch_idx);
            options.take(std::move(cache_leftpad), &KvCacheOptions::cache_leftpad);
            options.take(std::move(block_table), &KvCacheOptions::block_table);
            options.take(std::move(slots), &KvCacheOptions::slots);
            options.take(std::move(cu_seqlens_q), &KvCacheOptions::cu_seqlens_q);
            options.take(std::move(cu_seqlens_k_new), &KvCacheOptions::cu_seqlens_k_new);
            options.take(std::move(k_scale), &KvCacheOptions::k_scale);
            options.take(std::move(v_scale), &KvCacheOptions::v_scale);
            options.take(std::move(alibi_slopes), &KvCacheOptions::alibi_slopes);
            options.take(std::move(sink), &KvCacheOptions::sink);
            new (self) CacheOptions(std::move(options));
          },
          nb::kw_only(), nb::arg("rotary_interleaved") = false, nb::arg("rotary_offset") = 0,
          nb::arg("cache_seqlen") = nb::none(), nb::arg("max_seqlen_q") = nb::none(),
          nb::arg("max_seqlen_k_new") = nb::none(), nb::arg("head_dim_v") = nb::none(),
          nb::arg("k_scale_value") = nb::none(), nb::arg("v_scale_value") = nb::none(), nb::arg("causal") = false,
          nb::arg("window_left") = -1, nb::arg("window_right") = -1, nb::arg("softmax_scale") = nb::none(),
          nb::arg("softcap") = 0.0, nb::arg("num_splits") = 0, nb::arg("batch_invariant") = false,
          nb::arg("rotary_cos") = nb::none(), nb::arg("rotary_sin") = nb::none(),
          nb::arg("rotary_seqlens") = nb::none(), nb::arg("cache_seqlens") = nb::none(),
          nb::arg("cache_batch_idx") = nb::none(), nb::arg("cache_leftpad") = nb::none(),
          nb::arg("block_table") = nb::none(), nb::arg("slots") = nb::none(), nb::arg("cu_seqlens_q") = nb::none(),
          nb::arg("cu_seqlens_k_new") = nb::none(), nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
          nb::arg("alibi_slopes") = nb::none(), nb::arg("sink") = nb::none());
}

}  // namespace

void bind_kv_cache(nb::module_& module) {
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
  bind_cache_options(module);
  module.def("kv_cache_attention", &attend, nb::arg("q"), nb::arg("k_cache"), optional("v_cache"), optional("k"),
             optional("v"), nb::arg("out"), optional("softmax_lse"), nb::arg("options"), nb::arg("implementation") = "",
             nb::arg("torch_threads") = 0, nb::arg("fresh_out") = true, nb::arg("stream") = 0,
             "Appends k and v to the caches, where given, and writes out and softmax_lse.");
  module.def("append_kv", &append, nb::arg("k_cache"), optional("v_cache"), nb::arg("k"), optional("v"),
             nb::arg("options"), nb::arg("implementation") = "", nb::arg("torch_threads") = 0, nb::arg("stream") = 0,
             "Appends k and v to the caches.");
}

}  // namespace tilewise::python
