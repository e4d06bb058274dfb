// One call of any operation with everything it reads, drawn from a seed, and its poisoned outputs: what the checks
// against the reference know of an operation.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/plan.hpp"
#include "verify/buffer.hpp"
#include "verify/rounding.hpp"

namespace tilewise::verify {

/// How an output compares with the reference's.
enum class Model : std::uint8_t {
  bounded,     ///< within its ErrorBounds
  exact,       ///< the reference's numbers; where they are not finite, any that are not
  bits,        ///< the reference's bits, but for those of a NaN: integers, and what is quantised
  permutation  ///< along the last dimension the reference's elements in any order
};

/// One output with its guards.
struct Output {
  std::string name;
  Buffer buffer;
  int row_axis;                          ///< -1: every element is written
  std::int64_t rows;                     ///< along row_axis; later rows are none of the call's and stay untouched
  std::vector<std::string_view> axes{};  ///< names of the dimensions, for messages; of more than it has, the last ones
  bool rest_is_cleared = false;          ///< those later rows become 0, a log-sum -infinity
  Model model = Model::bounded;
  bool is_log_sum = false;  ///< its -infinity says that nothing was summed: never what stands for a NaN
};

/// The output of that name, or null.
[[nodiscard]] const Output* find_output(const std::vector<Output>& outputs, std::string_view name);

/// What the used parts of inputs hold: ordinary numbers, a few NaN and infinities among them, or numbers that make
/// scores, biases and sinks large.
enum class Values : std::uint8_t { ordinary, special, large };

/// A sink, or a log-sum-exp, of any size that is finite in `dtype`.
[[nodiscard]] double large_value(DType dtype, Random& rng);

/// NaN half of the time, now and then one whose payload has every bit; else an infinity.
[[nodiscard]] double special_value(Random& rng);

/// NaN, infinity or the largest finite number, as bits: none of them may reach a result.
[[nodiscard]] std::uint64_t random_poison(DType dtype, Random& rng);

/// What else an element may be than the reference's class of number (finite or not).
enum class Reach : std::uint8_t {
  none,
  may,       ///< non-finite, though the reference's is finite: 0 times a NaN or infinity where nothing is seen
  must_nan,  ///< NaN, where else any non-finite one will do
  any        ///< any number and any that is none, whatever the reference's
};

/// Row-major over the view of an output that is Model::bounded, empty of others. The rounding of the output itself is
/// not included.
struct ErrorBounds {
  std::string_view output;
  std::vector<double> limit, sigma;
  std::vector<Reach> reach;  ///< empty: none everywhere
};

/// Of every output, 0 throughout: room for what will be found. Outputs that are not bounded have none.
[[nodiscard]] std::vector<ErrorBounds> no_errors(const std::vector<Output>& outputs);
/// Those of the output of that name, or null.
[[nodiscard]] ErrorBounds* find_bounds(std::vector<ErrorBounds>& bounds, std::string_view output);

/// Done to each tensor of a call before it is used, such as moving it to a device.
using Change = std::function<void(TensorView&)>;
/// Called with each tensor of a call.
using TensorVisitor = std::function<void(const std::string& name, const TensorView& view)>;

class DrawnCall {
 public:
  DrawnCall() = default;
  virtual ~DrawnCall() = default;
  DrawnCall(const DrawnCall&) = delete;
  DrawnCall& operator=(const DrawnCall&) = delete;

  /// What the tensors describe to.
  [[nodiscard]] virtual AnyProblem any_problem() const = 0;
  /// Poisoned; placement drawn from `seed`.
  [[nodiscard]] virtual std::vector<Output> make_outputs(std::uint64_t seed) const = 0;
  /// Of the call's tensors and these outputs, all of them changed.
  [[nodiscard]] virtual Plan plan(std::string_view implementation, const std::vector<Output>& outputs,
                                  const Change& change) const = 0;
  virtual void launch(const Plan& plan, const std::vector<Output>& outputs, void* workspace,
                      const Change& change) const = 0;
  /// Visits what launch() passes, of what is given.
  virtual void for_each_tensor(const std::vector<Output>& outputs, const Change& change,
                               const TensorVisitor& visit) const = 0;
  /// Of every output, given the reference's results. tanh_error: of a softcap's tanh, relative, beyond fp32's
  /// roundings.
  [[nodiscard]] virtual std::vector<ErrorBounds> bounds(const std::vector<Output>& expected,
                                                        double tanh_error) const = 0;

  [[nodiscard]] Plan plan(std::string_view implementation, const std::vector<Output>& outputs) const;
  /// Runs on a workspace full of NaN. Throws Error(runtime) where the kernel leaves its workspace.
  void run(const Plan& plan, const std::vector<Output>& outputs) const;
  /// The memory of every input.
  [[nodiscard]] std::vector<std::span<std::byte>> input_memory() const;
  /// Empty, or the name of an input that is not what it was when the inputs were sealed.
  [[nodiscard]] std::string find_changed_input() const;

 protected:
  struct Input {
    std::string name;
    Buffer buffer;
    std::vector<TensorView> views;  ///< may be several: packed qkv
    std::uint64_t checksum = 0;
  };

  /// Filled with poison.
  Input& add_poisoned(std::string name, DType dtype, std::vector<std::int64_t> shape, const Placement& placement,
                      Random& rng);
  /// Remembers what all inputs hold.
  void seal_inputs();

  std::deque<Input> inputs_;
};

}  // namespace tilewise::verify
