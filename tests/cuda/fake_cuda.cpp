// A libcuda of three devices that records what it is asked and computes nothing. Device memory is host memory.
#include "fake_cuda.hpp"

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <vector>

#include "jit/cuda_driver.hpp"

namespace cu = tilewise::jit::cuda;
using tilewise::fake::kComputeCapabilities, tilewise::fake::State;

namespace {

State g_state;
/// Contexts and modules are addresses of these: index is the device.
char g_contexts[kComputeCapabilities.size()];
char g_modules[kComputeCapabilities.size()];
/// The thread's contexts. Without a destructor, since threads free memory while they end.
struct Stack {
  std::array<int, 16> devices;
  std::size_t depth;
  [[nodiscard]] int back() const { return devices[depth - 1]; }
  void push_back(int device) { devices[depth++] = device; }
};
thread_local Stack t_current;

int count() { return std::getenv("FAKE_CUDA_EMPTY") ? 0 : static_cast<int>(std::size(kComputeCapabilities)); }
int device_of(const void* handle, const char* handles) {
  return static_cast<int>(static_cast<const char*>(handle) - handles);
}
void* memory(cu::DevicePointer pointer) { return reinterpret_cast<void*>(pointer); }
bool has_context() { return t_current.depth > 0; }

constexpr cu::Result kNoContext = cu::kErrorInvalidContext;

}  // namespace

State* fake_cuda_state() { return &g_state; }
int fake_cuda_current() { return has_context() ? t_current.back() : -1; }
void fake_cuda_make_current(int device) {
  t_current.depth = 0;
  if (device >= 0) t_current.push_back(device);
}

extern "C" {

cu::Result cuInit(unsigned) { return count() == 0 ? cu::kErrorNoDevice : cu::kSuccess; }
cu::Result cuDriverGetVersion(int* version) { return *version = 13000, cu::kSuccess; }
cu::Result cuDeviceGetCount(int* devices) { return *devices = count(), cu::kSuccess; }
cu::Result cuDeviceGet(cu::DeviceId* device, int ordinal) { return *device = ordinal, cu::kSuccess; }

cu::Result cuDeviceGetAttribute(int* value, cu::DeviceAttribute attribute, cu::DeviceId device) {
  const int capability = kComputeCapabilities[static_cast<std::size_t>(device)];
  switch (attribute) {
    case cu::kComputeCapabilityMajor:
      return *value = capability / 10, cu::kSuccess;
    case cu::kComputeCapabilityMinor:
      return *value = capability % 10, cu::kSuccess;
    case cu::kMultiprocessorCount:
      return *value = 132, cu::kSuccess;
    case cu::kMaxSharedMemoryPerBlockOptin:
      return *value = 227 << 10, cu::kSuccess;
    case cu::kClockRateKilohertz:
      return *value = 1980000, cu::kSuccess;
    case cu::kMemoryClockRateKilohertz:
      return *value = 3201000, cu::kSuccess;
    case cu::kMemoryBusWidthBits:
      return *value = 6144, cu::kSuccess;
    default:
      return cu::kErrorInvalidValue;
  }
}

cu::Result cuDevicePrimaryCtxRetain(cu::Context* context, cu::DeviceId device) {
  return *context = reinterpret_cast<cu::Context>(&g_contexts[device]), cu::kSuccess;
}
cu::Result cuCtxGetCurrent(cu::Context* context) {
  return *context = has_context() ? reinterpret_cast<cu::Context>(&g_contexts[t_current.back()]) : nullptr,
         cu::kSuccess;
}
cu::Result cuCtxPushCurrent_v2(cu::Context context) {
  return t_current.push_back(device_of(context, g_contexts)), cu::kSuccess;
}
cu::Result cuCtxPopCurrent_v2(cu::Context* context) {
  if (!has_context()) return kNoContext;
  *context = reinterpret_cast<cu::Context>(&g_contexts[t_current.back()]);
  return --t_current.depth, cu::kSuccess;
}
cu::Result cuCtxGetDevice(cu::DeviceId* device) {
  if (!has_context()) return kNoContext;
  return *device = t_current.back(), cu::kSuccess;
}

cu::Result cuModuleLoadData(cu::Module* module, const void*) {
  if (!has_context()) return kNoContext;
  if (g_state.capture_status != cu::kCaptureNone) return cu::kErrorInvalidValue;  // as a real capture forbids it
  g_state.loads.push_back(t_current.back());
  return *module = reinterpret_cast<cu::Module>(&g_modules[t_current.back()]), cu::kSuccess;
}
cu::Result cuModuleUnload(cu::Module) { return cu::kSuccess; }
cu::Result cuModuleGetFunction(cu::Function* function, cu::Module module, const char*) {
  return *function = reinterpret_cast<cu::Function>(module), cu::kSuccess;
}
cu::Result cuFuncSetAttribute(cu::Function, cu::FunctionAttribute attribute, int value) {
  if (attribute == cu::kFunctionMaxDynamicSharedBytes)
    g_state.shared_limits.push_back(static_cast<std::uint32_t>(value));
  return cu::kSuccess;
}
cu::Result cuFuncGetAttribute(int* value, cu::FunctionAttribute, cu::Function) { return *value = 0, cu::kSuccess; }

cu::Result cuLaunchKernel(cu::Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes, cu::Stream stream,
                          void** parameters, void** extra) {
  const int device = device_of(function, g_modules);
  if (fake_cuda_current() != device) return kNoContext;
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1 || extra) return cu::kErrorInvalidValue;
  if (g_state.launch_result != cu::kSuccess) return g_state.launch_result;
  g_state.launches.push_back({device, grid_x, block_x, dynamic_shared_bytes, stream, false, {}});
  std::memcpy(g_state.launches.back().block.data(), parameters[0], g_state.launches.back().block.size());
  return cu::kSuccess;
}

cu::Result cuLaunchKernelEx(const cu::LaunchConfig* c, cu::Function function, void** parameters, void** extra) {
  const cu::Result result = cuLaunchKernel(function, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y,
                                           c->block_z, c->dynamic_shared_bytes, c->stream, parameters, extra);
  for (unsigned i = 0; result == cu::kSuccess && i < c->attribute_count; ++i) {
    const cu::LaunchAttribute& attribute = c->attributes[i];
    if (attribute.id != cu::kProgrammaticStreamSerialization) return cu::kErrorInvalidValue;
    g_state.launches.back().programmatic = attribute.value.allowed == 1;
  }
  return result;
}

cu::Result cuTensorMapEncodeTiled(void* map, cu::TensorMapType type, unsigned rank, void* address,
                                  const std::uint64_t* dims, const std::uint64_t*, const std::uint32_t*,
                                  const std::uint32_t*, cu::TensorMapInterleave, cu::TensorMapSwizzle,
                                  cu::TensorMapPromotion, cu::TensorMapOutside) {
  if (!has_context()) return kNoContext;
  if (rank == 0) return cu::kErrorInvalidValue;
  ++g_state.encodings;
  const std::uint64_t words[]{static_cast<std::uint64_t>(type), rank, reinterpret_cast<std::uintptr_t>(address),
                              dims[0]};
  return std::memcpy(map, words, sizeof words), cu::kSuccess;
}

cu::Result cuStreamIsCapturing(cu::Stream, cu::CaptureStatus* status) {
  return *status = static_cast<cu::CaptureStatus>(g_state.capture_status), cu::kSuccess;
}
cu::Result cuStreamSynchronize(cu::Stream) { return has_context() ? cu::kSuccess : kNoContext; }

cu::Result cuMemAlloc_v2(cu::DevicePointer* pointer, std::size_t bytes) {
  if (!has_context()) return kNoContext;
  if (bytes > g_state.largest_allocation) return cu::kErrorOutOfMemory;
  ++g_state.allocations;
  void* block = std::aligned_alloc(256, (bytes + 255) / 256 * 256);
  static auto& blocks = *new std::vector<void*>;  // as on a device, what nobody frees is no leak of the process
  blocks.push_back(block);
  return *pointer = reinterpret_cast<cu::DevicePointer>(block), cu::kSuccess;
}
cu::Result cuMemFree_v2(cu::DevicePointer pointer) {
  ++g_state.frees;
  return std::free(memory(pointer)), cu::kSuccess;
}
cu::Result cuMemcpyHtoDAsync_v2(cu::DevicePointer target, const void* source, std::size_t bytes, cu::Stream) {
  return std::memcpy(memory(target), source, bytes), cu::kSuccess;
}
cu::Result cuMemcpyDtoHAsync_v2(void* target, cu::DevicePointer source, std::size_t bytes, cu::Stream) {
  return std::memcpy(target, memory(source), bytes), cu::kSuccess;
}
cu::Result cuMemsetD8Async(cu::DevicePointer target, unsigned char value, std::size_t bytes, cu::Stream) {
  return std::memset(memory(target), value, bytes), cu::kSuccess;
}
cu::Result cuMemsetD32Async(cu::DevicePointer target, unsigned value, std::size_t words, cu::Stream) {
  for (std::size_t i = 0; i < words; ++i) static_cast<unsigned*>(memory(target))[i] = value;
  return cu::kSuccess;
}

cu::Result cuGetErrorName(cu::Result error, const char** name) {
  *name = error == cu::kErrorOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : error == cu::kErrorNoDevice  ? "CUDA_ERROR_NO_DEVICE"
          : error == 400                 ? "CUDA_ERROR_INVALID_HANDLE"
          : error == kNoContext          ? "CUDA_ERROR_INVALID_CONTEXT"
                                         : "CUDA_ERROR_OF_SOME_KIND";
  return cu::kSuccess;
}
cu::Result cuGetErrorString(cu::Result, const char** text) { return *text = "as the driver puts it", cu::kSuccess; }

}  // extern "C"
