// Plans and their cache.
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/implementation.hpp"
#include "core/select.hpp"
#include "core/visibility.hpp"
#include "tilewise/plan.hpp"

namespace tilewise {

struct Plan::State {
  AnyProblem problem;  ///< canonical
  const core::Implementation* implementation;
  std::unique_ptr<const core::Kernel> kernel;
  int device_index = 0;       ///< of the problem's kind of device; 0 on the CPU
  double estimated_us = 0.0;  ///< by the implementation, on one CPU thread where it is the CPU's
};

namespace core {

using PlanState = std::shared_ptr<const Plan::State>;

/// Plans that a process keeps.
inline constexpr std::size_t kPlanCacheCapacity = 1024;

/// The least recently used plan leaves when a new one needs room. Thread-safe.
class PlanCache {
 public:
  explicit PlanCache(std::size_t capacity) : capacity_(capacity) {}

  /// Null where not known.
  [[nodiscard]] PlanState find(const ProblemView& problem, const Overrides& overrides, int device_index = 0);
  /// Returns the plan that was there first, where two threads made the same one.
  PlanState insert(PlanState plan, const Overrides& overrides);
  [[nodiscard]] std::size_t size() const;

  /// Around fork(), so that a child never finds the cache locked by a thread it does not have.
  void lock() { mutex_.lock(); }
  void unlock() { mutex_.unlock(); }

 private:
  struct Entry {
    PlanState plan;
    std::string force, disable;
    std::string_view force_source;

    [[nodiscard]] Overrides overrides() const { return {force, disable, force_source}; }
  };
  /// Borrows from an Entry, or from the caller of find().
  struct Key {
    ProblemView problem;
    Overrides overrides;
    int device_index;
    friend bool operator==(const Key& a, const Key& b) {
      return a.problem == b.problem && a.overrides == b.overrides && a.device_index == b.device_index;
    }
  };
  struct KeyHash {
    std::size_t operator()(const Key& key) const noexcept;
  };
  using Order = std::list<Entry>;

  std::size_t capacity_;
  mutable std::mutex mutex_;
  Order order_;  ///< most recently used first
  std::unordered_map<Key, Order::iterator, KeyHash> entries_;
};

/// Validates, selects from the table and prepares for planning_device(); not cached. Throws Error(unsupported) that
/// lists every refusal where nothing accepts the problem.
[[nodiscard]] TILEWISE_INTERNAL PlanState make_plan(const AnyProblem& problem, const Overrides& overrides,
                                                    std::span<const Implementation* const> table);

/// The cached plan of a problem in normal form on planning_device(), made where it is not known yet.
[[nodiscard]] TILEWISE_INTERNAL PlanState find_plan(const ProblemView& problem, const Overrides& overrides);

}  // namespace core
}  // namespace tilewise
