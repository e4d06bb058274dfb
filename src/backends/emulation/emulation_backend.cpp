// The emulation as a Runtime of portable kernels, and its three implementations.
#include "backends/emulation/emulation_backend.hpp"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>

#include "backends/emulation/emulator.hpp"
#include "backends/portable/gpu_implementation.hpp"
#include "backends/portable/portable_kernel.hpp"
#include "core/message.hpp"
#include "jit/host_module.hpp"
#include "operations/attention/attention.hpp"
#include "operations/attention/work.hpp"

namespace tilewise::backends {
namespace emulation {
namespace {

using portable::DeviceTraits;

/// A kernel's shared object in this process.
class EmulatedKernel final : public portable::LoadedKernel {
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

class EmulationRuntime final : public portable::Runtime {
 public:
  EmulationRuntime(std::string_view name, DeviceTraits traits) : name_(name), traits_(std::move(traits)) {}

  [[nodiscard]] const DeviceTraits& traits() const noexcept override { return traits_; }
  [[nodiscard]] const jit::Target& target() const noexcept override { return target_; }
  [[nodiscard]] std::shared_ptr<const portable::LoadedKernel> load(const jit::CompiledKernel& kernel,
                                                                   std::uint32_t) const override {
    return std::make_shared<const EmulatedKernel>(kernel);
  }
  void launch(const portable::LoadedKernel& kernel, const portable::Launch& launch, const device::KernelParams& params,
              void*) const override {
    const std::string name = core::concat(name_, ", kernel ", portable::kernel_name(launch.key.kind));
    const Grid grid{name, static_cast<std::int32_t>(launch.blocks), static_cast<std::int32_t>(launch.threads)};
    run_grid(static_cast<const EmulatedKernel&>(kernel).entry(), grid, params, memory_of(params),
             seed_from_environment());
  }

 private:
  std::string_view name_;
  DeviceTraits traits_;
  jit::Target target_{jit::TargetKind::host, "host"};
};

bool rows_start_on_16_bytes(const device::Tensor4& t) {
  constexpr std::int64_t kElements = 8;
  return reinterpret_cast<std::uintptr_t>(t.data) % 16 == 0 && t.batch_stride % kElements == 0 &&
         t.seq_stride % kElements == 0 && t.head_stride % kElements == 0;
}

/// Kernels are compiled by the first launch that needs them: explain() asks every row for its schedule, and a
/// Problem of the CPU says nothing of alignment, for which there are two kinds of them.
class EmulatedCall final : public operations::attention::Kernel {
 public:
  EmulatedCall(const Problem& problem, const EmulationRuntime& runtime)
      : problem_(problem), runtime_(runtime), lowering_(portable::lower(problem, runtime.traits())) {}

  [[nodiscard]] std::size_t workspace_size() const noexcept override {
    return lowering_.workspace.size == 0 ? 0 : lowering_.workspace.size + portable::kWorkspaceAlignment;
  }
  [[nodiscard]] std::string schedule() const override { return lowering_.schedule; }

  void launch(const device::AttentionParams& params, void* workspace, void* stream) const override {
    // What nobody wrote reads as NaN.
    if (workspace != nullptr) std::memset(workspace, 0xFF, workspace_size());
    const std::array<const device::Tensor4*, 8> tensors{&params.q,    &params.k,  &params.v,  &params.out,
                                                        &params.dout, &params.dq, &params.dk, &params.dv};
    Problem problem = problem_;
    problem.unaligned = !std::ranges::all_of(tensors, [](const auto* t) { return rows_start_on_16_bytes(*t); });
    portable::make_portable_kernel(problem, runtime_)->launch_on(&params, workspace, stream);
  }

 private:
  Problem problem_;
  const EmulationRuntime& runtime_;
  portable::Lowering lowering_;
};

class EmulationImplementation final : public operations::attention::Implementation {
 public:
  EmulationImplementation(std::string_view name, const DeviceTraits& traits) : name_(name), runtime_(name, traits) {}

  [[nodiscard]] std::string_view name() const noexcept override { return name_; }
  [[nodiscard]] DeviceType device() const noexcept override { return DeviceType::cpu; }
  [[nodiscard]] operations::attention::FeatureSet supported() const noexcept override {
    return portable::portable_features();
  }

  [[nodiscard]] core::Verdict judge(const Problem& problem) const override {
    if (std::string reason = portable::runtime_refusal(problem, runtime_); !reason.empty()) {
      return core::Verdict::refuse(std::move(reason));
    }
    // The order of magnitude on one thread, compilation aside. Each cost is above the reference's, which accepts
    // whatever an emulation does: none is chosen by itself.
    constexpr operations::attention::ScalarCosts kCosts{1000.0, 5.0, 0.1, 0.1, 1.0 / 400.0};
    return core::Verdict::accept(operations::attention::scalar_us(problem, kCosts));
  }

  [[nodiscard]] std::unique_ptr<const core::Kernel> prepare(const Problem& problem) const override {
    return std::make_unique<const EmulatedCall>(problem, runtime_);
  }

 private:
  std::string_view name_;
  EmulationRuntime runtime_;
};

/// Schedules as on a small device of the family: few multiprocessors, so that splits and merges occur on
/// problems that emulate in milliseconds; as much shared memory as the family's blocks may have.
DeviceTraits traits_of(device::Machine machine, std::size_t shared_bytes) {
  DeviceTraits traits;
  traits.machine = machine;
  traits.architecture = "host";
  traits.multiprocessors = 4;
  traits.shared_bytes = shared_bytes;
  return traits;
}

}  // namespace
}  // namespace emulation

std::span<const core::Implementation* const> emulation_implementations() {
  using emulation::EmulationImplementation, emulation::traits_of;
  static const EmulationImplementation sm80("emulation.sm80", traits_of(device::kSm80, 163 << 10));
  static const EmulationImplementation cdna("emulation.cdna", traits_of(device::kCdna, 64 << 10));
  static const EmulationImplementation rdna("emulation.rdna", traits_of(device::kRdna, 64 << 10));
  static const std::array<const core::Implementation*, 3> table = {&sm80, &cdna, &rdna};
  return table;
}

}  // namespace tilewise::backends
