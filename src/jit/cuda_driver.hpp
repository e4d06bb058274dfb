// The functions of the CUDA driver (libcuda.so.1), opened at run time, and the few types they need. Names are the
// driver's own, so that its documentation applies; values are those of its fixed binary interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/visibility.hpp"
#include "jit/dynamic_library.hpp"
#include "jit/gpu_driver.hpp"

namespace tilewise::jit {
namespace cuda {

using namespace gpu;

using DeviceId = int;
using DevicePointer = unsigned long long;
using Context = struct ContextState*;

enum DeviceAttribute : int {
  kClockRateKilohertz = 13,
  kMultiprocessorCount = 16,
  kMemoryClockRateKilohertz = 36,
  kMemoryBusWidthBits = 37,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerBlockOptin = 97,
};

enum FunctionAttribute : int { kFunctionLocalBytes = 3, kFunctionMaxDynamicSharedBytes = 8 };

enum LaunchAttributeId : int { kClusterDimension = 4, kProgrammaticStreamSerialization = 6 };
struct LaunchAttribute {
  LaunchAttributeId id;
  char padding[4];
  union {
    char bytes[64];
    struct {
      unsigned x, y, z;
    } cluster;
    int allowed;
  } value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};

// Of tensor maps.
enum TensorMapType : int { kTensorMapU8 = 0, kTensorMapF16 = 6, kTensorMapF32 = 7, kTensorMapBf16 = 9 };
enum TensorMapInterleave : int { kInterleaveNone = 0 };
enum TensorMapSwizzle : int { kSwizzleNone = 0, kSwizzle32 = 1, kSwizzle64 = 2, kSwizzle128 = 3 };
enum TensorMapPromotion : int { kPromote256 = 3 };
enum TensorMapOutside : int { kOutsideIsZero = 0 };

}  // namespace cuda

// X(member, symbol names, required, signature)
#define TILEWISE_CUDA_FUNCTIONS(X)                                                                                    \
  X(cuInit, "cuInit", true, cuda::Result(unsigned flags))                                                             \
  X(cuDriverGetVersion, "cuDriverGetVersion", true, cuda::Result(int* version))                                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", true, cuda::Result(int* count))                                             \
  X(cuDeviceGet, "cuDeviceGet", true, cuda::Result(cuda::DeviceId* device, int ordinal))                              \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", true,                                                               \
    cuda::Result(int* value, cuda::DeviceAttribute attribute, cuda::DeviceId device))                                 \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", true,                                                       \
    cuda::Result(cuda::Context* context, cuda::DeviceId device))                                                      \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", true, cuda::Result(cuda::Context* context))                                   \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", true, cuda::Result(cuda::Context context))                               \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", true, cuda::Result(cuda::Context* context))                                \
  X(cuCtxGetDevice, "cuCtxGetDevice", true, cuda::Result(cuda::DeviceId* device))                                     \
  X(cuModuleLoadData, "cuModuleLoadData", true, cuda::Result(cuda::Module* module, const void* image))                \
  X(cuModuleUnload, "cuModuleUnload", true, cuda::Result(cuda::Module module))                                        \
  X(cuModuleGetFunction, "cuModuleGetFunction", true,                                                                 \
    cuda::Result(cuda::Function* function, cuda::Module module, const char* name))                                    \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", true,                                                                   \
    cuda::Result(cuda::Function function, cuda::FunctionAttribute attribute, int value))                              \
  X(cuFuncGetAttribute, "cuFuncGetAttribute", true,                                                                   \
    cuda::Result(int* value, cuda::FunctionAttribute attribute, cuda::Function function))                             \
  X(cuLaunchKernel, "cuLaunchKernel", true,                                                                           \
    cuda::Result(cuda::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
                 unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes, cuda::Stream stream,              \
                 void** parameters, void** extra))                                                                    \
  X(cuLaunchKernelEx, "cuLaunchKernelEx", false,                                                                      \
    cuda::Result(const cuda::LaunchConfig* config, cuda::Function function, void** parameters, void** extra))         \
  X(cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled", false,                                                          \
    cuda::Result(void* map, cuda::TensorMapType type, unsigned rank, void* address, const std::uint64_t* dims,        \
                 const std::uint64_t* strides, const unsigned* box, const unsigned* element_strides,                  \
                 cuda::TensorMapInterleave interleave, cuda::TensorMapSwizzle swizzle,                                \
                 cuda::TensorMapPromotion promotion, cuda::TensorMapOutside outside))                                 \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", true, cuda::Result(cuda::Stream stream, cuda::CaptureStatus* status)) \
  X(cuStreamSynchronize, "cuStreamSynchronize", true, cuda::Result(cuda::Stream stream))                              \
  X(cuMemAlloc, "cuMemAlloc_v2", true, cuda::Result(cuda::DevicePointer* pointer, std::size_t bytes))                 \
  X(cuMemFree, "cuMemFree_v2", true, cuda::Result(cuda::DevicePointer pointer))                                       \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", true,                                                                  \
    cuda::Result(cuda::DevicePointer destination, const void* source, std::size_t bytes, cuda::Stream stream))        \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", true,                                                                  \
    cuda::Result(void* destination, cuda::DevicePointer source, std::size_t bytes, cuda::Stream stream))              \
  X(cuMemsetD8Async, "cuMemsetD8Async", true,                                                                         \
    cuda::Result(cuda::DevicePointer destination, unsigned char value, std::size_t bytes, cuda::Stream stream))       \
  X(cuMemsetD32Async, "cuMemsetD32Async", true,                                                                       \
    cuda::Result(cuda::DevicePointer destination, unsigned value, std::size_t words, cuda::Stream stream))            \
  X(cuGetErrorName, "cuGetErrorName", true, cuda::Result(cuda::Result error, const char** name))                      \
  X(cuGetErrorString, "cuGetErrorString", true, cuda::Result(cuda::Result error, const char** text))

struct CudaDriver {
  TILEWISE_CUDA_FUNCTIONS(TILEWISE_FUNCTION_MEMBER)
};

/// Opened on first use. cuInit is the caller's to call.
[[nodiscard]] TILEWISE_INTERNAL const OpenedDriver<CudaDriver>& cuda_driver();
/// The CUDA version that the driver supports, 1000 * major + 10 * minor; 0 without a driver.
[[nodiscard]] int cuda_driver_version();

}  // namespace tilewise::jit
