// Hopper's kernels of expert layers under emulation.
#include "backends/emulation/moe.hpp"

#include <cstdint>
#include <memory>
#include <utility>

#include "backends/cuda/hopper/moe.hpp"
#include "backends/emulation/emulated_call.hpp"
#include "core/message.hpp"
#include "operations/moe/rules.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::emulation {
namespace {

constexpr std::int64_t kUnit = 8;  // elements of 16 bytes

bool is_aligned(const void* data, std::int64_t extent, std::int64_t stride) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && (extent <= 1 || stride % kUnit == 0);
}
bool is_aligned(const operations::Matrix& m) { return is_aligned(m.data, m.rows, m.row_stride); }
bool is_aligned(const operations::ExpertMatrices& w) {
  return is_aligned(w.data, w.rows, w.row_stride) && is_aligned(w.data, w.num_experts, w.expert_stride);
}

constexpr PortableKernels<operations::Moe> kKernels{
    [](const MoeProblem& problem, const core::DeviceDescription& device, gpu::Family) {
      gpu::Outcome outcome = hopper::lower(problem, device);
      if (!outcome.refusal.empty()) throw Error(ErrorCode::unsupported, core::concat("moe: ", outcome.refusal));
      return std::move(outcome.lowering);
    },
    [](MoeProblem& problem, const operations::moe::MoeParams& call) {
      problem.unaligned =
          !(is_aligned(call.x) && is_aligned(call.out) && is_aligned(call.gate_up) && is_aligned(call.down));
    }};

}  // namespace

operations::moe::FeatureSet EmulatedMoe::supported() const noexcept { return hopper::moe_features(); }

core::Verdict EmulatedMoe::judge(const MoeProblem& problem, const core::DeviceDescription&) const {
  gpu::Outcome outcome = hopper::lower(problem, runtime_of(family_)(0).description());
  if (!outcome.refusal.empty()) return core::Verdict::refuse(std::move(outcome.refusal));
  // The order of magnitude on one thread, compilation aside. Each cost is above the reference's: none is chosen by
  // itself.
  constexpr double kCallUs = 10000.0, kFlopUs = 1e-2, kByteUs = 1e-2;
  const double us =
      kCallUs + kFlopUs * operations::moe::flops(problem) + kByteUs * operations::moe::bytes_moved(problem);
  return core::Verdict::accept(
      us, std::make_unique<EmulatedCall<operations::Moe>>(problem, family_, std::move(outcome.lowering), kKernels));
}

}  // namespace tilewise::backends::emulation
