// A plan of portable kernels under emulation: what is common to the operations.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "backends/emulation/runtime.hpp"
#include "core/implementation.hpp"
#include "gpu/lowered_kernel.hpp"

namespace tilewise::backends::emulation {

/// What portable kernels say of an operation's problems and calls.
template <typename Operation>
struct PortableKernels {
  gpu::Lowering (*lower)(const typename Operation::Problem& problem, const core::DeviceDescription& device,
                         gpu::Family family);
  /// Says in the problem which rows that kernels touch start on 16 bytes.
  void (*note_alignment)(typename Operation::Problem& problem, const typename Operation::Params& call);
};

/// Lowers anew at each launch: a problem of the CPU says nothing of alignment, for which there are two kinds of
/// kernels. Only those that are launched are compiled.
template <typename Operation>
class EmulatedCall final : public core::KernelOf<typename Operation::Params> {
 public:
  using Problem = typename Operation::Problem;

  EmulatedCall(const Problem& problem, gpu::Family family, gpu::Lowering lowering,
               const PortableKernels<Operation>& portable)
      : problem_(problem), family_(family), portable_(portable), planned_(std::move(lowering), runtime_of(family), 0) {}

  [[nodiscard]] std::string obstacle() const override { return planned_.obstacle(); }
  [[nodiscard]] std::size_t workspace_size() const noexcept override { return planned_.workspace_size(); }
  [[nodiscard]] std::string schedule() const override { return planned_.schedule(); }

  void launch(const typename Operation::Params& params, void* workspace, void* stream) const override {
    Problem problem = problem_;
    portable_.note_alignment(problem, params);
    const gpu::FindRuntime find_runtime = runtime_of(family_);
    gpu::LoweredKernel kernel(portable_.lower(problem, find_runtime(0).description(), family_), find_runtime, 0);
    kernel.load();
    std::vector<Line> more;  // kernels for unaligned rows may be others, with a workspace of their own
    if (kernel.workspace_size() > workspace_size()) {
      more.resize((kernel.workspace_size() + sizeof(Line) - 1) / sizeof(Line));
      workspace = more.data();
    }
    // What nobody wrote reads as NaN.
    if (workspace != nullptr) std::memset(workspace, 0xFF, kernel.workspace_size());
    kernel.launch_on(&params, workspace, stream);
  }

 private:
  /// On as many bytes as a workspace of core's.
  struct alignas(64) Line {
    std::byte bytes[64];
  };

  Problem problem_;
  gpu::Family family_;
  PortableKernels<Operation> portable_;
  gpu::LoweredKernel planned_;
};

}  // namespace tilewise::backends::emulation
