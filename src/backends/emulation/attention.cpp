// Attention's kernels under emulation: the portable ones, and Hopper's.
#include "backends/emulation/attention.hpp"

#include <algorithm>
#include <initializer_list>

#include "backends/cuda/hopper/lowering.hpp"
#include "backends/emulation/emulated_call.hpp"
#include "backends/portable/alignment.hpp"
#include "backends/portable/attention/lowering.hpp"
#include "backends/portable/attention/schedule.hpp"
#include "operations/attention/rules.hpp"
#include "operations/attention/work.hpp"
#include "tilewise/error.hpp"

namespace tilewise::backends::emulation {
namespace {

/// As describe() looks at tensors, of the strides that are left of them.
bool comes_in_boxes(const Problem& problem, const device::BiasTensor& bias) {
  const auto size = static_cast<std::int64_t>(size_of(operations::attention::bias_dtype(problem)));
  const auto fits = [size](bool has, std::int64_t stride) { return !has || (stride >= 0 && stride * size % 16 == 0); };
  const BiasDims& dims = problem.bias_dims;
  return reinterpret_cast<std::uintptr_t>(bias.data) % 16 == 0 && bias.key_stride == 1 &&
         fits(dims.batch, bias.batch_stride) && fits(dims.head, bias.head_stride) &&
         fits(dims.query, bias.query_stride);
}

void note_alignment(Problem& problem, const device::AttentionParams& p) {
  const auto all_aligned = [](std::initializer_list<const device::Tensor4*> tensors, DType dtype) {
    return std::ranges::all_of(tensors, [&](const auto* t) { return portable::rows_start_on_16_bytes(*t, dtype); });
  };
  problem.unaligned = !all_aligned({&p.q, &p.k, &p.v, &p.dout, &p.dq, &p.dk, &p.dv}, problem.dtype) ||
                      !all_aligned({&p.out}, operations::attention::out_dtype_of(problem));
  problem.bias_unaligned = problem.bias_dims.key && !comes_in_boxes(problem, p.bias);
}

/// Rows that TMA can't load go to the portable kernels, as they do on a GPU.
gpu::Lowering lower_for(const Problem& problem, const core::DeviceDescription& device, gpu::Family family) {
  if (family != gpu::Family::sm90) return portable::lower(problem, device, family).lowering;
  if (problem.unaligned && problem.dtype == DType::fp8_e4m3) {
    throw Error(ErrorCode::unsupported,
                "q: every row of q, k, v and out must start on 16 bytes in fp8 (got one that "
                "does not)");
  }
  if (problem.unaligned) return portable::lower(problem, device, gpu::Family::sm80).lowering;
  return hopper::lower(problem, device).lowering;
}

constexpr PortableKernels<operations::Attention> kKernels{lower_for, note_alignment};

}  // namespace

operations::attention::FeatureSet EmulatedAttention::supported() const noexcept {
  return family_ == gpu::Family::sm90 ? hopper::attention_features() : portable::attention_features();
}

core::Verdict EmulatedAttention::judge(const Problem& problem, const core::DeviceDescription&) const {
  const core::DeviceDescription& device = runtime_of(family_)(0).description();
  std::string refusal = family_ == gpu::Family::sm90 ? hopper::lower(problem, device).refusal
                                                     : portable::lower(problem, device, family_).refusal;
  if (!refusal.empty()) return core::Verdict::refuse(std::move(refusal));
  // The order of magnitude on one thread, compilation aside. Each cost is above the reference's, which accepts
  // whatever an emulation does: none is chosen by itself.
  constexpr operations::attention::ScalarCosts kCosts{1000.0, 5.0, 0.1, 0.1, 1.0 / 400.0};
  return core::Verdict::accept(operations::attention::scalar_us(problem, kCosts),
                               std::make_unique<EmulatedCall<operations::Attention>>(
                                   problem, family_, lower_for(problem, device, family_), kKernels));
}

}  // namespace tilewise::backends::emulation
