// Opens devices on first use and keeps them.
#include "backends/cuda/cuda_device.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "backends/portable/architectures.hpp"
#include "core/message.hpp"
#include "jit/published.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::cuda {
namespace {

namespace cu = jit::cuda;

/// The driver after cuInit.
struct Driver {
  const jit::CudaDriver* functions = nullptr;
  int devices = 0;
  std::string reason;
};

Driver initialised() {
  Driver driver{jit::cuda_driver(), 0, jit::cuda_driver_reason()};
  if (driver.functions == nullptr) return driver;
  const auto fail = [&driver](std::string_view function, cu::Result result) {
    driver.reason =
        core::concat("CUDA has no device here (", function, ": ", error_text(*driver.functions, result), ")");
    driver.functions = nullptr;
    return driver;
  };
  if (const cu::Result result = driver.functions->cuInit(0); result != cu::kSuccess) return fail("cuInit", result);
  const cu::Result result = driver.functions->cuDeviceGetCount(&driver.devices);
  if (result != cu::kSuccess) return fail("cuDeviceGetCount", result);
  if (driver.devices == 0) return fail("cuDeviceGetCount", cu::kErrorNoDevice);
  driver.devices = std::min(driver.devices, kMaxDevices);
  return driver;
}

constinit jit::Published<Driver> g_driver;

const Driver& driver() { return g_driver.get(initialised); }

struct Opened {
  std::unique_ptr<const Gpu> gpu;
  std::string reason;
};

constinit std::array<jit::Published<Opened>, kMaxDevices> g_devices;

Opened open_device(const jit::CudaDriver& functions, int index) {
  try {
    return {std::make_unique<const Gpu>(functions, index), {}};
  } catch (const Error& error) {
    return {nullptr, core::concat("cuda:", index, ": ", error.what())};
  }
}

}  // namespace

std::string error_text(const jit::CudaDriver& driver, cu::Result result) {
  const char *name = nullptr, *words = nullptr;
  if (driver.cuGetErrorName(result, &name) != cu::kSuccess || name == nullptr) return core::concat("error ", result);
  if (driver.cuGetErrorString(result, &words) != cu::kSuccess || words == nullptr) return name;
  return core::concat(name, " (", words, ")");
}

void check(const jit::CudaDriver& driver, cu::Result result, std::string_view function) {
  if (result != cu::kSuccess) {
    throw Error(ErrorCode::runtime, core::concat(function, ": ", error_text(driver, result)));
  }
}

Gpu::Gpu(const jit::CudaDriver& driver, int index) : driver_(driver), index_(index) {
  cu::DeviceId device = 0;
  check(driver, driver.cuDeviceGet(&device, index), "cuDeviceGet");
  compute_capability_ =
      10 * attribute(cu::kComputeCapabilityMajor, device) + attribute(cu::kComputeCapabilityMinor, device);
  traits_.machine = device::kSm80;
  traits_.architecture = core::concat("sm_", compute_capability_, compute_capability_ == 90 ? "a" : "");
  traits_.multiprocessors = attribute(cu::kMultiprocessorCount, device);
  traits_.shared_bytes = static_cast<std::size_t>(attribute(cu::kMaxSharedMemoryPerBlockOptin, device));
  // A GPU newer than the table is taken for one of its consumer parts.
  constexpr double kUnknownRate = 512.0, kGigahertz = 1e-6;  // of a kilohertz
  const portable::Architecture* known = portable::find_architecture(traits_.architecture);
  portable::set_rates(traits_, known != nullptr ? known->matrix_rate : kUnknownRate,
                      attribute(cu::kClockRateKilohertz, device) * kGigahertz);
  // Never released: streams and memory of other libraries live in it, and threads may run while main() returns.
  check(driver, driver.cuDevicePrimaryCtxRetain(&context_, device), "cuDevicePrimaryCtxRetain");
}

int Gpu::attribute(cu::DeviceAttribute which, cu::DeviceId device) const {
  int value = 0;
  check(driver_, driver_.cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

ContextScope::ContextScope(const Gpu& gpu) : gpu_(gpu) {
  cu::Context current = nullptr;
  check(gpu.driver(), gpu.driver().cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  if (current == gpu.context()) return;
  check(gpu.driver(), gpu.driver().cuCtxPushCurrent(gpu.context()), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  cu::Context popped = nullptr;
  if (pushed_) gpu_.driver().cuCtxPopCurrent(&popped);
}

const jit::CudaDriver* ready_driver(std::string& reason) {
  reason = driver().reason;
  return driver().functions;
}

int device_count() { return driver().devices; }

const Gpu* find_gpu(int index, std::string& reason) {
  const jit::CudaDriver* functions = driver().functions;
  if (functions == nullptr) {
    reason = driver().reason;
    return nullptr;
  }
  if (index < 0 || index >= driver().devices) {
    reason = core::concat("cuda:", index, ": must be one of the ", driver().devices, " CUDA devices here");
    return nullptr;
  }
  const Opened& opened = g_devices[static_cast<std::size_t>(index)].get([&] { return open_device(*functions, index); });
  if (opened.gpu == nullptr) reason = opened.reason;
  return opened.gpu.get();
}

const Gpu& required_gpu(int index) {
  std::string reason;
  if (const Gpu* gpu = find_gpu(index, reason)) return *gpu;
  throw Error(ErrorCode::runtime, reason);
}

}  // namespace tilewise::backends::cuda
