// What the binary interfaces of CUDA's driver and AMD's HIP runtime have in common: handles, results, and how their
// libraries are opened. Values are those of both.
#pragma once

#include <string>

namespace tilewise::jit {
namespace gpu {

using Result = int;
using Module = struct ModuleState*;
using Function = struct FunctionState*;
using Stream = struct StreamState*;

inline constexpr Result kSuccess = 0, kErrorInvalidValue = 1, kErrorOutOfMemory = 2, kErrorNoDevice = 100,
                        kErrorInvalidContext = 201, kErrorInvalidHandle = 400, kErrorNotFound = 500,
                        kErrorContextIsDestroyed = 709;

enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };

}  // namespace gpu

/// A library and the table of its functions, filled when first asked for.
template <typename Table>
struct OpenedDriver {
  Table table;
  std::string reason;  ///< why the table can't be used ("libcuda.so.1: cannot open shared object file: ...")
  std::string path;    ///< the file it was opened from; empty where there is none

  /// Null where the functions are not all there.
  [[nodiscard]] const Table* functions() const noexcept { return reason.empty() ? &table : nullptr; }
};

}  // namespace tilewise::jit
