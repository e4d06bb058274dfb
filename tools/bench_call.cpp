// The table, and the calls that are quick to say.
#include "bench_call.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "bench_schema.hpp"
#include "core/message.hpp"
#include "core/operation.hpp"
#include "core/spelling.hpp"
#include "operations/linear/linear.hpp"
#include "operations/merge/merge.hpp"
#include "operations/moe/moe.hpp"
#include "operations/quantize/quantize.hpp"
#include "operations/route/route.hpp"
#include "sample_call.hpp"
#include "tilewise/error.hpp"

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

struct Row {
  const core::OperationInterface* operation;
  std::unique_ptr<const BenchCall> (*make)(const AnyProblem& problem);
};

template <typename Call, typename Problem>
Row row() {
  constexpr const Problem* kTag = nullptr;
  return {&operation_of(kTag), [](const AnyProblem& problem) -> std::unique_ptr<const BenchCall> {
            return std::make_unique<Call>(problem.get<Problem>());
          }};
}

std::span<const Row> table() {
  static const std::array rows{
      row<AttentionBench, AttentionProblem>(), row<MergeBench, MergeProblem>(), row<LinearBench, LinearProblem>(),
      row<RouteBench, RouteProblem>(),         row<MoeBench, MoeProblem>(),     row<QuantizeBench, QuantizeProblem>()};
  return rows;
}

}  // namespace

std::unique_ptr<const BenchCall> make_bench_call(const AnyProblem& problem) {
  std::vector<std::string_view> names;
  for (const Row& row : table()) {
    if (row.operation == &problem.operation()) return row.make(problem);
    names.push_back(row.operation->name());
  }
  throw Error(ErrorCode::unsupported,
              core::concat("PROBLEM: must be of an operation that is measured here, ", core::listed(names), " (got ",
                           problem.operation().name(), "); others may be in python -m tilewise.bench"));
}

}  // namespace tilewise::tools
