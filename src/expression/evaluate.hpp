// Evaluating an expression over many lanes at once, in fp32 or fp64. No compiler is needed: each operator is a loop
// over a block of lanes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/visibility.hpp"
#include "expression/expression.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::expression {

/// A variable's values: of floats or of ints, whichever its type is. One value stands for all lanes where `uniform`.
template <typename Real>
struct Input {
  const Real* reals = nullptr;
  const std::int64_t* integers = nullptr;
  bool uniform = false;
};

/// An index outside its table, of which a look-up makes 0.
struct OutOfRange {
  std::uint32_t table = 0;
  int dimension = 0;
  std::int64_t index = 0, size = 0;
};
/// "table0: index 0 must be 0 to 127 (got 130)".
[[nodiscard]] TILEWISE_INTERNAL std::string to_string(const OutOfRange& index);

/// One thread's: it has memory of its own for what is between.
template <typename Real>
class TILEWISE_INTERNAL Evaluator {
 public:
  /// `tables` has the signature's, in memory of the host; both outlive the evaluator.
  Evaluator(const Expression& expression, std::span<const TensorView> tables);

  /// Results of a float expression. `inputs` has the signature's variables; those that the expression does not speak of
  /// may be empty.
  void operator()(std::span<const Input<Real>> inputs, std::int64_t count, Real* results);
  /// Results of an int expression.
  void operator()(std::span<const Input<Real>> inputs, std::int64_t count, std::int64_t* results);
  /// Results of a bool expression, 0 and 1.
  void operator()(std::span<const Input<Real>> inputs, std::int64_t count, std::uint8_t* results);

  /// The first index out of range that any evaluation met.
  [[nodiscard]] const std::optional<OutOfRange>& out_of_range() const { return out_of_range_; }

 private:
  /// Lanes of a block: few enough that what is between stays in the first cache.
  static constexpr std::int64_t kLanes = 64;

  template <typename Result>
  void run(std::span<const Input<Real>> inputs, std::int64_t count, Result* results);
  template <typename Value>
  [[nodiscard]] Value* values(std::uint32_t node) {
    return reinterpret_cast<Value*>(memory_.data() + std::size_t{node} * kLanes * sizeof(std::int64_t));
  }
  void evaluate(std::uint32_t at, std::span<const Input<Real>> inputs, std::int64_t first, std::int64_t count);
  void read_constant(const Node& node, std::uint32_t at, std::int64_t count);
  void read_variable(const Node& node, std::uint32_t at, const Input<Real>& input, std::int64_t first,
                     std::int64_t count);
  void look_up(const Node& node, std::uint32_t at, std::int64_t count);
  template <typename Value>
  void compute_as(const Node& node, std::uint32_t at, std::int64_t count);
  void compute(const Node& node, std::uint32_t at, std::int64_t count);
  void combine(const Node& node, std::uint32_t at, std::int64_t count);
  template <typename Value>
  void compare_as(const Node& node, std::uint32_t at, std::int64_t count);
  void compare(const Node& node, std::uint32_t at, std::int64_t count);
  template <typename Value>
  void select_as(const Node& node, std::uint32_t at, std::int64_t count);
  void select(const Node& node, std::uint32_t at, std::int64_t count);
  void spread(std::uint32_t at, std::int64_t count);

  const Expression& expression_;
  std::span<const TensorView> tables_;
  std::vector<std::byte> memory_;
  std::vector<std::uint8_t> uniform_;
  std::optional<OutOfRange> out_of_range_;
};

extern template class Evaluator<float>;
extern template class Evaluator<double>;

}  // namespace tilewise::expression
