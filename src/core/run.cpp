// Launching a plan with scratch memory from wherever it comes.
#include "core/run.hpp"

#include <cstdint>
#include <memory>
#include <new>

#include "core/device_workspace.hpp"
#include "core/interrupt.hpp"
#include "core/num_threads.hpp"

namespace tilewise::core {
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

/// Scratch memory of a call on a GPU: the source's, or the thread's own; null where none is needed.
void* device_workspace(const Plan::State& plan, const LaunchSite& site) {
  const std::size_t size = plan.kernel->workspace_size();
  if (size == 0) return nullptr;
  return site.source != nullptr ? site.source->allocate(size) : kept_workspace(site.device, site.stream, size);
}

}  // namespace

void check_site(const LaunchSite& site, DeviceType device) {
  if (site.stream != nullptr && device == DeviceType::cpu) {
    invalid_argument("stream: must be null on the cpu (got one)");
  }
  if (const auto past = reinterpret_cast<std::uintptr_t>(site.workspace) % kWorkspaceAlignment; past != 0) {
    invalid_argument("workspace: must be aligned to ", kWorkspaceAlignment, " bytes (got an address ", past,
                     " past it)");
  }
}

void launch(const Plan::State& plan, const void* params, const LaunchSite& site) {
  const bool on_cpu = site.device.type == DeviceType::cpu;
  // A bad TILEWISE_NUM_THREADS is an error of calls that need no threads too.
  const Interruptible interruptible(on_cpu ? plan.estimated_us / num_threads() : 0.0);
  if (site.workspace != nullptr) return plan.kernel->launch_on(params, site.workspace, site.stream);
  if (!on_cpu) return plan.kernel->launch_on(params, device_workspace(plan, site), site.stream);
  const ScratchMemory scratch(plan.kernel->workspace_size());
  plan.kernel->launch_on(params, scratch.data(), nullptr);
}

void refuse_plan(const Plan& plan, const ProblemView& described) {
  described.operation->validate(described.value);
  invalid_argument("plan: must be for the tensors' problem, ", described.operation->text(described.value),
                   " (got a plan for ", to_string(plan.problem()), ")");
}

void check_plan_device(const Plan& plan, Device device) {
  if (device.type == DeviceType::cpu || device.index == plan.state().device_index) return;
  invalid_argument("plan: must be for the tensors' device, ", device_name(device), " (got a plan for ",
                   device_name({device.type, plan.state().device_index}), ")");
}

}  // namespace tilewise::core
