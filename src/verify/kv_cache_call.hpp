// The tensors of one KV cache call, drawn from a seed for a problem: pages in random order, lengths and tables with
// anything where nothing may be read, caches that are outputs where keys are appended.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "operations/kv_cache/kv_cache.hpp"
#include "operations/kv_cache/sequence.hpp"
#include "verify/drawn_call.hpp"

namespace tilewise::verify {

/// Everything a call reads, a pure function of (problem, seed, values).
class DrawnKvCache final : public DrawnCall {
 public:
  DrawnKvCache(const KvCacheProblem& problem, std::uint64_t seed, Values values);

  [[nodiscard]] AnyProblem any_problem() const override { return problem_; }
  /// out and softmax_lse; where keys are appended, caches and scales per token too, with what they hold before.
  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override;
  [[nodiscard]] KvCacheArguments arguments(const std::vector<Output>& outputs) const;
  [[nodiscard]] AppendKvArguments append_arguments(const std::vector<Output>& outputs) const;

  using DrawnCall::plan;
  [[nodiscard]] Plan plan(std::string_view implementation, const std::vector<Output>& outputs,
                          const Change& change) const override;
  void launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
              const Change& change) const override;
  void for_each_tensor(const std::vector<Output>& outputs, const Change& change,
                       const TensorVisitor& visit) const override;
  [[nodiscard]] std::vector<ErrorBounds> bounds(const std::vector<Output>& expected, double tanh_error) const override;

 private:
  [[nodiscard]] bool alone() const { return problem_.call == KvCacheCall::append_kv; }
  [[nodiscard]] std::vector<std::int64_t> rows_shape(bool queries, std::int64_t heads, std::int64_t dim) const;
  [[nodiscard]] std::vector<std::int64_t> cache_shape(std::int64_t dim) const;
  [[nodiscard]] std::vector<std::string_view> rows_axes() const;

  [[nodiscard]] Placement placement(std::size_t rank, DType dtype, bool last_contiguous, Random& rng) const;
  TensorView add(std::string name, DType dtype, const std::vector<std::int64_t>& shape, bool last_contiguous);
  TensorView add_normal(std::string name, DType dtype, const std::vector<std::int64_t>& shape);
  TensorView add_lengths(std::string name, const std::vector<std::int64_t>& values);
  [[nodiscard]] std::vector<std::int64_t> draw_cu_seqlens(std::int64_t total, std::int64_t longest);

  void draw_rows();
  void draw_lengths();
  void draw_pages();
  void draw_slots();
  void draw_caches();
  void draw_scales();
  void draw_rotary();
  void draw_scores();
  void draw_tables();
  void draw_indices(std::uint64_t seed);
  void draw_block_mask(std::uint64_t seed);
  /// Numbers where the call may read, elsewhere what must not reach a result.
  void fill_cache(const TensorView& cache);
  /// Those places that are in use.
  void fill_places(const TensorView& cache, const std::function<double()>& draw);
  /// Element [0] of a place of a sequence in a cache.
  [[nodiscard]] std::int64_t place_offset(const TensorView& cache, std::size_t sequence, std::int64_t place) const;
  /// Puts up to three special values into queries, new keys and values, and places of the cache that are in use.
  void plant_special_values(Random& rng);
  /// Makes scores or sinks large, or both.
  void draw_large_values(Random& rng);

  KvCacheProblem problem_;
  Values values_;
  Random rng_;
  bool aligned_;  // rows of q, caches and what is like them start on 16 bytes, where packing lets them
  std::vector<std::int64_t> cu_q_, cu_new_, cached_, leftpad_, rows_;  // of each sequence; rows_ of a contiguous cache
  TensorView q_, k_, v_, k_cache_, v_cache_;
  KvCacheOptions options_;
};

/// How far from the reference a correct kernel may be, element by element; see error_bounds.hpp. Caches and scales
/// must be equal: every implementation rounds them alike. With special values, where they may show is as reach.hpp has
/// it of attention.
[[nodiscard]] std::vector<ErrorBounds> kv_cache_bounds(const operations::kv_cache::KvCacheParams& params,
                                                       const KvCacheProblem& problem,
                                                       const std::vector<Output>& expected, Values values,
                                                       double tanh_error);

}  // namespace tilewise::verify
