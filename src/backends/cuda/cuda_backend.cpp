// What CUDA does its own way (contexts, dynamic shared memory, capabilities), and its rows and system functions.
#include "backends/cuda/cuda_backend.hpp"

#include <array>
#include <cstdint>
#include <vector>

#include "backends/cuda/hopper/implementation.hpp"
#include "backends/cuda/hopper/kv_cache.hpp"
#include "backends/cuda/hopper/linear.hpp"
#include "backends/cuda/hopper/moe.hpp"
#include "backends/portable/table.hpp"
#include "gpu/system.hpp"
#include "jit/cuda_driver.hpp"

namespace tilewise::backends {
namespace {

namespace cu = jit::cuda;
using gpu::DriverFunction;

/// The oldest GPU whose matrix instructions the kernels use, as 10 * major + minor.
constexpr int kMinComputeCapability = 80;
/// Dynamic shared memory that a kernel may have without asking for more.
constexpr std::uint32_t kPlainSharedBytes = 48 << 10;

struct CudaApi {
  using Table = jit::CudaDriver;
  using Driver = gpu::GpuDriver<CudaApi>;
  using Pointer = cu::DevicePointer;
  using Home = cu::Context;  ///< the GPU's primary context
  using FillWord = unsigned int;

  static constexpr std::string_view kTitle = "CUDA";
  static constexpr DeviceType kDevice = DeviceType::cuda;
  static constexpr jit::TargetKind kTarget = jit::TargetKind::cuda;
  static constexpr auto kMultiprocessors = cu::kMultiprocessorCount, kClockRateKilohertz = cu::kClockRateKilohertz,
                        kSharedBytes = cu::kMaxSharedMemoryPerBlockOptin;

  static constexpr DriverFunction kInit{&Table::cuInit, "cuInit"};
  static constexpr DriverFunction kCountDevices{&Table::cuDeviceGetCount, "cuDeviceGetCount"};
  static constexpr DriverFunction kGetDevice{&Table::cuDeviceGet, "cuDeviceGet"};
  static constexpr DriverFunction kGetAttribute{&Table::cuDeviceGetAttribute, "cuDeviceGetAttribute"};
  static constexpr DriverFunction kRetainContext{&Table::cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain"};
  static constexpr DriverFunction kGetContext{&Table::cuCtxGetCurrent, "cuCtxGetCurrent"};
  static constexpr DriverFunction kPushContext{&Table::cuCtxPushCurrent, "cuCtxPushCurrent"};
  static constexpr DriverFunction kPopContext{&Table::cuCtxPopCurrent, "cuCtxPopCurrent"};
  static constexpr DriverFunction kCurrentDevice{&Table::cuCtxGetDevice, "cuCtxGetDevice"};
  static constexpr DriverFunction kLoadModule{&Table::cuModuleLoadData, "cuModuleLoadData"};
  static constexpr DriverFunction kUnloadModule{&Table::cuModuleUnload, "cuModuleUnload"};
  static constexpr DriverFunction kGetFunction{&Table::cuModuleGetFunction, "cuModuleGetFunction"};
  static constexpr DriverFunction kGetFunctionAttribute{&Table::cuFuncGetAttribute, "cuFuncGetAttribute"};
  static constexpr DriverFunction kSetFunctionAttribute{&Table::cuFuncSetAttribute, "cuFuncSetAttribute"};
  static constexpr DriverFunction kLaunch{&Table::cuLaunchKernel, "cuLaunchKernel"};
  static constexpr DriverFunction kLaunchEx{&Table::cuLaunchKernelEx, "cuLaunchKernelEx"};
  static constexpr DriverFunction kEncodeTensorMap{&Table::cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled"};
  static constexpr DriverFunction kIsCapturing{&Table::cuStreamIsCapturing, "cuStreamIsCapturing"};
  static constexpr DriverFunction kSynchronize{&Table::cuStreamSynchronize, "cuStreamSynchronize"};
  static constexpr DriverFunction kAllocate{&Table::cuMemAlloc, "cuMemAlloc"};
  static constexpr DriverFunction kFree{&Table::cuMemFree, "cuMemFree"};
  static constexpr DriverFunction kCopyToDevice{&Table::cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync"};
  static constexpr DriverFunction kCopyToHost{&Table::cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync"};
  static constexpr DriverFunction kFillBytes{&Table::cuMemsetD8Async, "cuMemsetD8Async"};
  static constexpr DriverFunction kFillWords{&Table::cuMemsetD32Async, "cuMemsetD32Async"};

  /// Makes a context the thread's own while it lives, unless it is already.
  class Scope {
   public:
    Scope(const Driver& driver, Home context) : driver_(driver) {
      cu::Context current = nullptr;
      driver.call(kGetContext, &current);
      if (current == context) return;
      driver.call(kPushContext, context);
      pushed_ = true;
    }
    ~Scope() {
      cu::Context popped = nullptr;
      if (pushed_) driver_.ask(kPopContext, &popped);
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const Driver& driver_;
    bool pushed_ = false;
  };

  static const jit::OpenedDriver<Table>& opened() { return jit::cuda_driver(); }
  static void name_error(const Table& table, cu::Result result, const char*& name, const char*& words) {
    if (table.cuGetErrorName(result, &name) != cu::kSuccess) name = nullptr;
    if (table.cuGetErrorString(result, &words) != cu::kSuccess) words = nullptr;
  }

  static cu::DeviceId device_id(const Driver& driver, int index) {
    cu::DeviceId device = 0;
    driver.call(kGetDevice, &device, index);
    return device;
  }
  static gpu::GpuIdentity identify(const Driver& driver, cu::DeviceId device);
  static Home home(const Driver& driver, cu::DeviceId device) {
    // Never released: streams and memory of other libraries live in it, and threads may run while main() returns.
    cu::Context context = nullptr;
    driver.call(kRetainContext, &context, device);
    return context;
  }

  static void prepare(const Driver& driver, cu::Function function, std::uint32_t shared_bytes) {
    // Asking a kernel anything loads it now, where the driver would else wait for its first launch.
    int local_bytes = 0;
    driver.call(kGetFunctionAttribute, &local_bytes, cu::kFunctionLocalBytes, function);
    if (shared_bytes > kPlainSharedBytes) {
      driver.call(kSetFunctionAttribute, function, cu::kFunctionMaxDynamicSharedBytes, static_cast<int>(shared_bytes));
    }
  }
  static cu::Result launch(const Driver& driver, cu::Function function, const gpu::Launch& launch,
                           const std::byte* block, cu::Stream stream);
  static void encode(const Driver& driver, const gpu::TensorMap& map, std::byte* to);
};

cu::Result CudaApi::launch(const Driver& driver, cu::Function function, const gpu::Launch& launch,
                           const std::byte* block, cu::Stream stream) {
  std::array<void*, 1> parameters{const_cast<std::byte*>(block)};
  const gpu::Extent3 &grid = launch.grid, &cluster = launch.cluster;
  // Drivers older than CUDA 11.8 know no attributes: one step after the other is right, too.
  const bool programmatic = launch.programmatic && driver.has(kLaunchEx);
  if (cluster.count() == 1 && !programmatic) {
    return driver.ask(kLaunch, function, grid.x, grid.y, grid.z, launch.threads(), 1u, 1u, launch.key.shared_bytes(),
                      stream, parameters.data(), nullptr);
  }
  std::array<cu::LaunchAttribute, 2> attributes{};
  unsigned count = 0;
  if (cluster.count() > 1) {
    attributes[count].id = cu::kClusterDimension;
    attributes[count++].value.cluster = {cluster.x, cluster.y, cluster.z};
  }
  if (programmatic) {
    attributes[count].id = cu::kProgrammaticStreamSerialization;
    attributes[count++].value.allowed = 1;
  }
  const std::uint32_t shared_bytes = std::max(launch.key.shared_bytes(), programmatic ? launch.least_shared_bytes : 0u);
  const cu::LaunchConfig config{grid.x, grid.y,       grid.z, launch.threads(),  1,
                                1,      shared_bytes, stream, attributes.data(), count};
  return driver.ask(kLaunchEx, &config, function, parameters.data(), nullptr);
}

cu::TensorMapType tensor_map_type(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return cu::kTensorMapBf16;
    case DType::f16:
      return cu::kTensorMapF16;
    case DType::f32:
      return cu::kTensorMapF32;
    default:
      return cu::kTensorMapU8;
  }
}

void CudaApi::encode(const Driver& driver, const gpu::TensorMap& map, std::byte* to) {
  if (!driver.has(kEncodeTensorMap)) {
    throw Error(ErrorCode::runtime, "cuTensorMapEncodeTiled: this driver is older than CUDA 12.0 and has none");
  }
  constexpr std::array<cu::TensorMapSwizzle, 4> kSwizzles{cu::kSwizzleNone, cu::kSwizzle32, cu::kSwizzle64,
                                                          cu::kSwizzle128};
  constexpr std::array<unsigned, 5> kEveryElement{1, 1, 1, 1, 1};
  driver.call(kEncodeTensorMap, static_cast<void*>(to), tensor_map_type(map.dtype), static_cast<unsigned>(map.rank),
              map.address, map.dims.data(), map.strides.data(), map.box.data(), kEveryElement.data(),
              cu::kInterleaveNone, kSwizzles[static_cast<std::size_t>(map.swizzle)], cu::kPromote256,
              cu::kOutsideIsZero);
}

/// As its driver tells; some don't, where the memory is the host's.
double memory_gigabytes_per_second(const CudaApi::Driver& driver, cu::DeviceId device, double otherwise) {
  int kilohertz = 0, bits = 0;
  const bool told =
      driver.ask(CudaApi::kGetAttribute, &kilohertz, cu::kMemoryClockRateKilohertz, device) == cu::kSuccess &&
      driver.ask(CudaApi::kGetAttribute, &bits, cu::kMemoryBusWidthBits, device) == cu::kSuccess;
  constexpr double kTransfersACycle = 2.0, kBitsAByte = 8.0, kGigahertz = 1e-6;
  return told && kilohertz > 0 && bits > 0 ? kTransfersACycle * kilohertz * kGigahertz * bits / kBitsAByte : otherwise;
}

gpu::GpuIdentity CudaApi::identify(const Driver& driver, cu::DeviceId device) {
  int major = 0, minor = 0;
  driver.call(kGetAttribute, &major, cu::kComputeCapabilityMajor, device);
  driver.call(kGetAttribute, &minor, cu::kComputeCapabilityMinor, device);
  const int capability = 10 * major + minor;
  gpu::GpuIdentity identity;
  identity.architecture = core::concat("sm_", capability, capability == 90 ? "a" : "");
  // A GPU newer than the table is taken for one of its consumer parts.
  constexpr double kUnknownRate = 512.0, kUnknownBandwidth = 500.0;
  const gpu::Architecture* known = gpu::find_architecture(identity.architecture);
  identity.matrix_rate = known != nullptr ? known->matrix_rate : kUnknownRate;
  identity.memory_gigabytes_per_second = memory_gigabytes_per_second(
      driver, device, known != nullptr ? known->memory_gigabytes_per_second : kUnknownBandwidth);
  if (capability < kMinComputeCapability) {
    identity.refusal = core::concat("compute capability must be >= 8.0 (got ", major, ".", minor, ")");
  }
  return identity;
}

}  // namespace

const gpu::Runtime& cuda_runtime(int index) { return gpu::required_gpu<CudaApi>(index); }

std::span<const core::Implementation* const> cuda_implementations() {
  static const portable::FamilyRows sm80("cuda.sm80", gpu::Family::sm80, cuda_runtime);
  static const RowsOf<hopper::AttentionImplementation, hopper::KvCacheImplementation, hopper::MoeImplementation,
                      hopper::LinearImplementation>
      hopper(cuda_runtime);
  static const std::vector<const core::Implementation*> table = [] {
    std::vector<const core::Implementation*> rows;
    sm80.append_to(rows);
    hopper.append_to(rows);
    return rows;
  }();
  return table;
}

const core::DeviceSystem& cuda_system() {
  static const gpu::GpuSystem<CudaApi> system;
  return system;
}

}  // namespace tilewise::backends
