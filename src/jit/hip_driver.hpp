// The functions of AMD's HIP runtime (libamdhip64), opened at run time, and the few types they need. Names are the
// runtime's own; what changed between its versions (device properties) is asked in a way that did not.
#pragma once

#include <cstddef>
#include <string>
#include <type_traits>

#include "core/visibility.hpp"
#include "jit/dynamic_library.hpp"
#include "jit/gpu_driver.hpp"

namespace tilewise::jit {
namespace hip {

using namespace gpu;

using DevicePointer = void*;

enum DeviceAttribute : int { kClockRateKilohertz = 5, kMultiprocessorCount = 63, kMaxSharedMemoryPerBlock = 74 };

/// The `extra` argument of hipModuleLaunchKernel: {kLaunchBuffer, kernarg, kLaunchBufferSize, &bytes, kLaunchEnd}.
inline void* const kLaunchBuffer = reinterpret_cast<void*>(1);
inline void* const kLaunchBufferSize = reinterpret_cast<void*>(2);
inline void* const kLaunchEnd = reinterpret_cast<void*>(3);

}  // namespace hip

// X(member, symbol names, required, signature). Device properties come as an opaque buffer: their layout differs
// between versions (hip_architecture() below reads what is needed).
#define TILEWISE_HIP_FUNCTIONS(X)                                                                                     \
  X(hipInit, "hipInit", true, hip::Result(unsigned flags))                                                            \
  X(hipGetDeviceCount, "hipGetDeviceCount", true, hip::Result(int* count))                                            \
  X(hipGetDevice, "hipGetDevice", true, hip::Result(int* device))                                                     \
  X(hipSetDevice, "hipSetDevice", true, hip::Result(int device))                                                      \
  X(hipDeviceGetAttribute, "hipDeviceGetAttribute", true,                                                             \
    hip::Result(int* value, hip::DeviceAttribute attribute, int device))                                              \
  X(hipGetDeviceProperties, "hipGetDevicePropertiesR0600|hipGetDeviceProperties", true,                               \
    hip::Result(void* properties, int device))                                                                        \
  X(hipModuleLoadData, "hipModuleLoadData", true, hip::Result(hip::Module* module, const void* image))                \
  X(hipModuleUnload, "hipModuleUnload", true, hip::Result(hip::Module module))                                        \
  X(hipModuleGetFunction, "hipModuleGetFunction", true,                                                               \
    hip::Result(hip::Function* function, hip::Module module, const char* name))                                       \
  X(hipModuleLaunchKernel, "hipModuleLaunchKernel", true,                                                             \
    hip::Result(hip::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,          \
                unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes, hip::Stream stream,                \
                void** parameters, void** extra))                                                                     \
  X(hipStreamIsCapturing, "hipStreamIsCapturing", false, hip::Result(hip::Stream stream, hip::CaptureStatus* status)) \
  X(hipStreamSynchronize, "hipStreamSynchronize", true, hip::Result(hip::Stream stream))                              \
  X(hipMalloc, "hipMalloc", true, hip::Result(hip::DevicePointer* pointer, std::size_t bytes))                        \
  X(hipFree, "hipFree", true, hip::Result(hip::DevicePointer pointer))                                                \
  X(hipMemcpyHtoDAsync, "hipMemcpyHtoDAsync", true,                                                                   \
    hip::Result(hip::DevicePointer destination, const void* source, std::size_t bytes, hip::Stream stream))           \
  X(hipMemcpyDtoHAsync, "hipMemcpyDtoHAsync", true,                                                                   \
    hip::Result(void* destination, hip::DevicePointer source, std::size_t bytes, hip::Stream stream))                 \
  X(hipMemsetD8Async, "hipMemsetD8Async", true,                                                                       \
    hip::Result(hip::DevicePointer destination, unsigned char value, std::size_t bytes, hip::Stream stream))          \
  X(hipMemsetD32Async, "hipMemsetD32Async", true,                                                                     \
    hip::Result(hip::DevicePointer destination, int value, std::size_t words, hip::Stream stream))                    \
  X(hipGetErrorName, "hipGetErrorName", true, const char*(hip::Result error))                                         \
  X(hipGetErrorString, "hipGetErrorString", true, const char*(hip::Result error))

struct HipDriver {
  TILEWISE_HIP_FUNCTIONS(TILEWISE_FUNCTION_MEMBER)
};

/// Opened on first use. A copy that the process has loaded already (torch brings its own) is taken before another.
[[nodiscard]] TILEWISE_INTERNAL const OpenedDriver<HipDriver>& hip_driver();
/// A device's architecture ("gfx942", without the features after ':'); empty with `error` set where the runtime fails.
[[nodiscard]] std::string hip_architecture(const HipDriver& driver, int device, hip::Result& error);

}  // namespace tilewise::jit
