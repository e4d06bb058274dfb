// What HIP does its own way (a thread's device, kernel arguments, architectures), and its rows and system functions.
#include "backends/hip/hip_backend.hpp"

#include <array>
#include <cstdint>

#include "backends/portable/gpu_system.hpp"
#include "jit/hip_driver.hpp"

namespace tilewise::backends {
namespace {

namespace amd = jit::hip;
using portable::DriverFunction;

struct HipApi {
  using Table = jit::HipDriver;
  using Driver = portable::GpuDriver<HipApi>;
  using Pointer = amd::DevicePointer;
  using Home = int;  ///< the GPU's index
  using FillWord = int;

  static constexpr std::string_view kTitle = "HIP";
  static constexpr DeviceType kDevice = DeviceType::hip;
  static constexpr jit::TargetKind kTarget = jit::TargetKind::hip;
  static constexpr auto kMultiprocessors = amd::kMultiprocessorCount, kClockRateKilohertz = amd::kClockRateKilohertz,
                        kSharedBytes = amd::kMaxSharedMemoryPerBlock;

  static constexpr DriverFunction kInit{&Table::hipInit, "hipInit"};
  static constexpr DriverFunction kCountDevices{&Table::hipGetDeviceCount, "hipGetDeviceCount"};
  static constexpr DriverFunction kGetAttribute{&Table::hipDeviceGetAttribute, "hipDeviceGetAttribute"};
  static constexpr DriverFunction kCurrentDevice{&Table::hipGetDevice, "hipGetDevice"};
  static constexpr DriverFunction kSetDevice{&Table::hipSetDevice, "hipSetDevice"};
  static constexpr DriverFunction kLoadModule{&Table::hipModuleLoadData, "hipModuleLoadData"};
  static constexpr DriverFunction kUnloadModule{&Table::hipModuleUnload, "hipModuleUnload"};
  static constexpr DriverFunction kGetFunction{&Table::hipModuleGetFunction, "hipModuleGetFunction"};
  static constexpr DriverFunction kLaunch{&Table::hipModuleLaunchKernel, "hipModuleLaunchKernel"};
  static constexpr DriverFunction kIsCapturing{&Table::hipStreamIsCapturing, "hipStreamIsCapturing"};
  static constexpr DriverFunction kSynchronize{&Table::hipStreamSynchronize, "hipStreamSynchronize"};
  static constexpr DriverFunction kAllocate{&Table::hipMalloc, "hipMalloc"};
  static constexpr DriverFunction kFree{&Table::hipFree, "hipFree"};
  static constexpr DriverFunction kCopyToDevice{&Table::hipMemcpyHtoDAsync, "hipMemcpyHtoDAsync"};
  static constexpr DriverFunction kCopyToHost{&Table::hipMemcpyDtoHAsync, "hipMemcpyDtoHAsync"};
  static constexpr DriverFunction kFillBytes{&Table::hipMemsetD8Async, "hipMemsetD8Async"};
  static constexpr DriverFunction kFillWords{&Table::hipMemsetD32Async, "hipMemsetD32Async"};

  /// Makes a device the thread's current one while it lives.
  class Scope {
   public:
    Scope(const Driver& driver, Home device) : driver_(driver) {
      driver.call(kCurrentDevice, &outer_);
      if (outer_ == device) return;
      driver.call(kSetDevice, device);
      changed_ = true;
    }
    ~Scope() {
      if (changed_) driver_.ask(kSetDevice, outer_);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Driver& driver_;
    int outer_ = 0;
    bool changed_ = false;
  };

  static const jit::OpenedDriver<Table>& opened() { return jit::hip_driver(); }
  static void name_error(const Table& table, amd::Result result, const char*& name, const char*& words) {
    name = table.hipGetErrorName(result);
    words = table.hipGetErrorString(result);
  }

  static int device_id(const Driver&, int index) { return index; }
  static portable::GpuIdentity identify(const Driver& driver, int device);
  static Home home(const Driver&, int device) { return device; }

  static void prepare(const Driver&, amd::Function, std::uint32_t /*shared_bytes*/) {}
  static amd::Result launch(const Driver& driver, amd::Function function, const portable::Launch& launch,
                            const device::KernelParams& params, amd::Stream stream) {
    std::size_t bytes = sizeof params;
    std::array<void*, 5> extra{amd::kLaunchBuffer, const_cast<device::KernelParams*>(&params), amd::kLaunchBufferSize,
                               &bytes, amd::kLaunchEnd};
    constexpr unsigned kDynamicShared = 0;  // the stub's shared memory is static: the code object asks for it
    return driver.ask(kLaunch, function, launch.blocks, 1u, 1u, launch.threads, 1u, 1u, kDynamicShared, stream, nullptr,
                      extra.data());
  }
};

portable::GpuIdentity HipApi::identify(const Driver& driver, int device) {
  portable::GpuIdentity identity;
  amd::Result error = amd::kSuccess;
  identity.architecture = jit::hip_architecture(driver.table(), device, error);
  driver.check(error, "hipGetDeviceProperties");
  const portable::Architecture* known = portable::find_architecture(identity.architecture);
  if (known != nullptr && portable::device_of(*known) == DeviceType::hip) {
    identity.machine = known->machine;
    identity.matrix_rate = known->matrix_rate;
    identity.memory_gigabytes_per_second = known->memory_gigabytes_per_second;
  } else {
    identity.refusal = core::concat("the GPU must be one of ", portable::architecture_names(DeviceType::hip), " (got ",
                                    identity.architecture, ")");
  }
  return identity;
}

}  // namespace

portable::GpuStatus hip_status(int index) { return portable::gpu_status<HipApi>(index); }

std::span<const core::Implementation* const> hip_implementations() {
  static const portable::GpuImplementation cdna("hip.cdna", DeviceType::hip, device::kCdna, hip_status);
  static const portable::GpuImplementation rdna("hip.rdna", DeviceType::hip, device::kRdna, hip_status);
  static const std::array<const core::Implementation*, 2> table = {&cdna, &rdna};
  return table;
}

const core::DeviceSystem& hip_system() {
  static const portable::GpuSystem<HipApi> system;
  return system;
}

}  // namespace tilewise::backends
