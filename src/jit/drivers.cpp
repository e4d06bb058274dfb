// Opens libcuda and libamdhip64, each once, and fills their tables.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "jit/cuda_driver.hpp"
#include "jit/hip_driver.hpp"
#include "jit/published.hpp"

namespace tilewise::jit {
namespace {

template <typename Table>
OpenedDriver<Table> open_driver(const std::vector<std::string>& names, std::vector<FunctionEntry> (*entries)(Table&)) {
  OpenedDriver<Table> opened;
  void* library = open_library(names, opened.reason);
  if (!library) return opened;
  opened.path = library_path(library, names.front());
  opened.reason = look_up_functions(library, opened.path, entries(opened.table));
  return opened;
}

std::vector<FunctionEntry> cuda_entries(CudaDriver& table) {
  return {TILEWISE_CUDA_FUNCTIONS(TILEWISE_FUNCTION_ENTRY)};
}
std::vector<FunctionEntry> hip_entries(HipDriver& table) { return {TILEWISE_HIP_FUNCTIONS(TILEWISE_FUNCTION_ENTRY)}; }

constinit Published<OpenedDriver<CudaDriver>> g_cuda;
constinit Published<OpenedDriver<HipDriver>> g_hip;

/// The library that a variable names, in place of the usual ones.
std::vector<std::string> library_names(const char* variable, std::vector<std::string> usual) {
  const char* asked = std::getenv(variable);
  return asked != nullptr && *asked != '\0' ? std::vector<std::string>{asked} : usual;
}

}  // namespace

const OpenedDriver<CudaDriver>& cuda_driver() {
  return g_cuda.get(
      [] { return open_driver<CudaDriver>(library_names("TILEWISE_CUDA_DRIVER", {"libcuda.so.1"}), cuda_entries); });
}

int cuda_driver_version() {
  int version = 0;
  const CudaDriver* driver = cuda_driver().functions();
  return driver && driver->cuDriverGetVersion(&version) == cuda::kSuccess ? version : 0;
}

const OpenedDriver<HipDriver>& hip_driver() {
  return g_hip.get([] {
    return open_driver<HipDriver>(library_names("TILEWISE_HIP_DRIVER", {"libamdhip64.so.7", "libamdhip64.so.6",
                                                                        "libamdhip64.so.5", "libamdhip64.so"}),
                                  hip_entries);
  });
}

std::string hip_architecture(const HipDriver& driver, int device, hip::Result& error) {
  // The properties begin with the marketing name (256 bytes) in every version and hold "gfx942:sramecc+:xnack-"
  // somewhere behind it. They are under 1.5 KiB so far; the runtime writes no more than it knows of.
  constexpr std::size_t kNameBytes = 256, kRoom = 16384;
  alignas(16) std::array<char, kRoom> properties{};
  error = driver.hipGetDeviceProperties(properties.data(), device);
  if (error != hip::kSuccess) return {};
  const std::string_view text(properties.data() + kNameBytes, kRoom - kNameBytes);
  const std::size_t start = text.find("gfx");
  if (start == std::string_view::npos) return {};
  const std::string_view name = text.substr(start);
  return std::string(name.substr(0, std::min(name.find('\0'), name.find(':'))));
}

}  // namespace tilewise::jit
