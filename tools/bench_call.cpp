// What is measured of each operation, and the calls that are quick to say.
#include "bench_call.hpp"

#include <algorithm>
#include <cstdint>
#include <memory>

#include "bench_kv_cache.hpp"
#include "bench_schema.hpp"
#include "core/operation.hpp"
#include "operations/list.hpp"
#include "sample_call.hpp"

namespace tilewise::tools {
namespace {

class AttentionBench final : public BenchCall {
 public:
  explicit AttentionBench(const Problem& problem) : call_(problem) {}
  [[nodiscard]] AnyProblem problem() const override { return call_.problem(); }
  void run(const Plan& plan) const override { call_.run(plan); }
  [[nodiscard]] double flops() const override { return call_.flops(); }
  [[nodiscard]] double bytes() const override { return call_.bytes(); }
  [[nodiscard]] DType dtype() const override { return call_.problem().dtype; }

 private:
  SampleCall call_;
};

class MergeBench final : public SchemaBench<operations::Merge> {
 public:
  explicit MergeBench(const MergeProblem& problem) : SchemaBench(problem) {}
  /// Multiply-adds of all parts, twice that of the backward pass.
  [[nodiscard]] double flops() const override {
    const MergeProblem& p = own_problem();
    const auto elements = static_cast<double>(operations::merge::rows_of(p) * p.parts * p.head_dim_v);
    return (p.pass == MergePass::merge ? 2.0 : 4.0) * elements;
  }
};

/// Rows are dealt evenly to the experts.
class LinearBench final : public SchemaBench<operations::Linear> {
 public:
  explicit LinearBench(const LinearProblem& problem) : SchemaBench(problem) {
    const std::int64_t experts = std::max<std::int64_t>(problem.num_experts, 1);
    const auto end = [&](std::int64_t e) { return problem.tokens * e / experts; };
    const auto fill = [](const TensorView& view, const auto& value) {
      for (std::int64_t e = 0; view.defined() && e < view.numel(); ++e)
        operations::store_integer(view.dtype, view.data, e, value(e));
    };
    fill(one("offsets"), end);
    fill(one("counts"), [&](std::int64_t e) { return end(e + 1) - end(e); });
  }
  [[nodiscard]] double flops() const override { return operations::linear::flops(own_problem()); }
};

class RouteBench final : public SchemaBench<operations::Route> {
 public:
  /// A backward pass takes other experts for each token, no one of them twice.
  explicit RouteBench(const RouteProblem& problem) : SchemaBench(problem) {
    const TensorView ids = one("topk_ids");
    for (std::int64_t i = 0; ids.defined() && i < ids.numel(); ++i)
      operations::store_integer(ids.dtype, ids.data, i, (i / problem.top_k * 7 + i) % problem.num_experts);
  }
  /// Memory is what routing waits for: an exponential and a comparison for each expert.
  [[nodiscard]] double flops() const override {
    return 2.0 * static_cast<double>(own_problem().tokens) * static_cast<double>(own_problem().num_experts);
  }
};

/// Experts in turn, each wanted as often as any other.
class MoeBench final : public SchemaBench<operations::Moe> {
 public:
  explicit MoeBench(const MoeProblem& problem) : SchemaBench(problem) {
    const TensorView ids = one("topk_ids");
    for (std::int64_t i = 0; i < ids.numel(); ++i) {
      const std::int64_t expert = problem.num_experts > 0 ? i % problem.num_experts : 0;
      operations::store_integer(ids.dtype, ids.data, i, problem.first_expert + expert);
    }
  }
  [[nodiscard]] double flops() const override { return operations::moe::flops(own_problem()); }
};

/// A division or a product for each number.
class QuantizeBench final : public SchemaBench<operations::Quantize> {
 public:
  explicit QuantizeBench(const QuantizeProblem& problem) : SchemaBench(problem) {}
  [[nodiscard]] double flops() const override {
    const QuantizeProblem& p = own_problem();
    return static_cast<double>(p.num_experts) * static_cast<double>(p.rows) * static_cast<double>(p.columns);
  }
};

/// What is measured of each operation: one without it does not compile.
template <typename Op>
struct BenchOf;
template <>
struct BenchOf<operations::Attention> {
  using Call = AttentionBench;
};
template <>
struct BenchOf<operations::KvCache> {
  using Call = KvCacheBench;
};
template <>
struct BenchOf<operations::Merge> {
  using Call = MergeBench;
};
template <>
struct BenchOf<operations::Linear> {
  using Call = LinearBench;
};
template <>
struct BenchOf<operations::Route> {
  using Call = RouteBench;
};
template <>
struct BenchOf<operations::Moe> {
  using Call = MoeBench;
};
template <>
struct BenchOf<operations::Quantize> {
  using Call = QuantizeBench;
};

}  // namespace

std::unique_ptr<const BenchCall> make_bench_call(const AnyProblem& problem) {
  std::unique_ptr<const BenchCall> call;
  operations::All::for_each([&]<typename Op> {
    using Problem = typename Op::Problem;
    constexpr const Problem* kTag = nullptr;
    if (&operation_of(kTag) == &problem.operation())
      call = std::make_unique<typename BenchOf<Op>::Call>(problem.get<Problem>());
  });
  return call;
}

}  // namespace tilewise::tools
