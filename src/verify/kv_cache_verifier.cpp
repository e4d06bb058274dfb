// Drawing problems of the KV cache step: by the list of fields, with lengths and pages around the blocks of kernels.
#include <algorithm>
#include <cmath>
#include <type_traits>

#include "core/ceil_div.hpp"
#include "core/message.hpp"
#include "operations/kv_cache/kv_cache.hpp"
#include "verify/draw_block_mask.hpp"
#include "verify/draw_fields.hpp"
#include "verify/draw_functions.hpp"
#include "verify/draw_indices.hpp"
#include "verify/kv_cache_call.hpp"
#include "verify/verifier.hpp"

namespace tilewise::verify {
namespace {

using operations::KvCache, operations::kv_cache::Feature, operations::kv_cache::FeatureSet;
using operations::kv_cache::capacity_of, operations::kv_cache::is_packed, operations::kv_cache::is_paged;

/// Multiply-adds of attention over full caches, and of the append.
double cost(const KvCacheProblem& p) {
  const auto f = [](std::int64_t n) { return static_cast<double>(n); };
  const double rows = f(operations::kv_cache::rows_of_queries(p)) * f(p.num_heads_q);
  const double appended = f(operations::kv_cache::rows_of_new_keys(p)) * f(p.num_heads_k);
  return 2.0 * (rows * f(capacity_of(p)) + appended) * f(p.head_dim + p.head_dim_v);
}

std::int64_t draw_length(Random& rng) {
  if (rng.chance(0.04)) return 0;
  return rng.chance(0.5) ? rng.integer(1, 4) : rng.integer(1, 70);
}

/// What may change while the same compiled kernels serve the problem.
std::int64_t draw_length_field(std::string_view key, std::int64_t by_default, Random& rng) {
  if (key == "batch_size") return rng.chance(0.02) ? 0 : rng.pick<std::int64_t>({1, 1, 2, 3, 5});
  if (key == "batch_size_cache") return by_default + rng.integer(0, 3);
  if (key == "seqlen_q" || key == "max_seqlen_q" || key == "seqlen_k_new" || key == "max_seqlen_k_new")
    return draw_length(rng);
  if (key == "total_q" || key == "total_k_new") return rng.integer(0, 2 * by_default + 4);
  if (key == "max_pages_per_seq") return rng.integer(1, 12);
  if (key == "num_pages") return rng.integer(1, 40);
  if (key == "capacity") return rng.chance(0.2) ? rng.integer(200, 1500) : rng.integer(1, 200);
  return by_default;
}

std::int64_t draw_head_dim(std::int64_t multiple, Random& rng) {
  const std::int64_t any = rng.chance(0.5) ? rng.pick<std::int64_t>({8, 16, 32, 64, 64, 80, 128, 128, 192, 256, 512})
                                           : rng.integer(1, rng.chance(0.7) ? 70 : 576);
  return std::min(core::ceil_div(any, multiple), 576 / multiple) * multiple;
}

std::int64_t draw_size(std::string_view key, std::int64_t by_default, std::int64_t head_dim_multiple, Random& rng) {
  if (key == "num_heads_q") return rng.pick<std::int64_t>({1, 2, 4, 6, 8, 16, 32});
  if (key == "num_heads_k") return rng.pick<std::int64_t>({1, 2, 4, 8});
  if (key == "head_dim" || key == "head_dim_v") return draw_head_dim(head_dim_multiple, rng);
  if (key == "page_size") return rng.pick<std::int64_t>({0, 0, 1, 3, 16, 16, 64, 128, 256});
  if (key == "rotary_dim") return 2 * rng.integer(0, 40);
  if (key == "rotary_offset") return rng.pick<std::int64_t>({0, 0, 0, 2, 5});
  if (key == "window_left" || key == "window_right") return rng.chance(0.6) ? -1 : rng.integer(0, 80);
  if (key == "num_splits") return rng.pick<std::int64_t>({0, 0, 1, 2, 3, 7});
  return draw_length_field(key, by_default, rng);
}

/// Room for the new keys, and pages for every sequence.
void fit_capacity(KvCacheProblem& p) {
  if (p.slots != SlotKind::none) return;
  const std::int64_t longest = std::max(p.seqlen_k_new, is_packed(p) && p.append ? p.seqlen_q : 0);
  if (!is_paged(p)) {
    p.capacity = std::max(p.capacity, longest);
    return;
  }
  p.max_pages_per_seq = std::max(p.max_pages_per_seq, (longest + p.page_size - 1) / p.page_size);
  const std::int64_t least = p.append ? p.batch_size * p.max_pages_per_seq : 1;
  p.num_pages = std::max(p.num_pages, least);
}

/// Filling and comparing caches takes time too: shrinks them to half a million elements.
void fit_caches(KvCacheProblem& p) {
  const auto elements = [&p] {
    const std::int64_t places = is_paged(p) ? p.num_pages * p.page_size : p.batch_size_cache * p.capacity;
    return places * p.num_heads_k * (p.head_dim + p.head_dim_v);
  };
  while (elements() > 500000) {
    if (is_paged(p) && p.slots == SlotKind::none && p.max_pages_per_seq > 1) {
      p.max_pages_per_seq = 2 * p.max_pages_per_seq / 3;
      p.num_pages = p.append ? p.batch_size * p.max_pages_per_seq : std::max<std::int64_t>(1, p.num_pages / 2);
    } else if (is_paged(p) && p.num_pages > 1 && !(p.append && p.slots == SlotKind::none)) {
      p.num_pages /= 2;
    } else if (!is_paged(p) && p.capacity > 8) {
      p.capacity = 2 * p.capacity / 3;
    } else {
      return;
    }
  }
}

/// Shrinks the largest of what the cost grows with, keeping odd sizes odd.
void fit_cost(KvCacheProblem& p, double max_flops) {
  while (cost(p) > max_flops) {
    std::int64_t& keys = is_paged(p) ? p.max_pages_per_seq : p.capacity;
    std::int64_t& rows = is_packed(p) ? p.total_q : p.seqlen_q;
    const std::int64_t longest = std::max(p.seqlen_k_new, is_packed(p) && p.append ? p.seqlen_q : 0);
    if (capacity_of(p) > 2 * longest && capacity_of(p) > 8) {
      keys = 2 * keys / 3;
    } else if (rows > 2) {
      rows = 2 * rows / 3;
      if (is_packed(p)) p.seqlen_q = std::min(p.seqlen_q, p.total_q);
    } else if (longest > 2) {
      p.seqlen_k_new = 2 * p.seqlen_k_new / 3;
      if (!is_packed(p)) continue;
      p.seqlen_q = 2 * p.seqlen_q / 3;
      p.total_k_new = 2 * p.total_k_new / 3;
    } else {
      return;
    }
  }
}

class KvCacheVerifier final : public Verifier {
 public:
  [[nodiscard]] const core::OperationInterface& operation() const override {
    constexpr const KvCacheProblem* kTag = nullptr;
    return operation_of(kTag);
  }

  [[nodiscard]] AnyProblem random_problem(std::uint64_t seed, const Limits& limits) const override {
    Random rng(seed);
    const FeatureSet features = FeatureSet::from_bits(limits.features & FeatureSet::all().bits());
    const bool attend = features.contains(Feature::attend), append = features.contains(Feature::append);
    if (!attend && !append) core::invalid_argument("filter: must leave attend or append (got neither)");
    KvCacheProblem base;
    base.call = append && (rng.chance(0.25) || !attend) ? KvCacheCall::append_kv : KvCacheCall::kv_cache_attention;
    base.append = base.call == KvCacheCall::append_kv;
    base.head_dim = base.head_dim_v = 1;
    base.num_heads_q = base.num_heads_k = 1;
    base.softmax_scale = base.append ? 0.0 : 1.0;
    base.dtype = base.cache_dtype = lasting_dtype(features);
    KvCacheProblem problem = draw_fields<KvCache>(base, rng, limits, [&](std::string_view key, auto value) {
      using Value = decltype(value);
      if constexpr (std::is_same_v<Value, double>) {
        if (key == "softcap") {
          const double softcap = rng.chance(0.25) ? rng.uniform(2.0, 30.0) : 0.0;
          return softcap > 25.0 ? std::exp2(softcap) : softcap;
        }
        return rng.chance(0.2) ? rng.uniform(-0.3, 0.5) : value;
      } else if constexpr (std::is_same_v<Value, std::int64_t>) {
        return draw_size(key, value, limits.head_dim_multiple, rng);
      } else {
        return value;  // functions: see below
      }
    });
    problem = fitted(problem, limits);
    draw_functions(problem, features, ~seed);
    draw_selected(problem, features, seed + 0x5E1Eu);
    draw_block_mask(problem, features, seed + 0xB10Cu);
    return problem;
  }

  [[nodiscard]] AnyProblem resized(const AnyProblem& problem, std::uint64_t seed, const Limits& limits) const override {
    Random rng(seed);
    KvCacheProblem resized = problem.get<KvCacheProblem>();
    KvCache::for_each_field(resized, [&rng](std::string_view key, auto& field, const auto& /*by_default*/) {
      if constexpr (std::is_same_v<std::remove_cvref_t<decltype(field)>, std::int64_t>)
        field = draw_length_field(key, field, rng);
    });
    if (!resized.cache_batch_idx) resized.batch_size_cache = resized.batch_size;
    resized = fitted(resized, limits);
    try {
      tilewise::validate(resized);
    } catch (const Error&) {
      return problem;  // these lengths don't go together
    }
    return resized;
  }

  [[nodiscard]] std::unique_ptr<const DrawnCall> draw(const AnyProblem& problem, std::uint64_t seed,
                                                      Values values) const override {
    return std::make_unique<DrawnKvCache>(problem.get<KvCacheProblem>(), seed, values);
  }

 private:
  static KvCacheProblem fitted(KvCacheProblem problem, const Limits& limits) {
    fit_capacity(problem);
    fit_caches(problem);
    fit_cost(problem, limits.max_flops);
    fit_capacity(problem);
    return operations::kv_cache::canonical(problem);
  }
  /// From a seed of their own, so that all else is as without.
  static void draw_functions(KvCacheProblem& problem, FeatureSet features, std::uint64_t seed) {
    if (operations::kv_cache::appends_alone(problem)) return;
    Random rng(seed);
    if (features.contains(Feature::score_mod) && rng.chance(0.08)) problem.score_mod = drawn_score_mod(rng);
    if (features.contains(Feature::mask_mod) && rng.chance(0.08)) problem.mask_mod = drawn_mask_mod(rng);
    if (problem.score_mod.empty() && problem.mask_mod.empty()) return;
    problem.tables = drawn_tables(problem.batch_size, problem.num_heads_q, capacity_of(problem), rng);
    problem = operations::kv_cache::canonical(problem);
  }
  static void draw_selected(KvCacheProblem& problem, FeatureSet features, std::uint64_t seed) {
    Random rng(seed);
    if (operations::kv_cache::appends_alone(problem) || !features.contains(Feature::key_indices) || !rng.chance(0.08))
      return;
    draw_top_k(problem, capacity_of(problem), rng);
  }
  static void draw_block_mask(KvCacheProblem& problem, FeatureSet features, std::uint64_t seed) {
    Random rng(seed);
    if (operations::kv_cache::appends_alone(problem) || !features.contains(Feature::block_mask) || !rng.chance(0.08))
      return;
    problem.block_mask = drawn_block_mask_shape(rng);
    problem = operations::kv_cache::canonical(problem);
  }
  /// One that the limits leave.
  static DType lasting_dtype(FeatureSet features) {
    for (const DType dtype : {DType::f32, DType::bf16, DType::f16})
      if (features.contains(operations::kv_cache::feature_of(dtype))) return dtype;
    core::invalid_argument("filter: must leave f32, bf16 or f16 (got none)");
  }
};

}  // namespace

template <>
const Verifier& verifier<operations::KvCache>() {
  static const KvCacheVerifier verifier;
  return verifier;
}

}  // namespace tilewise::verify
