// Loads kernels that were compiled for the host, and runs them block by block.
#include "backends/emulation/runtime.hpp"

#include <cstring>
#include <memory>
#include <string>

#include "backends/emulation/emulator.hpp"
#include "backends/emulation/host_tensor_map.hpp"
#include "core/message.hpp"
#include "jit/host_module.hpp"

namespace tilewise::backends::emulation {
namespace {

/// A kernel's shared object in this process.
class EmulatedKernel final : public gpu::LoadedKernel {
 public:
  explicit EmulatedKernel(const jit::CompiledKernel& kernel) : module_(kernel.image) {
    using Entry = const device::HostKernel*();
    entry_ = reinterpret_cast<Entry*>(module_.find(kernel.symbol))();
  }
  [[nodiscard]] const device::HostKernel& entry() const noexcept { return *entry_; }

 private:
  jit::HostModule module_;
  const device::HostKernel* entry_ = nullptr;
};

class EmulationRuntime final : public gpu::Runtime {
 public:
  /// Schedules as on a small device of the family: few multiprocessors with arithmetic slow enough beside the latencies
  /// of the schedules' own model, so that splits, of few parts and of more than kRowSplits, occur on problems that
  /// emulate in milliseconds; as much shared memory as the family's blocks may have.
  EmulationRuntime(gpu::Family family, std::size_t shared_bytes) : name_(name_of(family)) {
    description_.architecture = "host";
    description_.multiprocessors = 4;
    description_.matrix_rate = 20.0;
    description_.shared_bytes = shared_bytes;
  }

  [[nodiscard]] const core::DeviceDescription& description() const noexcept override { return description_; }
  [[nodiscard]] const jit::Target& target() const noexcept override { return target_; }
  [[nodiscard]] std::shared_ptr<const gpu::LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                              std::uint32_t) const override {
    return std::make_shared<const EmulatedKernel>(kernel);
  }
  void launch(const gpu::LoadedKernel& kernel, const gpu::Launch& launch, const std::byte* block,
              void*) const override {
    const std::string name = core::concat(name_, ", kernel ", launch.key.body->name);
    if (launch.grid.y * launch.grid.z * launch.cluster.y * launch.cluster.z != 1) {
      throw Error(ErrorCode::runtime, core::concat(name, ": grids and clusters of one dimension are emulated"));
    }
    const Grid grid{name, static_cast<std::int32_t>(launch.grid.x), static_cast<std::int32_t>(launch.threads()),
                    static_cast<std::int32_t>(launch.cluster.x), description_.multiprocessors};
    run_grid(static_cast<const EmulatedKernel&>(kernel).entry(), grid, block, memory_of(*launch.key.body, block),
             seed_from_environment());
  }
  void clear(void* memory, std::size_t bytes, void*) const override { std::memset(memory, 0, bytes); }
  void encode(const gpu::TensorMap& map, std::byte* to) const override {
    const HostTensorMap host = encode_host_map(map);
    std::memcpy(to, &host, sizeof host);
  }

 private:
  std::string_view name_;
  core::DeviceDescription description_;
  jit::Target target_{jit::TargetKind::host, "host"};
};

template <gpu::Family kFamily, std::size_t kSharedBytes>
const gpu::Runtime& runtime(int) {
  static const EmulationRuntime only(kFamily, kSharedBytes);
  return only;
}

}  // namespace

std::string_view name_of(gpu::Family family) {
  switch (family) {
    case gpu::Family::sm80:
      break;
    case gpu::Family::sm90:
      return "emulation.sm90";
    case gpu::Family::cdna:
      return "emulation.cdna";
    case gpu::Family::rdna:
      return "emulation.rdna";
    case gpu::Family::rdna4:
      return "emulation.rdna4";
    case gpu::Family::gfx1250:
      return "emulation.gfx1250";
  }
  return "emulation.sm80";
}

gpu::FindRuntime runtime_of(gpu::Family family) {
  switch (family) {
    case gpu::Family::sm80:
      break;
    case gpu::Family::sm90:
      return runtime<gpu::Family::sm90, 227 << 10>;
    case gpu::Family::cdna:
      return runtime<gpu::Family::cdna, 160 << 10>;
    case gpu::Family::rdna:
      return runtime<gpu::Family::rdna, 64 << 10>;
    case gpu::Family::rdna4:
      return runtime<gpu::Family::rdna4, 64 << 10>;
    case gpu::Family::gfx1250:
      return runtime<gpu::Family::gfx1250, 320 << 10>;
  }
  return runtime<gpu::Family::sm80, 163 << 10>;
}

}  // namespace tilewise::backends::emulation
