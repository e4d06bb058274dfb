// Running a call of any operation: find or check its plan, then launch it on memory and a stream that may be the
// caller's framework's. An operation's Traits offer, beside what core/operation.hpp asks for:
//   Call, Params, LastCall                 the tensors and options of a call; what kernels get; see recent_plan.hpp
//   kind(call), device(call)               index into kProblemNames; where the tensors are
//   describe(call)                         its canonical problem; checks every tensor
//   make_params(call, problem)             the kernels' parameters
//   for_each_tensor(call, visit)           calls visit(name, view, access) for every tensor, given or not
//   check_device_values(call, problem, stream)   checks what lies in a GPU's memory, where the user asks for it
#pragma once

#include <cstddef>
#include <string>

#include "core/device.hpp"
#include "core/message.hpp"
#include "core/overlap.hpp"
#include "core/plan.hpp"
#include "core/recent_plan.hpp"
#include "core/select.hpp"
#include "core/visibility.hpp"
#include "tilewise/plan.hpp"

namespace tilewise::core {

/// Where scratch memory on a GPU comes from.
class WorkspaceSource {
 public:
  virtual ~WorkspaceSource() = default;
  /// At least 64-byte aligned memory on the tensors' device, valid for work enqueued on the stream before the
  /// source goes away. Throws Error.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
};

/// Where a plan runs, and on whose memory.
struct LaunchSite {
  Device device;
  void* workspace = nullptr;  ///< null: from `source`, or memory that this thread keeps
  void* stream = nullptr;
  WorkspaceSource* source = nullptr;
};

/// Throws Error where the site is not one for the plan.
TILEWISE_INTERNAL void check_site(const LaunchSite& site, DeviceType device);
TILEWISE_INTERNAL void launch(const Plan::State& plan, const void* params, const LaunchSite& site);

/// Throws the Error of a plan that was made for another problem than the tensors', or for another device.
[[noreturn]] void refuse_plan(const Plan& plan, const ProblemView& described);
void check_plan_device(const Plan& plan, Device device);

template <typename Traits>
void launch_call(const typename Traits::Call& call, const Plan::State& plan, const LaunchSite& site) {
  const auto& problem = plan.problem.template get<typename Traits::Problem>();
  check_site(site, problem.device);
  check_call_apart<Traits>(call, site.workspace, plan.kernel->workspace_size());
  const typename Traits::Params params = Traits::make_params(call, problem);
  if (problem.device != DeviceType::cpu) Traits::check_device_values(call, problem, site.stream);
  launch(plan, &params, site);
}

/// Describes, finds the plan and runs. On a GPU: `workspace` is asked at most once, before anything is launched;
/// null takes memory that this thread keeps for the device and stream.
template <typename Traits>
void run_call(const typename Traits::Call& call, const SelectOptions& select, void* stream,
              WorkspaceSource* workspace) {
  const LaunchSite site{Traits::device(call), nullptr, stream, workspace};
  const DeviceScope scope(site.device, stream);
  const Overrides overrides = overrides_of(select);
  auto& recent = recent_plan<Traits>(Traits::kind(call));
  if (const PlanState plan = recent.find(call, overrides)) return launch_call<Traits>(call, *plan, site);
  const typename Traits::Problem problem = Traits::describe(call);
  const PlanState plan = find_plan(problem, overrides);
  recent.remember(call, overrides, plan);
  launch_call<Traits>(call, *plan, site);
}

/// Makes the call's plan, compiling and loading its kernels, without running it.
template <typename Traits>
void prepare_call(const typename Traits::Call& call, const SelectOptions& select) {
  const DeviceScope scope(Traits::device(call), nullptr);
  const typename Traits::Problem problem = Traits::describe(call);
  (void)find_plan(problem, overrides_of(select));
}

/// Runs a plan on a call that describes to its problem; throws where it does not.
template <typename Traits>
void run_planned(const Plan& plan, const typename Traits::Call& call, void* workspace, void* stream) {
  auto& recent = recent_given_plan<Traits>(Traits::kind(call));
  if (recent.find(call, {}) != plan.shared_state()) {
    const typename Traits::Problem problem = Traits::describe(call);
    if (!(ProblemView(problem) == plan.problem())) refuse_plan(plan, problem);
    check_plan_device(plan, Traits::device(call));
    recent.remember(call, {}, plan.shared_state());
  }
  launch_call<Traits>(call, plan.state(), {Traits::device(call), workspace, stream, nullptr});
}

}  // namespace tilewise::core
