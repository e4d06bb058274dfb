// Drawing valid Problems over the whole feature space, with a bias towards edges: lengths around
// tile sizes, dimensions that divide nothing, options in combination.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/schema.hpp"
#include "operations/attention/score_functions.hpp"
#include "operations/derived/call.hpp"
#include "verify/draw_block_mask.hpp"
#include "verify/draw_functions.hpp"
#include "verify/draw_indices.hpp"
#include "verify/random.hpp"
#include "verify/verify.hpp"

namespace tilewise::verify {
namespace {

using operations::attention::Feature;

class ProblemDraw {
 public:
  ProblemDraw(std::uint64_t seed, const Filter& filter)
      : rng_(seed), softcap_rng_(seed + 0x50F7CA9u), selected_rng_(seed + 0x5E1EC7u), filter_(filter) {}

  /// The options and heads of `problem`, in other sizes.
  Problem resize(const Problem& problem) {
    p_ = problem;
    draw_batch();
    draw_lengths();
    fit_cost();
    draw_totals();
    p_.bias_dims = {p_.bias_dims.batch && p_.batch_size != 1, p_.bias_dims.head && p_.num_heads_q != 1,
                    p_.bias_dims.query && p_.seqlen_q != 1, p_.bias_dims.key && p_.seqlen_k != 1};
    return operations::attention::canonical(p_);
  }

  Problem draw() {
    draw_operation();
    draw_heads();
    draw_lengths();
    fit_cost();
    draw_totals();
    draw_mask();
    draw_scores();
    draw_bias();
    draw_dropout();
    draw_outputs();
    draw_functions();
    draw_selected();
    draw_block_mask();
    return operations::attention::canonical(p_);
  }

 private:
  /// Few: most implementations refuse them.
  void draw_functions() {
    if (wanted(Feature::score_mod, 0.04)) p_.score_mod = drawn_score_mod(rng_);
    if (wanted(Feature::mask_mod, 0.04)) p_.mask_mod = drawn_mask_mod(rng_);
    if (!p_.score_mod.empty() || !p_.mask_mod.empty())
      p_.tables = drawn_tables(p_.batch_size, p_.num_heads_q, std::max(p_.seqlen_q, p_.seqlen_k), rng_);
    if (p_.operation == Operation::attention_forward || p_.score_mod.empty() || !wanted(Feature::dtables, 0.6)) return;
    for (std::size_t i = 0; i < p_.tables.size(); ++i) {
      const DType dtype = p_.tables[i].dtype;
      if (operations::attention::has_table_gradient(dtype) && rng_.chance(0.7)) p_.dtables |= std::int64_t{1} << i;
    }
  }

  /// Likewise, and from a seed of its own, so that problems drawn before it stay.
  void draw_selected() {
    const bool drawn = filter_.features.contains(Feature::key_indices) && selected_rng_.chance(0.05);
    if (drawn && !p_.dbias && p_.dtables == 0)  // which kernels do not combine with it
      draw_top_k(p_, p_.seqlen_k, selected_rng_);
  }

  void draw_block_mask() {
    if (wanted(Feature::block_mask, 0.05)) p_.block_mask = drawn_block_mask_shape(rng_);
  }

  /// True with a probability, where the filter allows the feature.
  bool wanted(Feature feature, double probability) {
    const bool drawn = rng_.chance(probability);  // drawn always: a filter changes as little as possible
    return drawn && filter_.features.contains(feature);
  }

  void draw_operation() {
    const bool forward = filter_.features.contains(Feature::forward);
    const bool backward = filter_.features.contains(Feature::backward);
    if (!forward && !backward) core::invalid_argument("filter: must leave forward or backward (got neither)");
    p_.operation =
        backward && (rng_.chance(0.5) || !forward) ? Operation::attention_backward : Operation::attention_forward;
    const bool others = filter_.features.contains(Feature::f32) || filter_.features.contains(Feature::bf16) ||
                        filter_.features.contains(Feature::f16) || filter_.features.contains(Feature::f64);
    if (!others && !(forward && filter_.features.contains(Feature::fp8_e4m3))) {
      core::invalid_argument("filter: must leave f32, bf16, f16, f64 or, forward, fp8_e4m3 (got none)");
    }
    if (!others) p_.operation = Operation::attention_forward;
    do {
      p_.dtype = rng_.pick({DType::f32, DType::bf16, DType::f16, DType::f64, DType::fp8_e4m3});
    } while (!filter_.features.contains(operations::attention::feature_of(p_.dtype)) ||
             (p_.dtype == DType::fp8_e4m3 && p_.operation == Operation::attention_backward));
    if (p_.dtype == DType::fp8_e4m3) draw_fp8();
    p_.layout = rng_.pick({Layout::bshd, Layout::bshd, Layout::sbhd, Layout::bhsd});
    if (wanted(Feature::packed, 0.3)) p_.layout = Layout::thd;
  }

  void draw_fp8() {
    const auto kind = [this] {
      return rng_.pick({ScaleKind::none, ScaleKind::tensor, ScaleKind::head, ScaleKind::batch_head});
    };
    p_.q_scale = kind();
    p_.k_scale = kind();
    p_.v_scale = kind();
    if (wanted(Feature::f16_out, 0.4)) p_.out_dtype = DType::f16;
  }

  std::int64_t draw_head_dim() {
    return std::min(core::ceil_div(draw_any_head_dim(), filter_.head_dim_multiple), 576 / filter_.head_dim_multiple) *
           filter_.head_dim_multiple;
  }
  std::int64_t draw_any_head_dim() {
    if (rng_.chance(0.45)) return rng_.pick<std::int64_t>({32, 64, 64, 80, 96, 128, 128, 192, 256});
    if (rng_.chance(0.5)) return rng_.integer(1, 70);
    return rng_.pick<std::int64_t>(
        {1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 65, 72, 100, 127, 129, 160, 255, 257, 320, 511, 512, 513, 575, 576});
  }

  void draw_batch() {
    p_.batch_size = rng_.pick<std::int64_t>({1, 1, 2, 2, 3, 5});
    if (rng_.chance(0.01)) p_.batch_size = 0;
  }

  void draw_heads() {
    draw_batch();
    p_.num_heads_k = rng_.pick<std::int64_t>({1, 1, 2, 3, 4});
    p_.num_heads_q = p_.num_heads_k;
    if (wanted(Feature::gqa, 0.5)) p_.num_heads_q *= rng_.pick<std::int64_t>({2, 3, 4, 5, 8});
    p_.head_dim = draw_head_dim();
    p_.head_dim_v = p_.head_dim;
    if (wanted(Feature::head_dim_v, 0.35)) p_.head_dim_v = draw_head_dim();
    const std::int64_t most = 512 / filter_.head_dim_multiple * filter_.head_dim_multiple;
    if (p_.head_dim_v > most) {
      p_.head_dim_v = most;
      if (!filter_.features.contains(Feature::head_dim_v)) p_.head_dim = most;
    }
  }

  std::int64_t draw_length() {
    if (rng_.chance(0.03)) return 0;
    if (rng_.chance(0.3)) return rng_.integer(1, 40);
    if (rng_.chance(0.5)) return rng_.pick<std::int64_t>({1, 2, 3, 5, 8, 12}) * 32 + rng_.integer(-1, 1);
    return rng_.integer(1, 700);
  }

  void draw_lengths() {
    p_.seqlen_q = draw_length();
    p_.seqlen_k = rng_.chance(0.4) ? p_.seqlen_q : draw_length();
    if (rng_.chance(0.12)) {  // decoding
      p_.seqlen_q = rng_.integer(1, 4);
      p_.seqlen_k = rng_.integer(100, 5000);
    }
  }

  /// Shrinks batch and heads first, then the longer length, keeping odd sizes odd.
  void fit_cost() {
    while (cost(p_) > filter_.max_flops) {
      const std::int64_t group = p_.num_heads_q / p_.num_heads_k;
      if (p_.batch_size > 2 && rng_.chance(0.7)) {
        p_.batch_size -= 1;
      } else if (p_.num_heads_q > 4 && rng_.chance(0.7)) {
        p_.num_heads_k = std::max<std::int64_t>(1, p_.num_heads_k / 2);
        p_.num_heads_q = p_.num_heads_k * (group > 4 ? group / 2 : group);
      } else if (p_.seqlen_q > 1 || p_.seqlen_k > 1) {
        std::int64_t& longer = p_.seqlen_q > p_.seqlen_k ? p_.seqlen_q : p_.seqlen_k;
        const bool same = p_.seqlen_q == p_.seqlen_k;
        longer = 2 * longer / 3;
        if (same) p_.seqlen_q = p_.seqlen_k = longer;
      } else if (p_.batch_size > 1 || p_.num_heads_q > 1) {
        p_.batch_size = p_.num_heads_q = p_.num_heads_k = 1;
      } else {
        return;  // one position of one head: as small as it gets
      }
    }
  }

  void draw_totals() {
    if (p_.layout != Layout::thd) return;
    const auto total = [this](std::int64_t longest) {
      const std::int64_t rows = p_.batch_size == 0 ? 0 : longest + rng_.integer(0, (p_.batch_size - 1) * longest);
      return rows + (rng_.chance(0.5) ? rng_.integer(1, 5) : 0);
    };
    p_.total_q = total(p_.seqlen_q);
    p_.total_k = p_.seqlen_q == p_.seqlen_k && rng_.chance(0.5) ? p_.total_q : total(p_.seqlen_k);
  }

  void draw_mask() {
    const auto window = [this](std::int64_t length) {
      return rng_.chance(0.3) ? rng_.integer(0, 3) : rng_.integer(0, std::max<std::int64_t>(1, length));
    };
    const bool right_allowed = filter_.features.contains(Feature::window_right);
    if (right_allowed && rng_.chance(0.35)) {
      p_.mask = Mask::causal;
    } else if (wanted(Feature::window_right, 0.25)) {
      p_.window_right = window(p_.seqlen_k);
    }
    if (wanted(Feature::window_left, 0.3)) p_.window_left = window(p_.seqlen_k);
    if (wanted(Feature::top_left, 0.35)) p_.alignment = Alignment::top_left;
  }

  void draw_scores() {
    p_.softmax_scale = operations::attention::default_softmax_scale(p_.head_dim);
    if (rng_.chance(0.2)) p_.softmax_scale *= rng_.uniform(0.1, 4.0);
    if (wanted(Feature::scale_sign, 0.1)) p_.softmax_scale = rng_.chance(0.3) ? 0.0 : -p_.softmax_scale;
    if (wanted(Feature::softcap, 0.2)) p_.softcap = rng_.pick({0.5, 2.0, 15.0, 50.0});
    if (p_.softcap > 0.0 && softcap_rng_.chance(0.4)) p_.softcap = softcap_rng_.pick({1e4, 1e5, 1e6, 1e7, 1e8});
    if (wanted(Feature::alibi, 0.2))
      p_.alibi_slopes = rng_.chance(0.5) ? AlibiKind::per_head : AlibiKind::per_batch_head;
    if (wanted(Feature::sink, 0.2))
      p_.sink = rng_.chance(0.5) || p_.dtype == DType::fp8_e4m3 ? SinkKind::f32 : SinkKind::query;
  }

  void draw_bias() {
    if (!wanted(Feature::bias, 0.35)) return;
    const bool half = p_.dtype != DType::f32 && p_.dtype != DType::fp8_e4m3;
    p_.bias = half && rng_.chance(0.4) ? BiasKind::query : BiasKind::f32;
    if (wanted(Feature::bias_boolean, 0.35)) p_.bias = BiasKind::boolean;
    const auto has = [this](std::int64_t size) { return size != 1 && rng_.chance(0.6); };
    p_.bias_dims = {has(p_.batch_size), has(p_.num_heads_q), has(p_.seqlen_q), has(p_.seqlen_k)};
  }

  void draw_dropout() {
    if (!wanted(Feature::dropout, 0.2)) return;
    // A scale of kept values up to 65536 would overflow f16.
    const bool fits = operations::attention::out_dtype_of(p_) != DType::f16;
    p_.dropout_p = fits && rng_.chance(0.1) ? 65535.0 / 65536.0 : rng_.pick({0.1, 0.5, 0.9, 1.0 / 65536.0});
  }

  /// Whatever calls switch on by a bool, and whichever tensors they may give, as the schema says.
  void draw_flags() {
    operations::schema::apply([this](const auto&... fields) { (draw_flag(fields), ...); },
                              operations::attention::kSchema.fields);
    const auto call = static_cast<std::size_t>(p_.operation);
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      const auto& tensor = kTensors[place];
      const bool may_be_given = kRoles[call][place] && tensor.access == core::Access::read && tensor.optional;
      if (may_be_given && tensor.given != nullptr) switch_on(tensor.given);
    }
  }
  template <typename Field>
  void draw_flag(const Field& field) {
    if constexpr (operations::schema::kLengthOf<decltype(field.members)> > 0)
      if constexpr (std::is_same_v<decltype(field.value), bool Problem::*>) switch_on(field.value);
  }
  /// Now and then, where the filter allows what it asks for.
  void switch_on(bool Problem::* field) {
    const operations::attention::FeatureSet without = operations::attention::required_features(p_);
    p_.*field = rng_.chance(0.2);
    const auto asked = operations::attention::required_features(p_).minus(without);
    if (!asked.minus(filter_.features).empty()) p_.*field = false;
  }

  void draw_outputs() {
    draw_flags();
    if (p_.operation == Operation::attention_forward) {
      p_.softmax_lse = rng_.chance(0.7);
      return;
    }
    p_.dbias = p_.bias != BiasKind::none && p_.bias != BiasKind::boolean && wanted(Feature::dbias, 0.7);
    p_.dsink = p_.sink != SinkKind::none && wanted(Feature::dsink, 0.7);
    if (rng_.chance(0.7)) return;
    p_.dq = rng_.chance(0.5);
    p_.dk = rng_.chance(0.5);
    p_.dv = rng_.chance(0.5);
    if (!(p_.dq || p_.dk || p_.dv || p_.dbias || p_.dsink)) p_.dq = true;
  }

  static constexpr const auto& kTensors = operations::schema::kTensors<operations::attention::kSchema>;
  static constexpr const auto& kRoles = operations::schema::kRoles<operations::attention::kSchema>;

  Random rng_;
  Random softcap_rng_;  // of its own, so that problems drawn before it stay
  Random selected_rng_;
  const Filter& filter_;
  Problem p_;
};

}  // namespace

double cost(const Problem& p) {
  const double pairs = static_cast<double>(p.batch_size) * static_cast<double>(p.num_heads_q) *
                       static_cast<double>(p.seqlen_q) * static_cast<double>(p.seqlen_k);
  const bool forward = p.operation == Operation::attention_forward;
  const auto dims = static_cast<double>(forward ? p.head_dim + p.head_dim_v : 3 * p.head_dim + 2 * p.head_dim_v);
  return 2.0 * pairs * dims;
}

Problem random_problem(std::uint64_t seed, const Filter& filter) { return ProblemDraw(seed, filter).draw(); }

Problem resized_problem(const Problem& problem, std::uint64_t seed, const Filter& filter) {
  return ProblemDraw(seed, filter).resize(problem);
}

}  // namespace tilewise::verify
