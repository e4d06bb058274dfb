// A drawn call of an operation by its schema: which tensors there are, of which shape and dtype, how they lie in
// memory, its outputs, and running it. What the inputs hold is the operation's to say.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <string>
#include <string_view>
#include <vector>

#include "core/device.hpp"
#include "core/message.hpp"
#include "operations/derived/call.hpp"
#include "operations/derived/shapes.hpp"
#include "verify/drawn_call.hpp"

namespace tilewise::verify {

/// Everything a call reads, a pure function of the problem and the seed.
template <typename Op>
class SchemaCall : public DrawnCall {
 public:
  using Problem = typename Op::Problem;
  using Role = operations::schema::Role<Op::kSchema>;

  [[nodiscard]] const Problem& problem() const { return problem_; }
  [[nodiscard]] AnyProblem any_problem() const override { return problem_; }

  [[nodiscard]] std::vector<Output> make_outputs(std::uint64_t seed) const override {
    Random rng(seed);
    std::vector<Output> outputs;
    for_each_place([&](std::size_t place, const Tensor& tensor) {
      if (is_read(tensor)) return;
      for (std::size_t n = 0; n < entries_of(tensor, problem_); ++n)
        outputs.push_back({name_of(tensor, n), make_buffer(place, n, rng), -1, 0, axes_of(tensor)});
    });
    return outputs;
  }

  using DrawnCall::plan;
  [[nodiscard]] Plan plan(std::string_view implementation, const std::vector<Output>& outputs,
                          const Change& change) const override {
    return with_arguments(outputs, [&](auto arguments) {
      change_given(arguments, change);
      const core::DeviceScope scope(Op::device(typename Op::Call(arguments)), nullptr);
      return tilewise::plan(describe(arguments), SelectOptions{std::string(implementation)});
    });
  }
  void launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
              const Change& change) const override {
    with_arguments(outputs, [&](auto arguments) {
      change_given(arguments, change);
      tilewise::run(plan, arguments, workspace);
    });
  }

  void for_each_tensor(const std::vector<Output>& outputs, const Change& change,
                       const TensorVisitor& visit) const override {
    with_arguments(outputs, [&](auto arguments) {
      change_given(arguments, change);
      operations::schema::for_each_tensor(
          typename Op::Call(arguments), [&visit](const core::ArgumentName& name, const TensorView& view, core::Access) {
            if (view.defined()) visit(core::concat(name), view);
          });
    });
  }

 protected:
  /// Inputs without values yet.
  SchemaCall(const Problem& problem, std::uint64_t seed)
      : problem_(problem), rng_(seed), aligned_(Random(seed + 0x9E3779B9u).chance(0.5)) {
    validate(problem);
    for_each_place([&](std::size_t place, const Tensor& tensor) {
      if (!is_read(tensor)) return;
      for (std::size_t n = 0; n < entries_of(tensor, problem_); ++n) {
        const DType dtype = operations::schema::dtype_of<Op::kSchema>(tensor, problem_, n);
        inputs_of_[place].push_back(
            add_poisoned(name_of(tensor, n), dtype, shape(tensor), placement(tensor, dtype, rng_), rng_).buffer.view());
      }
    });
  }
  /// Remembers the inputs, which hold what they shall, and what the tensors as they lie describe to.
  void seal() {
    seal_inputs();
    problem_ = with_arguments(make_outputs(0), [](const auto& arguments) { return describe(arguments); });
  }
  /// The input tensors of a role; empty where the problem has none.
  [[nodiscard]] const std::vector<TensorView>& input(Role role) const { return inputs_of_[role.place]; }
  [[nodiscard]] const auto& all_inputs() const { return inputs_of_; }
  [[nodiscard]] Random& rng() { return rng_; }

  /// Returns visit(arguments) of the inputs and these outputs.
  template <typename Visit>
  auto with_arguments(const std::vector<Output>& outputs, const Visit& visit) const {
    const auto make = [&](std::size_t place, std::size_t n) {
      const Tensor& tensor = operations::schema::kTensors<Op::kSchema>[place];
      if (is_read(tensor)) return inputs_of_[place][n];
      const Output* output = find_output(outputs, name_of(tensor, n));
      return output == nullptr ? TensorView{} : output->buffer.view();
    };
    return Op::Schema::with_arguments(problem_, [&]<typename Arguments> {
      return visit(operations::schema::arguments_of<Op::kSchema, Arguments>(problem_, make));
    });
  }
  /// What kernels are launched with for them.
  [[nodiscard]] typename Op::Params params_of(const std::vector<Output>& outputs) const {
    return with_arguments(
        outputs, [this](const auto& arguments) { return Op::make_params(typename Op::Call(arguments), problem_); });
  }

 private:
  using Tensor = operations::schema::Tensor<Problem>;

  /// Calls visit(place, tensor) for each role that the problem's calls have.
  template <typename Visit>
  void for_each_place(const Visit& visit) const {
    constexpr const auto& kTensors = operations::schema::kTensors<Op::kSchema>;
    for (std::size_t place = 0; place < kTensors.size(); ++place) {
      if (operations::schema::kRoles<Op::kSchema>[Op::problem_name(problem_)][place] &&
          is_given(kTensors[place], problem_)) {
        visit(place, kTensors[place]);
      }
    }
  }
  [[nodiscard]] bool is_read(const Tensor& tensor) const {
    return tensor.access_in(Op::problem_name(problem_)) == core::Access::read;
  }
  static std::string name_of(const Tensor& tensor, std::size_t n) {
    return tensor.list.count == nullptr ? std::string(tensor.name) : core::concat(tensor.name, "[", n, "]");
  }
  [[nodiscard]] std::vector<std::int64_t> shape(const Tensor& tensor) const {
    return operations::schema::sizes_of(shape_of(tensor, problem_));
  }
  [[nodiscard]] std::vector<std::string_view> axes_of(const Tensor& tensor) const {
    std::vector<std::string_view> names(shape(tensor).size());
    for_each_axis(tensor, problem_, [&names](int axis, const auto& dimension) {
      names[static_cast<std::size_t>(axis)] = dimension.index;
    });
    return names;
  }
  [[nodiscard]] Placement placement(const Tensor& tensor, DType dtype, Random& rng) const {
    std::vector<int> order(shape(tensor).size());
    std::iota(order.begin(), order.end(), 0);
    const bool matrix = tensor.transposed != nullptr, rows = tensor.rows || matrix;
    if (matrix && problem_.*tensor.transposed) std::swap(order[order.size() - 2], order.back());
    Placement placement = random_placement(std::move(order), rows, rng);
    return rows && aligned_ ? with_aligned_rows(std::move(placement), dtype) : placement;
  }
  [[nodiscard]] Buffer make_buffer(std::size_t place, std::size_t n, Random& rng) const {
    const Tensor& tensor = operations::schema::kTensors<Op::kSchema>[place];
    const DType dtype = operations::schema::dtype_of<Op::kSchema>(tensor, problem_, n);
    return {dtype, shape(tensor), placement(tensor, dtype, rng)};
  }
  template <typename Arguments>
  static void change_given(Arguments& arguments, const Change& change) {
    operations::schema::change_each_tensor<Op::kSchema>(arguments, [&change](TensorView& view) {
      if (view.defined()) change(view);
    });
  }

  Problem problem_;
  Random rng_;
  bool aligned_;
  std::array<std::vector<TensorView>, Op::Call::kCount> inputs_of_;
};

}  // namespace tilewise::verify
