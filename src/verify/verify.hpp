// Checks an implementation against the reference on generated problems: one problem syntax
// and one seed reproduce any failure. Shared by the tests and by `tilewise verify`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "operations/attention/features.hpp"
#include "tilewise/problem.hpp"

namespace tilewise::verify {

/// What random_problem() may draw of attention; see verifier.hpp for other operations.
struct Filter {
  /// Only problems with required_features(problem) ⊆ features. Leave out what is not wanted,
  /// e.g. FeatureSet::all().minus({Feature::backward}).
  operations::attention::FeatureSet features = operations::attention::FeatureSet::all();
  /// Upper bound of cost(problem), so that the double reference stays quick.
  double max_flops = 2e7;
  /// head_dim and head_dim_v are rounded up to multiples of it. Kernels that copy whole rows want 16 bytes or more.
  std::int64_t head_dim_multiple = 1;
};

/// Floating-point operations of the whole (unmasked) problem: 2 per multiply-add of its matrix products.
[[nodiscard]] double cost(const Problem& problem);

/// A valid attention problem over the whole feature space, a pure function of (seed, filter).
/// Throws Error(invalid_argument) where the filter leaves neither an operation nor a dtype.
[[nodiscard]] Problem random_problem(std::uint64_t seed, const Filter& filter = {});

/// The same with lengths, and a batch, drawn anew.
[[nodiscard]] Problem resized_problem(const Problem& problem, std::uint64_t seed, const Filter& filter = {});

/// Whether check_implementation() puts NaN and infinities among the inputs of this seed: for one seed in four.
[[nodiscard]] bool draws_special_values(std::uint64_t seed);

/// Whether it makes scores, biases or sinks of this seed large: for one seed in five.
[[nodiscard]] bool draws_large_values(std::uint64_t seed);

/// Whether it starts all rows of q, k, v and what is like them on 16 bytes, where the layout lets it: for every other
/// seed. The others may, and GPU kernels for rows that don't are others.
[[nodiscard]] bool draws_aligned_rows(std::uint64_t seed);

/// How one output of an implementation compares with the reference.
struct OutputReport {
  std::string name;         ///< "out", "softmax_lse", "dq", ...
  double max_error = 0.0;   ///< largest absolute difference
  double max_ratio = 0.0;   ///< largest difference in units of its element's bound; <= 1 passes
  double norm_ratio = 0.0;  ///< root mean square difference in units of its bound; <= 1 passes
  std::string failure;      ///< one sentence with position and values; empty when it passes
};

enum class Status : std::uint8_t { passed, failed, refused };

/// The verdict of check_implementation().
struct Report {
  Status status = Status::passed;
  std::string message;    ///< failed: what and where; refused: the framework's reason; passed: empty
  std::string reproduce;  ///< `tilewise verify --implementation X --seed N --problem "..."`
  std::vector<OutputReport> outputs;

  /// "ok", or message and reproduce line, as tests and the command line print it.
  [[nodiscard]] std::string to_string() const;
};

/// Tensors for one problem with the reference's results on them, to check several implementations.
class Checker {
 public:
  /// Throws Error for an invalid problem.
  Checker(const AnyProblem& problem, std::uint64_t seed);
  ~Checker();
  Checker(const Checker&) = delete;
  Checker& operator=(const Checker&) = delete;

  [[nodiscard]] Report check(std::string_view implementation) const;

 private:
  struct Expected;
  [[nodiscard]] const Expected& expected() const;

  AnyProblem problem_;
  std::uint64_t seed_;
  mutable std::unique_ptr<const Expected> expected_;  // made when it is first asked for
};

/// Draws tensors for `problem` from `seed`, runs `implementation` and the reference on them and
/// compares. Never throws for a wrong result; an Error of the implementation's run is a failure,
/// a refusal by the framework is Status::refused. Throws Error for an invalid problem.
[[nodiscard]] Report check_implementation(const AnyProblem& problem, std::string_view implementation,
                                          std::uint64_t seed);

/// The names of implementation_table() in its order, each once.
[[nodiscard]] std::vector<std::string> implementation_names();

}  // namespace tilewise::verify
