// What a Problem asks of an implementation. The only copy of this rule.
#include "core/features.hpp"

#include <array>

#include "core/problem_rules.hpp"

namespace tilewise::core {
namespace {

constexpr std::array<std::string_view, static_cast<std::size_t>(Feature::count_)> kNames{
    "forward",     "backward",     "f32",         "bf16",         "f16",      "f64",           "gqa",
    "head_dim_v",  "packed",       "window_left", "window_right", "top_left", "scale_sign",    "softcap",
    "bias",        "bias_boolean", "dbias",       "alibi",        "sink",     "dsink",         "dropout",
    "seed_tensor", "seqused_q",    "seqused_k",   "leftpad_k",    "dlse",     "deterministic", "batch_invariant"};
static_assert(!kNames.back().empty());

}  // namespace

Feature feature_of(DType dtype) {
  return dtype == DType::bf16  ? Feature::bf16
         : dtype == DType::f16 ? Feature::f16
         : dtype == DType::f64 ? Feature::f64
                               : Feature::f32;
}

FeatureSet required_features(const Problem& p) {
  FeatureSet set{feature_of(p.dtype)};
  const auto need = [&set](Feature feature, bool needed) {
    if (needed) set.insert(feature);
  };
  const bool backward = p.operation == Operation::attention_backward;
  need(Feature::forward, !backward);
  need(Feature::backward, backward);
  need(Feature::gqa, p.num_heads_q != p.num_heads_k);
  need(Feature::head_dim_v, p.head_dim_v != p.head_dim);
  need(Feature::packed, p.layout == Layout::thd);
  need(Feature::window_left, p.window_left >= 0);
  need(Feature::window_right, folded_window_right(p) >= 0);
  need(Feature::top_left, p.alignment == Alignment::top_left);
  need(Feature::scale_sign, p.softmax_scale <= 0.0);
  need(Feature::softcap, p.softcap > 0.0);
  need(Feature::bias, p.bias != BiasKind::none);
  need(Feature::bias_boolean, p.bias == BiasKind::boolean);
  need(Feature::dbias, p.dbias);
  need(Feature::alibi, p.alibi_slopes != AlibiKind::none);
  need(Feature::sink, p.sink != SinkKind::none);
  need(Feature::dsink, p.dsink);
  need(Feature::dropout, p.dropout_p > 0.0);
  need(Feature::seed_tensor, p.seed_tensor);
  need(Feature::seqused_q, p.seqused_q);
  need(Feature::seqused_k, p.seqused_k);
  need(Feature::leftpad_k, p.leftpad_k);
  need(Feature::dlse, p.dlse);
  need(Feature::deterministic, p.deterministic);
  need(Feature::batch_invariant, p.batch_invariant);
  return set;
}

std::string_view to_string(Feature feature) { return kNames[static_cast<std::size_t>(feature)]; }

std::string to_string(FeatureSet features) {
  std::string text;
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (!features.contains(static_cast<Feature>(i))) continue;
    if (!text.empty()) text += ", ";
    text += kNames[i];
  }
  return text;
}

}  // namespace tilewise::core
