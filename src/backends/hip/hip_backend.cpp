// What HIP does its own way (a thread's device, kernel arguments, architectures), and its rows and system functions.
#include "backends/hip/hip_backend.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "backends/portable/table.hpp"
#include "gpu/system.hpp"
#include "jit/hip_driver.hpp"

namespace tilewise::backends {
namespace {

namespace amd = jit::hip;
using gpu::DriverFunction;

struct HipApi {
  using Table = jit::HipDriver;
  using Driver = gpu::GpuDriver<HipApi>;
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
  static gpu::GpuIdentity identify(const Driver& driver, int device);
  static Home home(const Driver&, int device) { return device; }

  static void prepare(const Driver&, amd::Function, std::uint32_t /*shared_bytes*/) {}
  static amd::Result launch(const Driver& driver, amd::Function function, const gpu::Launch& launch,
                            const std::byte* block, amd::Stream stream) {
    std::size_t bytes = launch.params.size();
    std::array<void*, 5> extra{amd::kLaunchBuffer, const_cast<std::byte*>(block), amd::kLaunchBufferSize, &bytes,
                               amd::kLaunchEnd};
    constexpr unsigned kDynamicShared = 0;  // the stub's shared memory is static: the code object asks for it
    const gpu::Extent3& grid = launch.grid;
    return driver.ask(kLaunch, function, grid.x, grid.y, grid.z, launch.threads(), 1u, 1u, kDynamicShared, stream,
                      nullptr, extra.data());
  }
  [[noreturn]] static void encode(const Driver&, const gpu::TensorMap&, std::byte*) {
    throw Error(ErrorCode::runtime, "HIP: its GPUs have no tensor maps");
  }
};

gpu::GpuIdentity HipApi::identify(const Driver& driver, int device) {
  gpu::GpuIdentity identity;
  amd::Result error = amd::kSuccess;
  identity.architecture = jit::hip_architecture(driver.table(), device, error);
  driver.check(error, "hipGetDeviceProperties");
  const gpu::Architecture* known = gpu::find_architecture(identity.architecture);
  if (known != nullptr && gpu::device_of(*known) == DeviceType::hip) {
    identity.matrix_rate = known->matrix_rate;
    identity.memory_gigabytes_per_second = known->memory_gigabytes_per_second;
  } else {
    identity.refusal = gpu::unknown_gpu(identity.architecture);
  }
  return identity;
}

}  // namespace

const gpu::Runtime& hip_runtime(int index) { return gpu::required_gpu<HipApi>(index); }

std::span<const core::Implementation* const> hip_implementations() {
  static const portable::FamilyRows cdna("hip.cdna", gpu::Family::cdna, hip_runtime);
  static const portable::FamilyRows rdna("hip.rdna", gpu::Family::rdna, hip_runtime);
  static const portable::FamilyRows rdna4("hip.rdna4", gpu::Family::rdna4, hip_runtime);
  static const portable::FamilyRows gfx1250("hip.gfx1250", gpu::Family::gfx1250, hip_runtime);
  static const std::vector<const core::Implementation*> table = [] {
    std::vector<const core::Implementation*> rows;
    for (const portable::FamilyRows* family : {&cdna, &rdna, &rdna4, &gfx1250}) family->append_to(rows);
    return rows;
  }();
  return table;
}

const core::DeviceSystem& hip_system() {
  static const gpu::GpuSystem<HipApi> system;
  return system;
}

}  // namespace tilewise::backends
