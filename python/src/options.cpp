// Turns keyword values into AttentionOptions. Ranges and combinations are the core's to judge;
// only names and the mapping to fields live here.
#include "options.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings.hpp"
#include "operations/attention/names.hpp"

namespace tilewise::python {
namespace {

/// Everything that is an array; each one optional.
struct OptionArrays {
  std::optional<Array> seed_and_offset, bias, alibi_slopes, sink, cu_seqlens_q, cu_seqlens_k, seqused_q, seqused_k,
      leftpad_k, q_scale, k_scale, v_scale;
};

void take(std::optional<Array>& array, TensorView AttentionOptions::* field, Options* options) {
  if (!array) return;
  options->value.*field = array->view();
  options->arrays.push_back(std::move(*array));
}

void take_all(OptionArrays arrays, Options* options) {
  take(arrays.seed_and_offset, &AttentionOptions::seed_and_offset, options);
  take(arrays.bias, &AttentionOptions::bias, options);
  take(arrays.alibi_slopes, &AttentionOptions::alibi_slopes, options);
  take(arrays.sink, &AttentionOptions::sink, options);
  take(arrays.cu_seqlens_q, &AttentionOptions::cu_seqlens_q, options);
  take(arrays.cu_seqlens_k, &AttentionOptions::cu_seqlens_k, options);
  take(arrays.seqused_q, &AttentionOptions::seqused_q, options);
  take(arrays.seqused_k, &AttentionOptions::seqused_k, options);
  take(arrays.leftpad_k, &AttentionOptions::leftpad_k, options);
  take(arrays.q_scale, &AttentionOptions::q_scale, options);
  take(arrays.k_scale, &AttentionOptions::k_scale, options);
  take(arrays.v_scale, &AttentionOptions::v_scale, options);
}

}  // namespace

void bind_options(nb::module_& module) {
  module.def("layout_names",
             [] { return std::vector<std::string>(core::kNamesOf<Layout>.begin(), core::kNamesOf<Layout>.end()); });
  using OptionalArray = std::optional<Array>;
  nb::class_<Options>(module, "AttentionOptions", "Everything about a call that is not q, k, v or an output.")
      .def(
          "__init__",
          [](Options* self, const std::string& layout, bool causal, bool top_left, std::int64_t window_left,
             std::int64_t window_right, std::optional<double> softmax_scale, double softcap, double dropout_p,
             std::uint64_t seed, std::optional<std::int64_t> max_seqlen_q, std::optional<std::int64_t> max_seqlen_k,
             bool deterministic, bool batch_invariant, std::optional<double> q_scale_value,
             std::optional<double> k_scale_value, std::optional<double> v_scale_value, OptionalArray seed_and_offset,
             OptionalArray bias, OptionalArray alibi_slopes, OptionalArray sink, OptionalArray cu_seqlens_q,
             OptionalArray cu_seqlens_k, OptionalArray seqused_q, OptionalArray seqused_k, OptionalArray leftpad_k,
             OptionalArray q_scale, OptionalArray k_scale, OptionalArray v_scale, const std::string& score_mod,
             const std::string& mask_mod, std::vector<Array> tables) {
            Options options;
            AttentionOptions& value = options.value;
            value.layout = core::value_of<Layout>("layout", layout);
            value.mask = causal ? Mask::causal : Mask::none;
            value.alignment = top_left ? Alignment::top_left : Alignment::bottom_right;
            value.window_left = window_left;
            value.window_right = window_right;
            value.softmax_scale = softmax_scale;
            value.softcap = softcap;
            value.dropout_p = dropout_p;
            value.seed = seed;
            value.max_seqlen_q = max_seqlen_q;
            value.max_seqlen_k = max_seqlen_k;
            value.deterministic = deterministic;
            value.batch_invariant = batch_invariant;
            value.q_scale_value = q_scale_value;
            value.k_scale_value = k_scale_value;
            value.v_scale_value = v_scale_value;
            take_all({std::move(seed_and_offset), std::move(bias), std::move(alibi_slopes), std::move(sink),
                      std::move(cu_seqlens_q), std::move(cu_seqlens_k), std::move(seqused_q), std::move(seqused_k),
                      std::move(leftpad_k), std::move(q_scale), std::move(k_scale), std::move(v_scale)},
                     &options);
            value.score_mod = score_mod;
            value.mask_mod = mask_mod;
            for (Array& table : tables) {
              value.tables.push_back(table.view());
              options.arrays.push_back(std::move(table));
            }
            new (self) Options(std::move(options));
          },
          nb::kw_only(), nb::arg("layout") = "bshd", nb::arg("causal") = false, nb::arg("top_left") = false,
          nb::arg("window_left") = -1, nb::arg("window_right") = -1, nb::arg("softmax_scale") = nb::none(),
          nb::arg("softcap") = 0.0, nb::arg("dropout_p") = 0.0, nb::arg("seed") = 0,
          nb::arg("max_seqlen_q") = nb::none(), nb::arg("max_seqlen_k") = nb::none(), nb::arg("deterministic") = false,
          nb::arg("batch_invariant") = false, nb::arg("q_scale_value") = nb::none(),
          nb::arg("k_scale_value") = nb::none(), nb::arg("v_scale_value") = nb::none(),
          nb::arg("seed_and_offset") = nb::none(), nb::arg("bias") = nb::none(), nb::arg("alibi_slopes") = nb::none(),
          nb::arg("sink") = nb::none(), nb::arg("cu_seqlens_q") = nb::none(), nb::arg("cu_seqlens_k") = nb::none(),
          nb::arg("seqused_q") = nb::none(), nb::arg("seqused_k") = nb::none(), nb::arg("leftpad_k") = nb::none(),
          nb::arg("q_scale") = nb::none(), nb::arg("k_scale") = nb::none(), nb::arg("v_scale") = nb::none(),
          nb::arg("score_mod") = "", nb::arg("mask_mod") = "", nb::arg("tables") = std::vector<Array>());
}

}  // namespace tilewise::python
