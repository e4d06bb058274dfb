// Deciding once and running often, for problems of every operation: Plan, plan() and explain(); CPU threads.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tilewise/any_problem.hpp"
#include "tilewise/export.h"

namespace tilewise {

/// How to choose among implementations. Empty fields follow the environment
/// (TILEWISE_FORCE, TILEWISE_DISABLE).
struct SelectOptions {
  std::string implementation;  ///< the one to use, by name; "" lets the cost estimate decide
};

/// An immutable, thread-safe, cheap-to-copy decision for one problem: implementation,
/// schedule, workspace size.
class Plan {
 public:
  [[nodiscard]] TILEWISE_EXPORT const AnyProblem& problem() const noexcept;
  [[nodiscard]] TILEWISE_EXPORT std::string_view implementation() const noexcept;
  [[nodiscard]] TILEWISE_EXPORT std::string schedule() const;
  [[nodiscard]] TILEWISE_EXPORT std::size_t workspace_size() const noexcept;  ///< bytes, to be aligned to 64

  struct State;
  explicit Plan(std::shared_ptr<const State> state) noexcept : state_(std::move(state)) {}
  [[nodiscard]] const State& state() const noexcept { return *state_; }
  [[nodiscard]] const std::shared_ptr<const State>& shared_state() const noexcept { return state_; }

 private:
  std::shared_ptr<const State> state_;
};

/// Validates, selects and prepares, on a GPU for the calling thread's current device. Plans are cached, so a
/// known problem costs a lookup.
[[nodiscard]] TILEWISE_EXPORT Plan plan(const AnyProblem& problem, const SelectOptions& select = {});

/// One row of explain(): an implementation's verdict on a problem.
struct ExplainRow {
  std::string implementation;
  bool accepted = false;
  bool chosen = false;
  double estimated_us = 0.0;  ///< of an accepted one
  std::string reason;         ///< why refused, or the schedule of an accepted one
};
struct Explanation {
  AnyProblem problem;
  std::vector<ExplainRow> rows;                                 ///< in table order
  [[nodiscard]] TILEWISE_EXPORT std::string to_string() const;  ///< a printable table
};
/// Walks every implementation of the problem's operation. Throws only where the problem itself is invalid.
[[nodiscard]] TILEWISE_EXPORT Explanation explain(const AnyProblem& problem, const SelectOptions& select = {});

/// CPU threads of the calls that follow; 0 restores the default, the processors this process may use. Never more
/// than TILEWISE_NUM_THREADS. Results do not depend on it.
TILEWISE_EXPORT void set_num_threads(int num_threads);
/// What the next call uses at most. Throws Error where TILEWISE_NUM_THREADS is no number of threads.
[[nodiscard]] TILEWISE_EXPORT int get_num_threads();

/// The library's version, "major.minor.patch".
[[nodiscard]] TILEWISE_EXPORT std::string_view version() noexcept;

}  // namespace tilewise
