// What `tilewise bench` measures of an operation by its schema: compact tensors of random numbers for a problem.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "bench_call.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/shapes.hpp"
#include "random_tensors.hpp"

namespace tilewise::tools {

template <typename Arguments>
void run_planned(const Plan& plan, const Arguments& arguments) {
  run(plan, arguments);
}

/// What an operation may say beside its schema: prepare() writes what a call's tensors may not have at random, before
/// it is described; complete() states what no field does.
struct NothingMore {
  template <typename Call, typename Problem>
  static void prepare(const Call&, const Problem&) {}
  template <typename Arguments, typename Problem>
  static void complete(Arguments&, const Problem&) {}
};

template <typename Op, typename More = NothingMore>
class SchemaBench : public BenchCall {
 public:
  using Problem = typename Op::Problem;

  [[nodiscard]] AnyProblem problem() const override { return problem_; }
  void run(const Plan& plan) const override {
    with_arguments([&plan](const auto& arguments) { run_planned(plan, arguments); });
  }
  [[nodiscard]] double bytes() const override { return numbers_.bytes(); }
  [[nodiscard]] DType dtype() const override { return problem_.dtype; }

 protected:
  explicit SchemaBench(const Problem& problem) : problem_(problem) {
    constexpr const auto& kTensors = operations::schema::kTensors<Op::kSchema>;
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      if (!operations::schema::kRoles<Op::kSchema>[Op::problem_name(problem)][place]) continue;
      if (!is_given(kTensors[place], problem)) continue;
      for (std::size_t n = 0; n < entries_of(kTensors[place], problem); ++n) {
        TensorView view = operations::schema::compact<Op::kSchema>(place, problem, n);
        view.data = numbers_.add_random(view.dtype, shape_of(view), kTensors[place].name).data;
        tensors_[place].push_back(view);
      }
    }
    problem_ = with_arguments([&problem](const auto& arguments) {
      More::prepare(typename Op::Call(arguments), problem);
      return describe(arguments);
    });
  }

  /// The one tensor of a role; undefined where the problem has none.
  [[nodiscard]] TensorView one(operations::schema::Role<Op::kSchema> role) const {
    return tensors_[role.place].empty() ? TensorView{} : tensors_[role.place].front();
  }
  [[nodiscard]] const Problem& own_problem() const { return problem_; }
  /// What kernels are launched with.
  [[nodiscard]] typename Op::Params params_of_call() const {
    return with_arguments(
        [this](const auto& arguments) { return Op::make_params(typename Op::Call(arguments), problem_); });
  }

 private:
  template <typename Visit>
  auto with_arguments(const Visit& visit) const {
    return Op::Schema::with_arguments(problem_, [&]<typename Arguments> {
      auto arguments = operations::schema::arguments_of<Op::kSchema, Arguments>(
          problem_, [this](std::size_t place, std::size_t n) { return tensors_[place][n]; });
      More::complete(arguments, problem_);
      return visit(arguments);
    });
  }

  Problem problem_;
  RandomTensors numbers_;
  std::array<std::vector<TensorView>, Op::Call::kCount> tensors_;
};

}  // namespace tilewise::tools
