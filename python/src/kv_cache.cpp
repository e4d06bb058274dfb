// kv_cache_attention and append_kv on Arrays. Outputs are allocated by the caller, as those of attention.
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <tuple>

#include "array.hpp"
#include "bindings.hpp"
#include "core/num_threads.hpp"
#include "operations/kv_cache/schema.hpp"
#include "options.hpp"
#include "outputs.hpp"
#include "schema_options.hpp"
#include "tilewise/kv_cache.hpp"

namespace tilewise::python {
namespace {

using CacheOptions = OptionsOf<KvCacheOptions>;
using BySchema = OptionsBySchema<operations::kv_cache::kSchema, KvCacheArguments>;

constexpr auto kKvCacheKeywords =
    std::tuple_cat(BySchema::of_kind<BySchema::Kind::tensor>(), BySchema::of_kind<BySchema::Kind::value>(),
                   BySchema::of_kind<BySchema::Kind::number>(), BySchema::of_kind<BySchema::Kind::function>());

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

}  // namespace

void bind_kv_cache(nb::module_& module) {
  const auto optional = [](const char* name) { return nb::arg(name).none(); };
  OptionsBinding<kKvCacheKeywords, KvCacheOptions>::define(
      module, "KvCacheOptions", "Everything about a step that is not q, a cache, k, v or out.");
  module.def("kv_cache_attention", &attend, nb::arg("q"), nb::arg("k_cache"), optional("v_cache"), optional("k"),
             optional("v"), nb::arg("out"), optional("softmax_lse"), nb::arg("options"), nb::arg("implementation") = "",
             nb::arg("torch_threads") = 0, nb::arg("fresh_out") = true, nb::arg("stream") = 0,
             "Appends k and v to the caches, where given, and writes out and softmax_lse.");
  module.def("append_kv", &append, nb::arg("k_cache"), optional("v_cache"), nb::arg("k"), optional("v"),
             nb::arg("options"), nb::arg("implementation") = "", nb::arg("torch_threads") = 0, nb::arg("stream") = 0,
             "Appends k and v to the caches.");
}

}  // namespace tilewise::python
