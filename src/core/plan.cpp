// Making plans, keeping them, and saying what was decided.
#include "core/plan.hpp"

#include <pthread.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>

#include "core/device.hpp"
#include "core/duration.hpp"
#include "core/environment.hpp"
#include "core/message.hpp"
#include "core/taken_dtypes.hpp"

namespace tilewise {
namespace core {
namespace {

/// The process's cache. Never destroyed: other threads may still run while main() returns.
PlanCache& plan_cache() {
  static PlanCache* const cache = [] {
    auto* fresh = new PlanCache(kPlanCacheCapacity);
    pthread_atfork([] { plan_cache().lock(); }, [] { plan_cache().unlock(); }, [] { plan_cache().unlock(); });
    return fresh;
  }();
  return *cache;
}

/// Made while the library loads. Made on first use, a fork() beside that first use would leave a
/// child waiting for ever on a static that no thread of its own is making.
[[maybe_unused]] const auto kMadeAtLoad = [] {
  (void)plan_cache();
  for (const DeviceType type : {DeviceType::cuda, DeviceType::hip}) (void)device_system(type);
  (void)operation_table();
  return implementation_table();
}();

[[noreturn]] void refuse(const AnyProblem& problem, const Selection& selection,
                         std::span<const Implementation* const> table) {
  const OperationInterface& operation = problem.operation();
  std::string message =
      concat("no implementation accepts ", to_string(problem),
             unsupported_text(operation, problem.device(), operation.required_features(problem.value()), table));
  for (const Candidate& candidate : selection.candidates) {
    message += concat("\n  ", candidate.implementation->name(), ": ", candidate.verdict.reason);
  }
  throw Error(ErrorCode::unsupported, message);
}

/// One line for each variable that is set and not read, in the process's first log alone.
void log_unknown_variables() {
  static constinit std::atomic<bool> told{false};
  if (told.exchange(true)) return;
  for (const std::string& sentence : unknown_variables()) {
    std::fputs(concat("tilewise: ", sentence, "\n").c_str(), stderr);
  }
}

/// TILEWISE_LOG=dispatch: one line for each decision.
void log_decision(const Plan::State& plan, double estimated_us) {
  const char* log = std::getenv("TILEWISE_LOG");
  if (log == nullptr || *log == '\0') return;
  if (std::string_view(log) != "dispatch") invalid_argument("TILEWISE_LOG: must be dispatch (got ", quoted(log), ")");
  log_unknown_variables();
  const std::string line = concat("tilewise: ", to_string(plan.problem), " -> ", plan.implementation->name(), " (",
                                  plan.kernel->schedule(), "), estimated ", duration_text(estimated_us), "\n");
  std::fputs(line.c_str(), stderr);
}

}  // namespace

std::size_t PlanCache::KeyHash::operator()(const Key& key) const noexcept {
  const std::hash<std::string_view> hash;
  std::size_t value = key.problem.operation->hash(key.problem.value);
  if (!key.overrides.force.empty()) value ^= 3 * hash(key.overrides.force);
  if (!key.overrides.disable.empty()) value ^= 5 * hash(key.overrides.disable);
  value += static_cast<std::size_t>(key.device_index);
  return value;
}

PlanState PlanCache::find(const ProblemView& problem, const Overrides& overrides, int device_index) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto found = entries_.find(Key{problem, overrides, device_index});
  if (found == entries_.end()) return nullptr;
  order_.splice(order_.begin(), order_, found->second);
  return found->second->plan;
}

PlanState PlanCache::insert(PlanState plan, const Overrides& overrides) {
  const std::lock_guard<std::mutex> guard(mutex_);
  order_.push_front(
      {std::move(plan), std::string(overrides.force), std::string(overrides.disable), overrides.force_source});
  const Entry& entry = order_.front();
  const auto [place, fresh] =
      entries_.emplace(Key{entry.plan->problem, entry.overrides(), entry.plan->device_index}, order_.begin());
  if (!fresh) {
    order_.pop_front();
    return place->second->plan;
  }
  PlanState inserted = entry.plan;
  if (order_.size() > capacity_) {
    const Entry& last = order_.back();
    entries_.erase(Key{last.plan->problem, last.overrides(), last.plan->device_index});
    order_.pop_back();
  }
  return inserted;
}

std::size_t PlanCache::size() const {
  const std::lock_guard<std::mutex> guard(mutex_);
  return order_.size();
}

PlanState make_plan(const AnyProblem& problem, const Overrides& overrides,
                    std::span<const Implementation* const> table) {
  validate(problem);
  const DeviceDescription device = describe_device(problem.device());
  Selection selection = select(problem, overrides, device, table);
  if (selection.chosen < 0) refuse(problem, selection, table);
  Candidate& chosen = selection.candidates[static_cast<std::size_t>(selection.chosen)];
  chosen.verdict.kernel->load();
  auto plan =
      std::make_shared<const Plan::State>(Plan::State{problem, chosen.implementation, std::move(chosen.verdict.kernel),
                                                      device.device.index, chosen.verdict.estimated_us});
  log_decision(*plan, chosen.verdict.estimated_us);
  return plan;
}

PlanState find_plan(const ProblemView& problem, const Overrides& overrides) {
  if (PlanState known = plan_cache().find(problem, overrides, planning_device(problem.device()))) return known;
  return plan_cache().insert(make_plan(problem.operation->canonical(problem.value), overrides, implementation_table()),
                             overrides);
}

}  // namespace core

const AnyProblem& Plan::problem() const noexcept { return state_->problem; }
std::string_view Plan::implementation() const noexcept { return state_->implementation->name(); }
std::string Plan::schedule() const { return state_->kernel->schedule(); }
std::size_t Plan::workspace_size() const noexcept { return state_->kernel->workspace_size(); }

Plan plan(const AnyProblem& problem, const SelectOptions& select) {
  return Plan(core::find_plan(problem.operation().canonical(problem.value()), core::overrides_of(select)));
}

}  // namespace tilewise
