// A libamdhip64 of three devices that records what it is asked and computes nothing.
#include "fake_hip.hpp"

#include <cstdlib>
#include <cstring>

#include "jit/hip_driver.hpp"

namespace amd = tilewise::jit::hip;
using tilewise::fake::HipState, tilewise::fake::kArchitectures;

namespace {

HipState g_state;
char g_module;

}  // namespace

HipState* fake_hip_state() { return &g_state; }

extern "C" {

amd::Result hipInit(unsigned) { return std::getenv("FAKE_HIP_EMPTY") ? amd::kErrorNoDevice : amd::kSuccess; }
amd::Result hipGetDeviceCount(int* count) { return *count = static_cast<int>(kArchitectures.size()), amd::kSuccess; }
amd::Result hipGetDevice(int* device) { return *device = g_state.current, amd::kSuccess; }
amd::Result hipSetDevice(int device) { return g_state.current = device, amd::kSuccess; }
amd::Result hipDeviceGetAttribute(int* value, amd::DeviceAttribute attribute, int) {
  *value = attribute == amd::kMultiprocessorCount       ? 304
           : attribute == amd::kMaxSharedMemoryPerBlock ? 65536
           : attribute == amd::kClockRateKilohertz      ? 2100000
                                                        : 0;
  return *value != 0 ? amd::kSuccess : amd::kErrorInvalidValue;
}
/// The name fills the first 256 bytes; where the architecture stands behind it differs between versions.
amd::Result hipGetDevicePropertiesR0600(void* properties, int device) {
  auto* bytes = static_cast<char*>(properties);
  std::strcpy(bytes, "AMD Fake gfx000");
  const std::string_view name = kArchitectures[static_cast<std::size_t>(device)];
  std::memcpy(bytes + 1160, name.data(), name.size());
  return amd::kSuccess;
}

amd::Result hipModuleLoadData(amd::Module* module, const void*) {
  g_state.loads.push_back(g_state.current);
  return *module = reinterpret_cast<amd::Module>(&g_module), amd::kSuccess;
}
amd::Result hipModuleUnload(amd::Module) { return amd::kSuccess; }
amd::Result hipModuleGetFunction(amd::Function* function, amd::Module module, const char*) {
  return *function = reinterpret_cast<amd::Function>(module), amd::kSuccess;
}
amd::Result hipModuleLaunchKernel(amd::Function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                  unsigned block_y, unsigned block_z, unsigned dynamic_shared_bytes, amd::Stream stream,
                                  void** parameters, void** extra) {
  const bool sound = grid_x > 0 && grid_y == 1 && grid_z == 1 && block_y == 1 && block_z == 1 && parameters == nullptr;
  if (!sound || extra[0] != amd::kLaunchBuffer || extra[2] != amd::kLaunchBufferSize || extra[4] != amd::kLaunchEnd ||
      *static_cast<std::size_t*>(extra[3]) > sizeof(tilewise::fake::HipLaunch::block)) {
    return amd::kErrorInvalidValue;
  }
  if (g_state.launch_result != amd::kSuccess) return g_state.launch_result;
  g_state.launches.push_back({g_state.current, grid_x, block_x, dynamic_shared_bytes, stream, {}});
  std::memcpy(g_state.launches.back().block.data(), extra[1], *static_cast<std::size_t*>(extra[3]));
  return amd::kSuccess;
}

amd::Result hipStreamSynchronize(amd::Stream) { return amd::kSuccess; }
amd::Result hipMalloc(void** pointer, std::size_t bytes) {
  return *pointer = std::aligned_alloc(256, (bytes + 255) / 256 * 256), amd::kSuccess;
}
amd::Result hipFree(void* pointer) { return std::free(pointer), amd::kSuccess; }
amd::Result hipMemcpyHtoDAsync(void* target, const void* source, std::size_t bytes, amd::Stream) {
  return std::memcpy(target, source, bytes), amd::kSuccess;
}
amd::Result hipMemcpyDtoHAsync(void* target, void* source, std::size_t bytes, amd::Stream) {
  return std::memcpy(target, source, bytes), amd::kSuccess;
}
amd::Result hipMemsetD8Async(void* target, unsigned char value, std::size_t bytes, amd::Stream) {
  return std::memset(target, value, bytes), amd::kSuccess;
}
amd::Result hipMemsetD32Async(void* target, int value, std::size_t words, amd::Stream) {
  for (std::size_t i = 0; i < words; ++i) static_cast<int*>(target)[i] = value;
  return amd::kSuccess;
}
const char* hipGetErrorName(amd::Result error) {
  return error == amd::kErrorNoDevice ? "hipErrorNoDevice" : error == 400 ? "hipErrorInvalidHandle" : "hipErrorUnknown";
}
const char* hipGetErrorString(amd::Result error) {
  return error == amd::kErrorNoDevice ? "hipErrorNoDevice" : "as the runtime puts it";
}

}  // extern "C"
