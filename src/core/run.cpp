// Running a plan on tensors, and the short way that finds the plan first.
#include <new>

#include "core/call.hpp"
#include "core/message.hpp"
#include "core/plan.hpp"

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

void launch(const Call& call, const Plan::State& plan, void* workspace, void* stream) {
  if (stream != nullptr && plan.problem.device == DeviceType::cpu) {
    invalid_argument("stream: must be null on the cpu (got one)");
  }
  if (reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment != 0) {
    invalid_argument("workspace: must be aligned to ", kWorkspaceAlignment, " bytes (got an address ",
                     reinterpret_cast<std::uintptr_t>(workspace) % kWorkspaceAlignment, " past it)");
  }
  const device::AttentionParams params = make_params(call, plan.problem);
  if (workspace != nullptr) return plan.kernel->launch(params, workspace, stream);
  const ScratchMemory scratch(plan.kernel->workspace_size());
  plan.kernel->launch(params, scratch.data(), stream);
}

void run_planned(const Plan& plan, const Call& call, void* workspace, void* stream) {
  const Problem problem = describe(call);
  if (problem != plan.problem()) {
    validate(problem);
    invalid_argument("plan: must be for the tensors' problem, ", to_string(problem), " (got a plan for ",
                     to_string(plan.problem()), ")");
  }
  launch(call, plan.state(), workspace, stream);
}

void run_directly(const Call& call, const SelectOptions& select) {
  launch(call, *find_plan(describe(call), select), nullptr, nullptr);
}

}  // namespace
}  // namespace core

void run(const Plan& plan, const ForwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned(plan, core::call_of(arguments), workspace, stream);
}

void run(const Plan& plan, const BackwardArguments& arguments, void* workspace, void* stream) {
  core::run_planned(plan, core::call_of(arguments), workspace, stream);
}

void attention_forward(const ForwardArguments& arguments, const SelectOptions& select) {
  core::run_directly(core::call_of(arguments), select);
}

void attention_backward(const BackwardArguments& arguments, const SelectOptions& select) {
  core::run_directly(core::call_of(arguments), select);
}

}  // namespace tilewise
