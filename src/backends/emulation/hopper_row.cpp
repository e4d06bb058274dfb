// Whether a call's rows start on 16 bytes, as Hopper's kernels ask.
#include "backends/emulation/hopper_row.hpp"

#include <cstdint>

namespace tilewise::backends::emulation {
namespace {

bool is_aligned(const void* data, DType dtype, std::int64_t extent, std::int64_t stride) {
  constexpr std::int64_t kBytes = 16;
  return reinterpret_cast<std::uintptr_t>(data) % kBytes == 0 &&
         (extent <= 1 || stride * static_cast<std::int64_t>(size_of(dtype)) % kBytes == 0);
}
bool is_aligned(const operations::Matrix& m) { return is_aligned(m.data, m.dtype, m.rows, m.row_stride); }
bool is_aligned(const operations::ExpertMatrices& w) {
  const bool by_depth = w.column_stride == 1;
  return is_aligned(w.data, w.dtype, by_depth ? w.rows : w.columns, by_depth ? w.row_stride : w.column_stride) &&
         is_aligned(w.data, w.dtype, w.num_experts, w.expert_stride);
}

}  // namespace

bool HopperKernels<operations::Linear>::is_aligned(const operations::linear::LinearParams& call) {
  return emulation::is_aligned(call.x) && emulation::is_aligned(call.out) && emulation::is_aligned(call.w);
}

bool HopperKernels<operations::Moe>::is_aligned(const operations::moe::MoeParams& call) {
  return emulation::is_aligned(call.x) && emulation::is_aligned(call.out) && emulation::is_aligned(call.gate_up) &&
         emulation::is_aligned(call.down);
}

}  // namespace tilewise::backends::emulation
