// Gradients of captured tensors while they are added up: one sum for each element, and which element a score's part of
// them goes to.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/visibility.hpp"
#include "expression/evaluate.hpp"
#include "operations/attention/score_functions.hpp"
#include "tilewise/tensor.hpp"

namespace tilewise::operations::attention {

/// Sums of all elements of the tables of a call whose gradients are wanted.
class TableSums {
 public:
  explicit TableSums(const AttentionProblem& problem);

  [[nodiscard]] std::int64_t size() const { return static_cast<std::int64_t>(sums_.size()); }
  /// Those of a table, row-major.
  [[nodiscard]] double* of(std::size_t table) { return sums_.data() + begins_[table]; }
  void add(const TableSums& other);
  /// Writes each sum to its element of the gradients, whose tables `problem` wants them of.
  void store(const AttentionProblem& problem, const TensorView* dtables) const;

 private:
  std::array<std::size_t, kMostTables> begins_{};
  std::vector<double> sums_;
};

/// Elements of all those tables.
[[nodiscard]] std::int64_t elements_of_wanted_tables(const AttentionProblem& problem);

/// Which element each key's look-up goes to. One thread's.
class TILEWISE_INTERNAL LookUpPlaces {
 public:
  LookUpPlaces(const expression::LookUpDerivative& look_up, std::span<const TensorView> tables);

  /// Adds parts[n] to the element that query q_idx of head h of sequence b looks up at key first_key + n; those that
  /// are outside the table go nowhere.
  template <typename Real>
  void add(std::int64_t b, std::int64_t h, std::int64_t q_idx, std::int64_t first_key, std::span<const Real> parts,
           TableSums& sums);

  /// Row-major numbers of the elements that up to kLanes keys look up; -1 outside the table.
  static constexpr std::int64_t kLanes = 64;
  void find(std::int64_t b, std::int64_t h, std::int64_t q_idx, std::int64_t first_key, std::int64_t count,
            std::int64_t* elements);

 private:
  const expression::LookUpDerivative& look_up_;
  const TensorView& table_;
  std::vector<expression::Evaluator<double>> indices_;
};

}  // namespace tilewise::operations::attention
