// The table, and the calls that are quick to say.
#include "bench_call.hpp"

#include <array>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "core/message.hpp"
#include "core/operation.hpp"
#include "core/spelling.hpp"
#include "operations/merge/merge.hpp"
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

class MergeBench final : public BenchCall {
 public:
  explicit MergeBench(const MergeProblem& problem) : dtype_(problem.dtype) {
    using namespace operations::merge;
    const MergeProblem& p = problem;
    const bool forward = p.pass == MergePass::merge;
    add_parts(p, outs_, lses_, true);
    if (p.sink != MergeSink::none) sink_ = numbers_.add_random(sink_dtype(p), {p.num_heads_q}, "sink");
    const TensorView rows = numbers_.add_random(p.dtype, rows_of(p), forward ? "out" : "dout");
    TensorView lse;
    if (forward ? p.softmax_lse : p.dlse)
      lse = numbers_.add_random(statistics(p), lses_of(p), forward ? "softmax_lse" : "dlse");
    const auto elements = static_cast<double>(p.parts * rows.numel());
    flops_ = (forward ? 2.0 : 4.0) * elements;
    if (forward) {
      forward_ = {outs_, lses_, sink_, rows, lse, p.layout};
      problem_ = describe(forward_);
      return;
    }
    backward_ = {rows, lse, outs_, lses_, sink_, {}, {}, {}, p.layout};
    std::vector<TensorView> douts, dlses;
    add_parts(p, douts, dlses, false);
    if (p.douts) backward_.douts = std::move(douts);
    if (p.dlses) backward_.dlses = std::move(dlses);
    if (p.dsink) backward_.dsink = numbers_.add_random(sink_dtype(p), {p.num_heads_q}, "dsink");
    problem_ = describe(backward_);
  }

  [[nodiscard]] AnyProblem problem() const override { return problem_; }
  void run(const Plan& plan) const override {
    if (problem_.pass == MergePass::merge) return tilewise::run(plan, forward_);
    tilewise::run(plan, backward_);
  }
  [[nodiscard]] double flops() const override { return flops_; }
  [[nodiscard]] double bytes() const override { return numbers_.bytes(); }
  [[nodiscard]] DType dtype() const override { return dtype_; }

 private:
  static DType statistics(const MergeProblem& p) { return operations::statistics_dtype(p.dtype); }
  static std::vector<std::int64_t> rows_of(const MergeProblem& p) {
    const std::int64_t b = p.batch_size, s = p.seqlen_q, h = p.num_heads_q, d = p.head_dim_v;
    switch (p.layout) {
      case Layout::thd:
        return {s, h, d};
      case Layout::sbhd:
        return {s, b, h, d};
      case Layout::bhsd:
        return {b, h, s, d};
      default:
        return {b, s, h, d};
    }
  }
  static std::vector<std::int64_t> lses_of(const MergeProblem& p) {
    if (p.layout == Layout::thd) return {p.num_heads_q, p.seqlen_q};
    return {p.batch_size, p.num_heads_q, p.seqlen_q};
  }
  /// Of parts that are mixed, every other one is in the dtype of out.
  static DType part_dtype(const MergeProblem& p, std::int64_t n) {
    if (p.parts_dtype == PartsDType::mixed) return n % 2 == 0 ? p.dtype : DType::f32;
    return operations::merge::dtype_of(p.parts_dtype);
  }

  void add_parts(const MergeProblem& p, std::vector<TensorView>& rows, std::vector<TensorView>& lses, bool read) {
    for (std::int64_t n = 0; n < (p.stacked ? 1 : p.parts); ++n) {
      std::vector<std::int64_t> of_rows = rows_of(p), of_lses = lses_of(p);
      if (p.stacked) of_rows.insert(of_rows.begin(), p.parts), of_lses.insert(of_lses.begin(), p.parts);
      if (read || p.douts) rows.push_back(numbers_.add_random(part_dtype(p, n), of_rows, read ? "outs" : "douts"));
      if (read || p.dlses) lses.push_back(numbers_.add_random(statistics(p), of_lses, read ? "lses" : "dlses"));
    }
  }

  DType dtype_;
  MergeProblem problem_;
  RandomTensors numbers_;
  std::vector<TensorView> outs_, lses_;
  TensorView sink_;
  MergeArguments forward_;
  MergeBackwardArguments backward_;
  double flops_ = 0.0;
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
  static const std::array rows{row<AttentionBench, AttentionProblem>(), row<MergeBench, MergeProblem>()};
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
