// The functions of AMD's HIP runtime (libamdhip64), opened at run time, and the few types they need. Names are the
// runtime's own; what changed between its versions (device properties, memory types) is asked in ways that did not.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "jit/dynamic_library.hpp"

namespace tilewise::jit {
namespace hip {

using Result = int;
using DevicePointer = void*;
using Module = struct ModuleState*;
using Function = struct FunctionState*;
using Stream = struct StreamState*;
using Event = struct EventState*;

inline constexpr Result kSuccess = 0, kErrorInvalidValue = 1, kErrorOutOfMemory = 2, kErrorNotInitialized = 3,
                        kErrorNoDevice = 100, kErrorNoBinaryForGpu = 209, kErrorNotFound = 500, kErrorNotReady = 600;

enum DeviceAttribute : int {
  kClockRateKilohertz = 5,
  kMaxThreadsPerBlock = 56,
  kMaxThreadsPerMultiprocessor = 57,
  kMultiprocessorCount = 63,
  kMaxSharedMemoryPerBlock = 74,
  kWarpSize = 87,
};

enum FunctionAttribute : int {
  kFunctionMaxThreadsPerBlock = 0,
  kFunctionSharedBytes = 1,
  kFunctionLocalBytes = 3,
  kFunctionRegisters = 4,
};

enum PointerAttribute : int { kPointerDeviceOrdinal = 9 };
enum CaptureStatus : int { kCaptureNone = 0, kCaptureActive = 1, kCaptureInvalidated = 2 };
inline constexpr unsigned kEventDefault = 0, kEventDisableTiming = 2;

/// The `extra` argument of hipModuleLaunchKernel: {kLaunchBuffer, kernarg, kLaunchBufferSize, &bytes, kLaunchEnd}.
inline void* const kLaunchBuffer = reinterpret_cast<void*>(1);
inline void* const kLaunchBufferSize = reinterpret_cast<void*>(2);
inline void* const kLaunchEnd = reinterpret_cast<void*>(3);

}  // namespace hip

// X(member, symbol names, required, signature). Device properties come as an opaque buffer: their layout differs
// between versions (hip_architecture() below reads what is needed).
#define TILEWISE_HIP_FUNCTIONS(X)                                                                                     \
  X(hipInit, "hipInit", true, hip::Result(unsigned flags))                                                            \
  X(hipDriverGetVersion, "hipDriverGetVersion", true, hip::Result(int* version))                                      \
  X(hipRuntimeGetVersion, "hipRuntimeGetVersion", true, hip::Result(int* version))                                    \
  X(hipGetDeviceCount, "hipGetDeviceCount", true, hip::Result(int* count))                                            \
  X(hipGetDevice, "hipGetDevice", true, hip::Result(int* device))                                                     \
  X(hipSetDevice, "hipSetDevice", true, hip::Result(int device))                                                      \
  X(hipDeviceGetName, "hipDeviceGetName", true, hip::Result(char* name, int length, int device))                      \
  X(hipDeviceGetAttribute, "hipDeviceGetAttribute", true,                                                             \
    hip::Result(int* value, hip::DeviceAttribute attribute, int device))                                              \
  X(hipGetDeviceProperties, "hipGetDevicePropertiesR0600|hipGetDeviceProperties", true,                               \
    hip::Result(void* properties, int device))                                                                        \
  X(hipModuleLoadData, "hipModuleLoadData", true, hip::Result(hip::Module* module, const void* image))                \
  X(hipModuleUnload, "hipModuleUnload", true, hip::Result(hip::Module module))                                        \
  X(hipModuleGetFunction, "hipModuleGetFunction", true,                                                               \
    hip::Result(hip::Function* function, hip::Module module, const char* name))                                       \
  X(hipFuncGetAttribute, "hipFuncGetAttribute", true,                                                                 \
    hip::Result(int* value, hip::FunctionAttribute attribute, hip::Function function))                                \
  X(hipModuleLaunchKernel, "hipModuleLaunchKernel", true,                                                             \
    hip::Result(hip::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,          \
                unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes, hip::Stream stream,                \
                void** parameters, void** extra))                                                                     \
  X(hipStreamIsCapturing, "hipStreamIsCapturing", false, hip::Result(hip::Stream stream, hip::CaptureStatus* status)) \
  X(hipStreamGetDevice, "hipStreamGetDevice", false, hip::Result(hip::Stream stream, int* device))                    \
  X(hipStreamSynchronize, "hipStreamSynchronize", true, hip::Result(hip::Stream stream))                              \
  X(hipStreamCreateWithFlags, "hipStreamCreateWithFlags", true, hip::Result(hip::Stream* stream, unsigned flags))     \
  X(hipStreamDestroy, "hipStreamDestroy", true, hip::Result(hip::Stream stream))                                      \
  X(hipMalloc, "hipMalloc", true, hip::Result(hip::DevicePointer* pointer, std::size_t bytes))                        \
  X(hipFree, "hipFree", true, hip::Result(hip::DevicePointer pointer))                                                \
  X(hipMemGetInfo, "hipMemGetInfo", true, hip::Result(std::size_t* free_bytes, std::size_t* total_bytes))             \
  X(hipMemcpyHtoD, "hipMemcpyHtoD", true,                                                                             \
    hip::Result(hip::DevicePointer destination, const void* source, std::size_t bytes))                               \
  X(hipMemcpyDtoH, "hipMemcpyDtoH", true,                                                                             \
    hip::Result(void* destination, hip::DevicePointer source, std::size_t bytes))                                     \
  X(hipMemcpyHtoDAsync, "hipMemcpyHtoDAsync", true,                                                                   \
    hip::Result(hip::DevicePointer destination, const void* source, std::size_t bytes, hip::Stream stream))           \
  X(hipMemcpyDtoHAsync, "hipMemcpyDtoHAsync", true,                                                                   \
    hip::Result(void* destination, hip::DevicePointer source, std::size_t bytes, hip::Stream stream))                 \
  X(hipMemsetD8Async, "hipMemsetD8Async", true,                                                                       \
    hip::Result(hip::DevicePointer destination, unsigned char value, std::size_t bytes, hip::Stream stream))          \
  X(hipMemsetD32Async, "hipMemsetD32Async", true,                                                                     \
    hip::Result(hip::DevicePointer destination, int value, std::size_t words, hip::Stream stream))                    \
  X(hipPointerGetAttribute, "hipPointerGetAttribute", false,                                                          \
    hip::Result(void* value, hip::PointerAttribute attribute, hip::DevicePointer pointer))                            \
  X(hipEventCreateWithFlags, "hipEventCreateWithFlags", true, hip::Result(hip::Event* event, unsigned flags))         \
  X(hipEventRecord, "hipEventRecord", true, hip::Result(hip::Event event, hip::Stream stream))                        \
  X(hipEventSynchronize, "hipEventSynchronize", true, hip::Result(hip::Event event))                                  \
  X(hipEventElapsedTime, "hipEventElapsedTime", true,                                                                 \
    hip::Result(float* milliseconds, hip::Event start, hip::Event stop))                                              \
  X(hipEventDestroy, "hipEventDestroy", true, hip::Result(hip::Event event))                                          \
  X(hipGetErrorName, "hipGetErrorName", true, const char*(hip::Result error))                                         \
  X(hipGetErrorString, "hipGetErrorString", true, const char*(hip::Result error))                                     \
  X(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor", true,   \
    hip::Result(int* blocks, hip::Function function, int block_threads, std::size_t dynamic_shared_bytes))

struct HipDriver {
  TILEWISE_HIP_FUNCTIONS(TILEWISE_FUNCTION_MEMBER)
};

/// The runtime's functions, opened on first use; null with hip_driver_reason() where they are not all there. A copy
/// that the process has loaded already (torch brings its own) is taken before another.
[[nodiscard]] const HipDriver* hip_driver();
/// Why hip_driver() is null; empty where it is not.
[[nodiscard]] std::string hip_driver_reason();
/// The file that the runtime was opened from; empty where there is none.
[[nodiscard]] std::string hip_driver_path();
/// A device's architecture ("gfx942", without the features after ':'); empty with `error` set where the runtime fails.
[[nodiscard]] std::string hip_architecture(const HipDriver& driver, int device, hip::Result& error);

}  // namespace tilewise::jit
