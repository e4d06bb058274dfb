// Running a call on memory and a stream that the caller's framework provides.
#pragma once

#include <cstddef>

#include "core/call.hpp"
#include "tilewise/attention.hpp"

namespace tilewise::core {

/// Where scratch memory on a GPU comes from.
class WorkspaceSource {
 public:
  virtual ~WorkspaceSource() = default;
  /// At least 64-byte aligned memory on the tensors' device, valid for work enqueued on the stream before the
  /// source goes away. Throws Error.
  [[nodiscard]] virtual void* allocate(std::size_t bytes) = 0;
};

/// Describes, finds the plan and runs. On a GPU: `workspace` is asked at most once, before anything is launched;
/// null takes memory that this thread keeps for the device and stream.
void run_call(const Call& call, const SelectOptions& select, void* stream, WorkspaceSource* workspace);

/// Makes the call's plan, compiling and loading its kernels, without running it.
void prepare_call(const Call& call, const SelectOptions& select);

}  // namespace tilewise::core
