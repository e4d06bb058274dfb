// Opens HIP devices on first use, loads code objects and launches them.
#include "backends/hip/hip_device.hpp"

#include <algorithm>
#include <array>
#include <memory>

#include "backends/portable/architectures.hpp"
#include "core/message.hpp"
#include "jit/published.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::hip {
namespace {

namespace amd = jit::hip;

const portable::Architecture& architecture_named(std::string_view name) {
  const portable::Architecture* found = portable::find_architecture(name);
  if (found != nullptr && portable::device_of(*found) == DeviceType::hip) return *found;
  throw Error(ErrorCode::unsupported, core::concat("the GPU must be one of ",
                                                   portable::architecture_names(DeviceType::hip), " (got ", name, ")"));
}

struct Driver {
  const jit::HipDriver* functions = nullptr;
  int devices = 0;
  std::string reason;
};

Driver initialised() {
  Driver driver{jit::hip_driver(), 0, jit::hip_driver_reason()};
  if (driver.functions == nullptr) return driver;
  const auto fail = [&driver](std::string_view function, amd::Result result) {
    driver.reason =
        core::concat("HIP has no device here (", function, ": ", error_text(*driver.functions, result), ")");
    driver.functions = nullptr;
    return driver;
  };
  if (const amd::Result result = driver.functions->hipInit(0); result != amd::kSuccess) return fail("hipInit", result);
  const amd::Result result = driver.functions->hipGetDeviceCount(&driver.devices);
  if (result != amd::kSuccess) return fail("hipGetDeviceCount", result);
  if (driver.devices == 0) return fail("hipGetDeviceCount", amd::kErrorNoDevice);
  driver.devices = std::min(driver.devices, kMaxDevices);
  return driver;
}

struct Opened {
  std::unique_ptr<const HipRuntime> runtime;
  std::string reason;
};

constinit jit::Published<Driver> g_driver;
constinit std::array<jit::Published<Opened>, kMaxDevices> g_devices;

const Driver& driver() { return g_driver.get(initialised); }

Opened open_device(const jit::HipDriver& functions, int index) {
  try {
    return {std::make_unique<const HipRuntime>(functions, index), {}};
  } catch (const Error& error) {
    return {nullptr, core::concat("hip:", index, ": ", error.what())};
  }
}

class Module final : public portable::LoadedKernel {
 public:
  Module(const HipRuntime& runtime, const jit::CompiledKernel& kernel) : runtime_(runtime) {
    const jit::HipDriver& driver = runtime.driver();
    const CurrentDevice current(driver, runtime.index());
    check(driver, driver.hipModuleLoadData(&module_, kernel.image.data()), "hipModuleLoadData");
    const amd::Result result = driver.hipModuleGetFunction(&function_, module_, kernel.symbol.c_str());
    if (result == amd::kSuccess) return;
    driver.hipModuleUnload(module_);
    check(driver, result, "hipModuleGetFunction");
  }
  ~Module() override { runtime_.driver().hipModuleUnload(module_); }
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  [[nodiscard]] amd::Function function() const noexcept { return function_; }

 private:
  const HipRuntime& runtime_;
  amd::Module module_ = nullptr;
  amd::Function function_ = nullptr;
};

[[noreturn, gnu::cold]] void fail_launch(const HipRuntime& runtime, amd::Result result,
                                         const portable::Launch& launch) {
  constexpr amd::Result kErrorInvalidHandle = 400, kErrorContextIsDestroyed = 709;
  const std::string words = error_text(runtime.driver(), result);
  if (result == kErrorInvalidHandle || result == kErrorContextIsDestroyed) {
    throw Error(ErrorCode::invalid_argument,
                core::concat("stream: must be a stream of hip:", runtime.index(),
                             ", where the tensors are (got one that hipModuleLaunchKernel refuses: ", words, ")"));
  }
  throw Error(ErrorCode::runtime,
              core::concat("hipModuleLaunchKernel: ", words, " for ", launch.blocks, " blocks of ", launch.threads,
                           " threads and ", launch.shared_bytes, " bytes of shared memory on hip:", runtime.index()));
}

}  // namespace

std::string error_text(const jit::HipDriver& driver, amd::Result result) {
  const char *name = driver.hipGetErrorName(result), *words = driver.hipGetErrorString(result);
  if (name == nullptr) return core::concat("error ", result);
  if (words == nullptr || std::string_view(words) == name) return name;  // old runtimes have no more to say
  return core::concat(name, " (", words, ")");
}

void check(const jit::HipDriver& driver, amd::Result result, std::string_view function) {
  if (result != amd::kSuccess) {
    throw Error(ErrorCode::runtime, core::concat(function, ": ", error_text(driver, result)));
  }
}

CurrentDevice::CurrentDevice(const jit::HipDriver& driver, int index) : driver_(driver) {
  check(driver, driver.hipGetDevice(&outer_), "hipGetDevice");
  if (outer_ == index) return;
  check(driver, driver.hipSetDevice(index), "hipSetDevice");
  changed_ = true;
}

CurrentDevice::~CurrentDevice() {
  if (changed_) driver_.hipSetDevice(outer_);
}

HipRuntime::HipRuntime(const jit::HipDriver& driver, int index) : driver_(driver), index_(index) {
  amd::Result error = amd::kSuccess;
  traits_.architecture = jit::hip_architecture(driver, index, error);
  check(driver, error, "hipGetDeviceProperties");
  const portable::Architecture& architecture = architecture_named(traits_.architecture);
  traits_.machine = architecture.machine;
  traits_.multiprocessors = attribute(amd::kMultiprocessorCount);
  traits_.shared_bytes = static_cast<std::size_t>(attribute(amd::kMaxSharedMemoryPerBlock));
  constexpr double kGigahertz = 1e-6;  // of a kilohertz
  portable::set_rates(traits_, architecture.matrix_rate, attribute(amd::kClockRateKilohertz) * kGigahertz);
  target_ = {jit::TargetKind::hip, traits_.architecture};
}

int HipRuntime::attribute(amd::DeviceAttribute which) const {
  int value = 0;
  check(driver_, driver_.hipDeviceGetAttribute(&value, which, index_), "hipDeviceGetAttribute");
  return value;
}

std::shared_ptr<const portable::LoadedKernel> HipRuntime::load(const jit::CompiledKernel& kernel,
                                                               std::uint32_t /*shared_bytes*/) const {
  return std::make_shared<const Module>(*this, kernel);
}

void HipRuntime::launch(const portable::LoadedKernel& kernel, const portable::Launch& launch,
                        const device::KernelParams& params, void* stream) const {
  const CurrentDevice current(driver_, index_);
  std::size_t bytes = sizeof params;
  std::array<void*, 5> extra{amd::kLaunchBuffer, const_cast<device::KernelParams*>(&params), amd::kLaunchBufferSize,
                             &bytes, amd::kLaunchEnd};
  constexpr unsigned kDynamicShared = 0;  // the stub's shared memory is static: the code object asks for it
  const amd::Result result =
      driver_.hipModuleLaunchKernel(static_cast<const Module&>(kernel).function(), launch.blocks, 1, 1, launch.threads,
                                    1, 1, kDynamicShared, static_cast<amd::Stream>(stream), nullptr, extra.data());
  if (result != amd::kSuccess) fail_launch(*this, result, launch);
}

const jit::HipDriver* ready_driver(std::string& reason) {
  reason = driver().reason;
  return driver().functions;
}

int device_count() { return driver().devices; }

const HipRuntime* find_runtime(int index, std::string& reason) {
  const jit::HipDriver* functions = ready_driver(reason);
  if (functions == nullptr) return nullptr;
  if (index < 0 || index >= device_count()) {
    reason = core::concat("hip:", index, ": must be one of the ", device_count(), " HIP devices here");
    return nullptr;
  }
  const Opened& opened = g_devices[static_cast<std::size_t>(index)].get([&] { return open_device(*functions, index); });
  if (opened.runtime == nullptr) reason = opened.reason;
  return opened.runtime.get();
}

}  // namespace tilewise::backends::hip
