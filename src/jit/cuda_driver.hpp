// The functions of the CUDA driver (libcuda.so.1), opened at run time, and the few types they need. Names are the
// driver's own, so that its documentation applies; values are those of its fixed binary interface.
#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <type_traits>

#include "jit/dynamic_library.hpp"

namespace tilewise::jit {
namespace cuda {

using Result = int;
using DeviceId = int;
using DevicePointer = unsigned long long;
using Context = struct ContextState*;
using Module = struct ModuleState*;
using Function = struct FunctionState*;
using Stream = struct StreamState*;
using Event = struct EventState*;

inline constexpr Result kSuccess = 0, kErrorInvalidValue = 1, kErrorOutOfMemory = 2, kErrorNotInitialized = 3,
                        kErrorNoDevice = 100, kErrorInvalidContext = 201, kErrorNoBinaryForGpu = 209,
                        kErrorNotFound = 500, kErrorNotReady = 600;

enum DeviceAttribute : int {
  kMaxSharedMemoryPerBlock = 8,
  kWarpSize = 10,
  kClockRateKilohertz = 13,
  kMultiprocessorCount = 16,
  kMaxThreadsPerMultiprocessor = 39,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMaxSharedMemoryPerMultiprocessor = 81,
  kMaxRegistersPerMultiprocessor = 82,
  kMaxSharedMemoryPerBlockOptin = 97,
};

enum FunctionAttribute : int {
  kFunctionMaxThreadsPerBlock = 0,
  kFunctionSharedBytes = 1,
  kFunctionLocalBytes = 3,
  kFunctionRegisters = 4,
  kFunctionMaxDynamicSharedBytes = 8,
  kFunctionPreferredSharedCarveout = 9,
};

enum PointerAttribute : int { kPointerContext = 1, kPointerMemoryType = 2, kPointerDeviceOrdinal = 9 };
inline constexpr unsigned kMemoryTypeHost = 1, kMemoryTypeDevice = 2;
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
inline constexpr unsigned kEventDefault = 0, kEventDisableTiming = 2;

struct alignas(8) LaunchAttribute {
  int id;
  int padding;
  std::array<unsigned char, 64> value;
};
struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_shared_bytes;
  Stream stream;
  LaunchAttribute* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(LaunchAttribute) == 72 && sizeof(LaunchConfig) == 56);

}  // namespace cuda

// X(member, symbol names, required, signature)
#define TILEWISE_CUDA_FUNCTIONS(X)                                                                                    \
  X(cuInit, "cuInit", true, cuda::Result(unsigned flags))                                                             \
  X(cuDriverGetVersion, "cuDriverGetVersion", true, cuda::Result(int* version))                                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", true, cuda::Result(int* count))                                             \
  X(cuDeviceGet, "cuDeviceGet", true, cuda::Result(cuda::DeviceId* device, int ordinal))                              \
  X(cuDeviceGetName, "cuDeviceGetName", true, cuda::Result(char* name, int length, cuda::DeviceId device))            \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", true,                                                               \
    cuda::Result(int* value, cuda::DeviceAttribute attribute, cuda::DeviceId device))                                 \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", true,                                                       \
    cuda::Result(cuda::Context* context, cuda::DeviceId device))                                                      \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2|cuDevicePrimaryCtxRelease", true,                        \
    cuda::Result(cuda::DeviceId device))                                                                              \
  X(cuCtxGetCurrent, "cuCtxGetCurrent", true, cuda::Result(cuda::Context* context))                                   \
  X(cuCtxSetCurrent, "cuCtxSetCurrent", true, cuda::Result(cuda::Context context))                                    \
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
  X(cuStreamIsCapturing, "cuStreamIsCapturing", true, cuda::Result(cuda::Stream stream, cuda::CaptureStatus* status)) \
  X(cuStreamGetCtx, "cuStreamGetCtx", false, cuda::Result(cuda::Stream stream, cuda::Context* context))               \
  X(cuStreamSynchronize, "cuStreamSynchronize", true, cuda::Result(cuda::Stream stream))                              \
  X(cuStreamCreate, "cuStreamCreate", true, cuda::Result(cuda::Stream* stream, unsigned flags))                       \
  X(cuStreamDestroy, "cuStreamDestroy_v2", true, cuda::Result(cuda::Stream stream))                                   \
  X(cuMemAlloc, "cuMemAlloc_v2", true, cuda::Result(cuda::DevicePointer* pointer, std::size_t bytes))                 \
  X(cuMemFree, "cuMemFree_v2", true, cuda::Result(cuda::DevicePointer pointer))                                       \
  X(cuMemGetInfo, "cuMemGetInfo_v2", true, cuda::Result(std::size_t* free_bytes, std::size_t* total_bytes))           \
  X(cuMemcpyHtoD, "cuMemcpyHtoD_v2", true,                                                                            \
    cuda::Result(cuda::DevicePointer destination, const void* source, std::size_t bytes))                             \
  X(cuMemcpyDtoH, "cuMemcpyDtoH_v2", true,                                                                            \
    cuda::Result(void* destination, cuda::DevicePointer source, std::size_t bytes))                                   \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", true,                                                                  \
    cuda::Result(cuda::DevicePointer destination, const void* source, std::size_t bytes, cuda::Stream stream))        \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", true,                                                                  \
    cuda::Result(void* destination, cuda::DevicePointer source, std::size_t bytes, cuda::Stream stream))              \
  X(cuMemsetD8Async, "cuMemsetD8Async", true,                                                                         \
    cuda::Result(cuda::DevicePointer destination, unsigned char value, std::size_t bytes, cuda::Stream stream))       \
  X(cuMemsetD32Async, "cuMemsetD32Async", true,                                                                       \
    cuda::Result(cuda::DevicePointer destination, unsigned value, std::size_t words, cuda::Stream stream))            \
  X(cuPointerGetAttribute, "cuPointerGetAttribute", true,                                                             \
    cuda::Result(void* value, cuda::PointerAttribute attribute, cuda::DevicePointer pointer))                         \
  X(cuEventCreate, "cuEventCreate", true, cuda::Result(cuda::Event* event, unsigned flags))                           \
  X(cuEventRecord, "cuEventRecord", true, cuda::Result(cuda::Event event, cuda::Stream stream))                       \
  X(cuEventSynchronize, "cuEventSynchronize", true, cuda::Result(cuda::Event event))                                  \
  X(cuEventElapsedTime, "cuEventElapsedTime", true,                                                                   \
    cuda::Result(float* milliseconds, cuda::Event start, cuda::Event stop))                                           \
  X(cuEventDestroy, "cuEventDestroy_v2", true, cuda::Result(cuda::Event event))                                       \
  X(cuGetErrorName, "cuGetErrorName", true, cuda::Result(cuda::Result error, const char** name))                      \
  X(cuGetErrorString, "cuGetErrorString", true, cuda::Result(cuda::Result error, const char** text))                  \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor, "cuOccupancyMaxActiveBlocksPerMultiprocessor", true,                 \
    cuda::Result(int* blocks, cuda::Function function, int block_threads, std::size_t dynamic_shared_bytes))

struct CudaDriver {
  TILEWISE_CUDA_FUNCTIONS(TILEWISE_FUNCTION_MEMBER)
};

/// The driver's functions, opened on first use; null with cuda_driver_reason() where they are not all there. cuInit is
/// the caller's to call.
[[nodiscard]] const CudaDriver* cuda_driver();
/// Why cuda_driver() is null ("libcuda.so.1: cannot open shared object file: ..."); empty where it is not.
[[nodiscard]] std::string cuda_driver_reason();
/// The file that the driver was opened from; empty where there is none.
[[nodiscard]] std::string cuda_driver_path();
/// The CUDA version that the driver supports, 1000 * major + 10 * minor; 0 without a driver.
[[nodiscard]] int cuda_driver_version();

}  // namespace tilewise::jit
