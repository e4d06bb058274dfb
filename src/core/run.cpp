// Running a plan on tensors, and the short way that finds the plan first.
#include "core/run.hpp"

#include <new>

#include "core/device.hpp"
#include "core/device_workspace.hpp"
#include "core/interrupt.hpp"
#include "core/lengths.hpp"
#include "core/message.hpp"
#include "core/num_threads.hpp"
#include "core/overlap.hpp"
#include "core/plan.hpp"
#include "core/recent_plan.hpp"

namespace tilewise {
namespace core {
namespace {

constexpr std::size_t kWorkspaceAlignment = 64;
/// What a thread keeps for its next call; a larger workspace goes back to the system.
constexpr std::size_t kKeptWorkspace = std::size_t{64} << 20;

struct AlignedFree {
  void operator()(std::byte* bytes) const { ::operator delete[](bytes, std::align_val_t{kWorkspaceAlignment}); }
};

struct Buffer {
  std::unique_ptr<std::byte, AlignedFree> bytes;
  std::size_t size = 0;
};

/// Scratch memory for one call, taken from what this thread kept of the call before. A call
/// made from within another one finds nothing kept and gets its own.
class ScratchMemory {
 public:
  explicit ScratchMemory(std::size_t size) {
    if (size == 0) return;
    std::swap(buffer_, kept());
    if (buffer_.size >= size) return;
    buffer_ = {};
    try {
      buffer_.bytes.reset(static_cast<std::byte*>(::operator new[](size, std::align_val_t{kWorkspaceAlignment})));
    } catch (const std::bad_alloc&) {
      throw Error(ErrorCode::runtime, concat("workspace: could not allocate ", size, " bytes"));
    }
    buffer_.size = size;
  }
  ~ScratchMemory() {
    if (buffer_.size > 0 && buffer_.size <= kKeptWorkspace) kept() = std::move(buffer_);
  }
  ScratchMemory(const ScratchMemory&) = delete;
  ScratchMemory& operator=(const ScratchMemory&) = delete;

  [[nodiscard]] void* data() const { return buffer_.bytes.get(); }

 private:
  static Buffer& kept() {
    thread_local Buffer buffer;
    return buffer;
  }
  Buffer buffer_;
};

/// Scratch memory of a call on a GPU: the caller's, the source's, or the thread's own; null where none is needed.
void* device_workspace(const Call& call, const Plan::State& plan, void* stream, WorkspaceSource* source) {
  const std::size_t size = plan.kernel->workspace_size();
  if (size == 0) return nullptr;
  return source != nullptr ? source->allocate(size) : kept_workspace(call.q.device, stream, size);
}

void launch(const Call& call, const Plan::State& plan, void* workspace, void* stream, WorkspaceSource* source) {
  const bool on_cpu = plan.problem.device == DeviceType::cpu;
  // A bad TILEWISE_NUM_THREADS is an error of calls that need no threads too.
  const Interruptible interruptible(on_cpu ? plan.estimated_us / num_threads() : 0.0);
  if (stream != nullptr && on_cpu) invalid_argument("stream: must be null on the cpu (got one)");
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    invalid_argument("workspace: must be aligned to ", kWorkspaceAlignment, " bytes (got an address ",
                     reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment, " past it)");
  }
  check_apart(call, workspace, plan.kernel->workspace_size());
  const device::AttentionParams params = make_params(call, plan.problem);
  if (!on_cpu) {
    check_device_lengths(call, plan.problem, stream);
    if (workspace == nullptr) workspace = device_workspace(call, plan, stream, source);
  }
  if (workspace != nullptr || !on_cpu) return plan.kernel->launch(params, workspace, stream);
  const ScratchMemory scratch(plan.kernel->workspace_size());
  plan.kernel->launch(params, scratch.data(), stream);
}

/// Throws unless the call describes to the plan's problem on the plan's device.
void check_plan(const Plan& plan, const Call& call) {
  const Problem problem = describe(call);
  if (problem != plan.problem()) {
    validate(problem);
    invalid_argument("plan: must be for the tensors' problem, ", to_string(problem), " (got a plan for ",
                     to_string(plan.problem()), ")");
  }
  if (problem.device != DeviceType::cpu && call.q.device.index != plan.state().device_index) {
    invalid_argument("plan: must be for the tensors' device, ", device_name(call.q.device), " (got a plan for ",
                     device_name({problem.device, plan.state().device_index}), ")");
  }
}

void run_planned(const Plan& plan, const Call& call, void* workspace, void* stream) {
  RecentPlan& recent = recent_given_plan(call.operation);
  if (recent.find(call, {}) != plan.shared_state()) {
    check_plan(plan, call);
    recent.remember(call, {}, plan.shared_state());
  }
  launch(call, plan.state(), workspace, stream, nullptr);
}

PlanState plan_of(const Call& call, const SelectOptions& select) {
  const Overrides overrides = overrides_of(select);
  RecentPlan& recent = recent_plan(call.operation);
  if (PlanState plan = recent.find(call, overrides)) return plan;
  PlanState plan = find_plan(describe(call), overrides);
  recent.remember(call, overrides, plan);
  return plan;
}

}  // namespace

void run_call(const Call& call, const SelectOptions& select, void* stream, WorkspaceSource* workspace) {
  const DeviceScope scope(call.q.device, stream);
  launch(call, *plan_of(call, select), nullptr, stream, workspace);
}

void prepare_call(const Call& call, const SelectOptions& select) {
  const DeviceScope scope(call.q.device, nullptr);
  (void)find_plan(describe(call), overrides_of(select));
}

}  // namespace core

void run(const Plan& plan, const ForwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned(plan, core::call_of(arguments), workspace, stream);
}

void run(const Plan& plan, const BackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned(plan, core::call_of(arguments), workspace, stream);
}

void attention_forward(const ForwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call(core::call_of(arguments), select, stream, nullptr);
}

void attention_backward(const BackwardArguments& arguments, const SelectOptions& select, void* stream) {
  core::run_call(core::call_of(arguments), select, stream, nullptr);
}

}  // namespace tilewise
